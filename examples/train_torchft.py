"""Replicas under torchft: one is always late, one is killed and comes back, the others go on.

    python examples/train_torchft.py [--replicas 4] [--steps 20] [--mode auto]

Starts torchft's lighthouse and the replicas, each a process; the last one is 0.1 s late in every
step. After some steps replica 1 is killed, and a second later started again; when it is back, some
more follow. In the end all must have the same parameters; exit code 1 if not. Needs
``pip install 'latecomer[torchft]'``.

Under a lighthouse of your own, with an address under which the others reach this host:

    TORCHFT_LIGHTHOUSE=http://HOST:29510 python examples/train_torchft.py --replica 2 --host ADDRESS
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("RUST_LOG", "error")  # when it is imported: torchft tells of every step

import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import Manager, Optimizer

from latecomer.torchft import DistributedDataParallel, ProcessGroup

KILLED = 1
LATE_S = 0.1
AWAY_S = 1.0  # from the death to the start of the process that takes its place
DEADLINE_S = 300.0  # for each part of it; against hangs
SAMPLES = 32


def tell(**what: object) -> None:
    print(json.dumps({"at_s": time.time(), **what}), flush=True)


def last_step(options: argparse.Namespace) -> int:
    """After which step to end: as a file says, once it is there."""
    if options.until is None:
        return int(options.steps)
    return int(options.until.read_text()) if options.until.exists() else sys.maxsize


def train(options: argparse.Namespace) -> None:
    """One replica."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def state() -> dict[str, Any]:
        copied = {name: value.clone() for name, value in model.state_dict().items()}
        return {"model": copied, "optimizer": optimizer.state_dict()}

    def load(saved: dict[str, Any]) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    pg = ProcessGroup(timeout=60, silence=0.5, join_timeout=10, mode=options.mode)
    store = TCPStore(options.host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=pg,
        replica_id=f"replica_{options.replica}",
        min_replica_size=2,
        load_state_dict=load,
        state_dict=state,
        store_addr=options.host,
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=60),
        hostname=options.host,
    )
    ddp = DistributedDataParallel(manager, model)
    managed = Optimizer(manager, optimizer)

    dice = torch.Generator().manual_seed(options.replica)
    while manager.current_step() < last_step(options):
        inputs = torch.randn(SAMPLES, 64, generator=dice)
        classes = inputs.square().sum(dim=1).gt(64.0).long()
        managed.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), classes)
        time.sleep(options.late)
        loss.backward()
        managed.step()  # if all is well: a step that has failed is done again
        error = manager.errored()
        tell(
            step=manager.current_step(),
            replicas=list(pg.replicas),
            error="" if error is None else str(error.original_exception).split("\n", 1)[0],
        )

    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    tell(hash=digest.hexdigest()[:16], paths=dict(pg.paths))
    manager.shutdown(wait=False)
    pg.shutdown()


@dataclass
class Replica:
    """A process that trains, and what it has told."""

    process: subprocess.Popen[str]
    told: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [each for each in list(self.told) if "step" in each]

    def result(self) -> dict[str, Any]:
        """What it has told last, once it is over."""
        code = self.process.wait(DEADLINE_S)
        self._reading.join()
        if code != 0:
            sys.exit(f"FAILED: a replica has ended with {code}")
        return self.told[-1]


class Job:
    """A lighthouse, and the replicas that train under it."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        from torchft.coordination import LighthouseServer

        self._options = options
        self._until = folder / "until"
        self.log = folder / "log"
        self._lighthouse = LighthouseServer(
            bind="[::]:0", min_replicas=2, heartbeat_timeout_ms=1000, quorum_tick_ms=20
        )
        self.replicas = {number: self.start(number) for number in range(options.replicas)}

    def start(self, number: int) -> Replica:
        late_s = LATE_S if number == self._options.replicas - 1 else 0.0
        words = ["--replica", number, "--mode", self._options.mode, "--late", late_s]
        words += ["--until", self._until]
        variables = {"TORCHFT_LIGHTHOUSE": self._lighthouse.address(), "OMP_NUM_THREADS": "1"}
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, __file__, *map(str, words)],
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return Replica(process)

    def wait_for_steps(self, steps: int) -> int:
        """Until each has told of so many steps; which is the last."""
        give_up_s = time.monotonic() + DEADLINE_S
        while min(len(replica.steps) for replica in self.replicas.values()) < steps:
            codes = [replica.process.poll() for replica in self.replicas.values()]
            if any(codes) or time.monotonic() > give_up_s:
                print(self.log.read_text()[-3000:], file=sys.stderr)
                sys.exit(f"FAILED: the replicas do not go on; exit codes: {codes}")
            time.sleep(0.01)
        return max(int(replica.steps[-1]["step"]) for replica in self.replicas.values())

    def end_after(self, step: int) -> None:
        """Let all end after this step, which none has come to yet."""
        whole = self._until.with_suffix(".new")
        whole.write_text(str(step))
        whole.rename(self._until)

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.process.kill()
            replica.process.wait()
        self._lighthouse.shutdown()


@contextlib.contextmanager
def training(options: argparse.Namespace) -> Iterator[Job]:
    with tempfile.TemporaryDirectory() as folder:
        job = Job(options, Path(folder))
        try:
            yield job
        finally:
            job.close()


def show(survivors: list[Replica], killed_s: float) -> None:
    """What became of the death."""
    errors = {each["error"] for replica in survivors for each in replica.steps if each["error"]}
    for error in sorted(errors):
        print(f"a survivor's Manager was told: {error}")
    went_on_s = []
    for replica in survivors:
        went_on_s.append(
            min(
                each["at_s"]
                for each in replica.steps
                if each["at_s"] > killed_s
                and not each["error"]
                and f"replica_{KILLED}" not in each["replicas"]
            )
        )
    print(f"their next step: {max(went_on_s) - killed_s:.2f} s after the kill")


def demonstrate(options: argparse.Namespace) -> None:
    """One is killed, and comes back."""
    with training(options) as job:
        job.wait_for_steps(options.steps)
        print(f"{options.replicas} replicas train; replica {KILLED} is killed")
        job.replicas[KILLED].process.kill()
        killed_s = time.time()
        time.sleep(AWAY_S)
        del job.replicas[KILLED]
        survivors = list(job.replicas.values())
        job.replicas[KILLED] = job.start(KILLED)

        job.end_after(job.wait_for_steps(options.steps) + options.steps)
        results = [replica.result() for replica in job.replicas.values()]
        show(survivors, killed_s)
        print(f"replica {KILLED} is back; all-reduces of replica 0: {results[0]['paths']}")
        hashes = sorted({result["hash"] for result in results})
        print(f"hashes of all parameters in the end: {', '.join(hashes)}")
        if len(hashes) > 1:
            sys.exit("FAILED: the replicas have different parameters")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="before the kill, and after")
    parser.add_argument("--mode", choices=("native", "predict", "eager", "auto"), default="auto")
    parser.add_argument("--replica", type=int, help="be this one, and start no others")
    parser.add_argument("--host", default="127.0.0.1", help="this host's address")
    parser.add_argument("--late", type=float, default=0.0, help="seconds more in each step")
    parser.add_argument("--until", type=Path, help="end at the step that stands in this file")
    options = parser.parse_args()
    if options.replica is None:
        demonstrate(options)
    else:
        train(options)


if __name__ == "__main__":
    main()
