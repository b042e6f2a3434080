"""The reliable sibling: the same transpose AllReduce over TCP, as a schedule that is proved.

It runs the first steps of the warm-up, and later what must not be lost: the ranks' councils and the
parameters at a re-synchronization. The schedule is made here and proved like any other before it
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch

from runtime.executor.executor import Executor
from runtime.executor.load import load
from runtime.health.native_work import NativeWaits
from runtime.torch_versions import Store
from runtime.work import AllReduceWork
from verify.core.schedule import Incast, Phase, Schedule, Transfer
from verify.errors import LatecomerError


def transpose(n: int) -> Schedule:
    """Transpose AllReduce, one message in and out of a rank per round."""
    shifts = range(1, n)
    scatter = tuple(
        tuple(Transfer(r, (r + t) % n, (r + t) % n, "reduce") for r in range(n)) for t in shifts
    )
    gather = tuple(tuple(Transfer(r, (r + t) % n, r, "copy") for r in range(n)) for t in shifts)
    phases = (Phase("reduce_scatter", (), scatter), Phase("all_gather", (), gather))
    return Schedule(ranks=n, chunks=n, ports=Incast(1), phases=phases)


class Reliable:
    """TAR over TCP on a group of ranks.

    Args:
        store: as for :class:`Executor`.
        timeout_s, native_waits: as for :class:`Executor`.
        failed: is told once why nothing goes over it any more, before any operation raises that;
            any thread, which must not be held up.

    Attributes:
        executor: that runs it.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout_s: float,
        native_waits: NativeWaits | None = None,
        *,
        failed: Callable[[LatecomerError], None],
    ) -> None:
        self.rank, self.size, self.failed = rank, size, failed
        self.executor = Executor(
            load(transpose(size)),
            store,
            rank,
            size,
            timeout_s=timeout_s,
            native_waits=native_waits,
        )
        self.executor.watchdog.on_failure(failed)

    def submit(self, tensor: torch.Tensor, *, average: bool = False) -> AllReduceWork:
        """Sum or average over the ranks, in place; see :meth:`Executor.submit`."""
        return self.executor.submit(tensor, average=average)

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

    def close(self) -> None:
        """Release threads and connections."""
        self.executor.close()

    def _wait(self, operation: AllReduceWork) -> torch.Tensor:
        # the executor itself gives up within its time; the margin is for a loaded machine
        return operation.wait(timedelta(seconds=2 * self.executor.timeout_s + 10))
