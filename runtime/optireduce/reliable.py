"""The reliable sibling: the same transpose AllReduce over TCP, as a schedule that is proved.

It runs the first steps of the warm-up, and later what must not be lost: the ranks' sync points and
the parameters at a re-synchronization. The schedule is made here and proved like any other before
it runs.
"""

from __future__ import annotations

from datetime import timedelta

import torch

from runtime.executor.executor import Executor
from runtime.executor.load import load
from runtime.health.native_work import NativeWaits
from runtime.torch_versions import Store
from runtime.work import AllReduceWork
from verify.core.schedule import Incast, Phase, Schedule, Transfer


def transpose(n: int) -> Schedule:
    """Transpose AllReduce, one message in and out of a rank per round."""
    shifts = range(1, n)
    scatter = tuple(
        tuple(Transfer(r, (r + t) % n, (r + t) % n, "reduce") for r in range(n)) for t in shifts
    )
    gather = tuple(tuple(Transfer(r, (r + t) % n, r, "copy") for r in range(n)) for t in shifts)
    phases = (Phase("reduce_scatter", (), scatter), Phase("all_gather", (), gather))
    return Schedule(ranks=n, chunks=n, ports=Incast(1), phases=phases)


class Reliable(Executor):
    """TAR over TCP on a group of ranks; see :class:`Executor`."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout_s: float,
        native_waits: NativeWaits | None = None,
    ) -> None:
        schedule = load(transpose(size))
        super().__init__(
            schedule, store, rank, size, timeout_s=timeout_s, native_waits=native_waits
        )

    def average(self, tensor: torch.Tensor) -> torch.Tensor:
        """The average over the ranks, in place, the same bits everywhere. Collective.

        Raises:
            RankFailure: a rank is dead or silent.
        """
        return self._wait(self.submit(tensor, average=True))

    def gather(self, values: list[float]) -> list[list[float]]:
        """What each rank has given: as many numbers on every rank. Collective.

        Raises:
            RankFailure: a rank is dead or silent.
        """
        table = torch.zeros(self.size, len(values), dtype=torch.float64)
        table[self.rank] = torch.tensor(values, dtype=torch.float64)
        rows: list[list[float]] = self._wait(self.submit(table)).tolist()
        return rows

    def _wait(self, work: AllReduceWork) -> torch.Tensor:
        # the executor itself gives up within its time; the margin is for a loaded machine
        return work.wait(timedelta(seconds=2 * self.timeout_s + 10))
