"""One replica of the job that ``bench.torchft`` disturbs; it tells of every step in a line of JSON.

    python -m bench.torchft_replica --replica 2 --group auto --lighthouse http://HOST:PORT

Besides its gradients it sums a probe in every step: 2 to the power of its number, as an int64, so
that the sum says exactly who has taken part in it. SIGUSR1 makes it report an error of its own to
its Manager in the next step, which it survives.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import ReduceOp, TCPStore
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing import HTTPTransport

from examples.train_elastic import hash_of, tell
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


class Transport(HTTPTransport):  # type: ignore[misc]
    """Sends a replica's state from an address: hosts of an emulated network share one name."""

    def __init__(self, address: str, timeout: timedelta) -> None:
        super().__init__(timeout=timeout, num_chunks=0)
        self._address = address

    def metadata(self) -> str:
        """Where other replicas get the state."""
        where: str = super().metadata()
        return where.replace(socket.gethostname(), self._address, 1)


class Managed:
    """A model that is trained under torchft.

    Args:
        group: torchft's own process group, or ours.
        address: of this host.
        least: replicas without which none trains.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        group: Any,
        replica: int,
        address: str,
        lighthouse: str,
        timeout_s: float,
        least: int,
    ) -> None:
        self.replica = replica
        self.model = model
        self._optimizer = optimizer
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        timeout = timedelta(seconds=timeout_s)
        self.manager = Manager(
            pg=group,
            min_replica_size=least,
            load_state_dict=self._load,
            state_dict=self._state,
            replica_id=name_of(replica),
            store_addr=address,
            store_port=self._store.port,
            rank=0,
            world_size=1,
            timeout=timeout,
            checkpoint_transport=Transport(address, timeout),
            quorum_timeout=timedelta(seconds=60),
            connect_timeout=timedelta(seconds=10),
            lighthouse_addr=lighthouse,
            hostname=address,
        )
        self._ddp = DistributedDataParallel(self.manager, self.model, bucket_cap_mb=BUCKET_MB)
        self._managed = Optimizer(self.manager, self._optimizer)

    def forward(self, inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """The loss, with which a step begins."""
        self._managed.zero_grad()
        return nn.functional.cross_entropy(self._ddp(inputs), classes)

    def commit(self, elements: int) -> tuple[bool, int]:
        """End the step; whether it was committed, and the sum of all probes of so many elements."""
        probe = torch.full((elements,), 2**self.replica, dtype=torch.int64)
        self.manager.allreduce(probe, reduce_op=ReduceOp.SUM).wait()
        before = self.manager.current_step()
        self._managed.step()
        is_committed = self.manager.current_step() > before
        return is_committed, int(probe[0]) if bool((probe == probe[0]).all()) else -1

    def _state(self) -> dict[str, Any]:
        copied = {name: value.clone() for name, value in self.model.state_dict().items()}
        return {"model": copied, "optimizer": self._optimizer.state_dict()}

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


class Training:
    """A small model under torchft, with a late replica and errors of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.replica = options.replica
        self._late_s = options.late_s if options.replica == options.late else 0.0
        self._must_report = False
        signal.signal(signal.SIGUSR1, self._report_soon)

        group = process_group(options.group, options.late, options.timeout)
        time_reconfigurations(group)
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
        self._managed = Managed(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9),
            group=group,
            replica=options.replica,
            address="127.0.0.1",
            lighthouse=options.lighthouse,
            timeout_s=options.timeout,
            least=options.least,
        )
        self.manager = self._managed.manager
        self._dice = torch.Generator().manual_seed(100 + options.replica)

    def step(self) -> None:
        """One step, committed or not."""
        inputs = torch.randn(16, 256, generator=self._dice)
        classes = torch.randint(0, 10, (16,), generator=self._dice)
        loss = self._managed.forward(inputs, classes)
        time.sleep(COMPUTE_S + self._late_s)
        if self._must_report:
            self._must_report = False
            tell(reports=self.replica)
            self.manager.report_error(RuntimeError("a local fault"))
        loss.backward()
        is_committed, probe = self._managed.commit(PROBE_ELEMENTS)
        self._tell_of_step(is_committed, probe)

    def _tell_of_step(self, is_committed: bool, probe: int) -> None:
        error = self.manager.errored()
        tell(
            step=self.manager.current_step(),
            is_committed=is_committed,
            quorum=self.manager._quorum_id,
            participants=self.manager.num_participants(),
            probe=probe,
            hash=hash_of(self.model),
            error="" if error is None else repr(error.original_exception)[:200],
        )

    def _report_soon(self, number: int, frame: object) -> None:
        self._must_report = True


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
