"""One replica of the job that ``bench.torchft`` disturbs; it tells of every step in a line of JSON.

    python -m bench.torchft_replica --replica 2 --group auto --lighthouse http://HOST:PORT

Besides its gradients it sums a probe in every step: 2 to the power of its number, as an int64, so
that the sum says exactly who has taken part in it. SIGUSR1 makes it report an error of its own to
its Manager in the next step, which it survives.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import ReduceOp, TCPStore
from torchft import Manager, Optimizer, ProcessGroupGloo

from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.torchft import DistributedDataParallel, ProcessGroup

SILENCE_S = 0.5
JOIN_S = 10.0
COMPUTE_S = 0.02  # of a step, besides what the model takes
PROBE_ELEMENTS = 4096
BUCKET_MB = 0.5
COST = AlphaBeta(alpha_s=5e-5, beta_s=1e-9)
PROFILE = Profile(ranks=4, native=COST, schedule=COST)
"""Given: what is measured here is not how long measuring one takes."""


def name_of(replica: int) -> str:
    """As the Manager, and stragglers, are named."""
    return f"replica_{replica}"


def process_group(kind: str, late: int, timeout_s: float) -> Any:
    """torchft's own over Gloo, or ours in a mode."""
    if kind == "gloo":
        return ProcessGroupGloo(timeout=timedelta(seconds=timeout_s))
    named = {name_of(late)} if kind == "static" else ()
    return ProcessGroup(
        timeout=timeout_s,
        silence=SILENCE_S,
        join_timeout=JOIN_S,
        mode=kind,  # type: ignore[arg-type]
        late=named,
        profile=PROFILE,
    )


def tell(**what: object) -> None:
    """A line for the driver."""
    print(json.dumps({"at_s": time.time(), **what}), flush=True)


def time_reconfigurations(group: Any) -> None:
    """Tell how long torchft's call takes, whichever it is in this version."""
    name = "configure" if hasattr(group, "configure") else "reconfigure"
    original = getattr(group, name)

    def timed(*args: Any, **options: Any) -> Any:
        began_s = time.monotonic()
        result = original(*args, **options)
        tell(reconfigured_s=time.monotonic() - began_s, ranks=group.size())
        return result

    setattr(group, name, timed)


class Training:
    """A small model under torchft."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.replica = options.replica
        self._late_s = options.late_s if options.replica == options.late else 0.0
        self._must_report = False
        signal.signal(signal.SIGUSR1, self._report_soon)

        group = process_group(options.group, options.late, options.timeout)
        time_reconfigurations(group)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.manager = Manager(
            pg=group,
            min_replica_size=options.least,
            load_state_dict=self._load,
            state_dict=self._state,
            replica_id=name_of(options.replica),
            store_addr="127.0.0.1",
            store_port=self._store.port,
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=options.timeout),
            quorum_timeout=timedelta(seconds=60),
            connect_timeout=timedelta(seconds=10),
            lighthouse_addr=options.lighthouse,
            hostname="127.0.0.1",
        )
        self._ddp = DistributedDataParallel(self.manager, self.model, bucket_cap_mb=BUCKET_MB)
        self._managed = Optimizer(self.manager, self._optimizer)
        self._dice = torch.Generator().manual_seed(100 + options.replica)

    def step(self) -> None:
        """One step, committed or not."""
        inputs = torch.randn(16, 256, generator=self._dice)
        classes = torch.randint(0, 10, (16,), generator=self._dice)
        self._managed.zero_grad()
        loss = nn.functional.cross_entropy(self._ddp(inputs), classes)
        time.sleep(COMPUTE_S + self._late_s)
        if self._must_report:
            self._must_report = False
            tell(reports=self.replica)
            self.manager.report_error(RuntimeError("a local fault"))
        loss.backward()

        probe = torch.full((PROBE_ELEMENTS,), 2**self.replica, dtype=torch.int64)
        self.manager.allreduce(probe, reduce_op=ReduceOp.SUM).wait()
        before = self.manager.current_step()
        self._managed.step()
        self._tell_of_step(before, probe)

    def _tell_of_step(self, before: int, probe: torch.Tensor) -> None:
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        error = self.manager.errored()
        tell(
            step=self.manager.current_step(),
            is_committed=self.manager.current_step() > before,
            quorum=self.manager._quorum_id,
            participants=self.manager.num_participants(),
            probe=int(probe[0]) if bool((probe == probe[0]).all()) else -1,
            hash=digest.hexdigest()[:16],
            error="" if error is None else repr(error.original_exception)[:200],
        )

    def _report_soon(self, number: int, frame: object) -> None:
        self._must_report = True

    def _state(self) -> dict[str, Any]:
        copied = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {"model": copied, "optimizer": self._optimizer.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


def main() -> None:
    """Train until the driver ends this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--group", choices=("gloo", "auto", "predict", "static"), default="auto")
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--late", type=int, default=3, help="the replica that is always late")
    parser.add_argument("--late-s", type=float, default=0.2)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--least", type=int, default=2, help="replicas without which none trains")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    torch.set_num_threads(1)
    training = Training(options)
    while True:
        training.step()


if __name__ == "__main__":
    main()
