"""How a sum is done again: by the library's own all-reduces, in a group of their own.

All ranks know by then that they have to, so nobody is late. Gloo's operations are ordered within a
group: with one of its own, a repetition may overlap with whatever else the ranks run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.health.native_work import close_connections, reason
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import AllreduceOptions


class Repetition(Protocol):
    """All-reduces that block, of tensors on the host."""

    def maximum(self, tensor: torch.Tensor, operation: int) -> None:
        """The greatest values over all ranks, in place."""

    def total(self, tensor: torch.Tensor, operation: int) -> None:
        """The sum over all ranks, in place."""

    def abort(self) -> None:
        """End every wait."""

    def close(self) -> None:
        """Release the group."""


class RepetitionAlone:
    """Of one rank."""

    def maximum(self, tensor: torch.Tensor, operation: int) -> None:
        """It holds the greatest values."""

    def total(self, tensor: torch.Tensor, operation: int) -> None:
        """It holds the sum."""

    def abort(self) -> None:
        """Nobody waits."""

    def close(self) -> None:
        """There is nothing to release."""


class NativeRepetition:
    """By Gloo, under a watchdog (collective: all ranks make it).

    Where this rank has connected, others may still be connecting, which it must not end by closing:
    see :func:`connect_repetition`.

    ``operation`` is the number of the all-reduce that is repeated. RankFailure is raised when one
    fails: the watchdog's, which names who has failed.
    """

    def __init__(self, group: StoreExchange, watchdog: Watchdog) -> None:
        self._rank = group.rank
        self._size = group.world_size
        self._watchdog = watchdog
        self._waiting: tuple[WaitFor, float] | None = None
        self.moved_s = host.monotonic()
        timeout = timedelta(seconds=group.timeout_s)
        self._gloo: Any = host.gloo(group.store, self._rank, self._size, timeout)
        watchdog.add(self)
        watchdog.on_trouble(self.abort)

    def maximum(self, tensor: torch.Tensor, operation: int) -> None:
        """The greatest values over all ranks, in place."""
        self._run(tensor, dist.ReduceOp.MAX, operation)

    def total(self, tensor: torch.Tensor, operation: int) -> None:
        """The sum over all ranks, in place."""
        self._run(tensor, dist.ReduceOp.SUM, operation)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """What this rank waits for, and since when; a ring waits for the rank before."""
        return self._waiting

    def abort(self) -> None:
        """End every wait, here and on the peers: closes all connections."""
        gloo = self._gloo
        if gloo is not None:
            close_connections(gloo, self._rank, self._size)

    def close(self) -> None:
        """Release the group, in which nobody waits any more."""
        self._gloo = None

    def _run(self, tensor: torch.Tensor, kind: Any, operation: int) -> None:
        options = AllreduceOptions()
        options.reduceOp = kind
        peer = (self._rank - 1) % self._size
        self._waiting = WaitFor(operation, "all-reduce", 0, peer), host.monotonic()
        try:
            self._gloo.allreduce([tensor], options).wait()
        except RuntimeError as error:
            text = f"rank {self._rank} lost the repetition of operation {operation}"
            self._watchdog.fail(f"{text}: {reason(error)}")
            failure = self._watchdog.failure
            if failure is None:  # closed meanwhile
                raise
            raise failure from None
        finally:
            self._waiting = None
            self.moved_s = host.monotonic()


def connect_repetition(group: StoreExchange, watchdog: Watchdog) -> NativeRepetition:
    """All-reduces of a group's ranks, all of which have connected now (collective).

    Raises:
        RankFailure: the watchdog's, which names who has failed; or ranks that did not join within
            the time-out of ``group``.
    """
    try:
        repetition = NativeRepetition(group, watchdog)
    except RuntimeError as error:  # Gloo's, which names no rank
        watchdog.fail(f"rank {group.rank} could not connect for repeated sums: {reason(error)}")
        assert watchdog.failure is not None
        raise watchdog.failure from None

    group.all_gather("connected")  # who closes it now ends nobody's connecting
    return repetition
