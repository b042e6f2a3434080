"""Collectives that run natively: their work handles, and what becomes of a wait for a dead rank.

Gloo and NCCL report a lost peer as a RuntimeError that names no rank, to some ranks at once and to
others at the time-out. Once the group has a watchdog (an all-reduce of ours has run in it), the
ranks are asked for a sign of life when a wait fails or has lasted nearly as long as it may; if some
give none, every rank's wait ends with the RankFailure that names them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Protocol

import torch

from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import host
from latecomer.runtime.torch_versions import Work
from latecomer.verify.errors import LatecomerError

ABORT_TAG = 2**31 - 2  # under which nobody sends


def close_connections(gloo: Any, rank: int, world_size: int) -> None:
    """End every wait in a Gloo group, here and on the peers; only a wait that times out does it."""
    nothing = torch.empty(1)
    peer = (rank + 1) % world_size
    with contextlib.suppress(RuntimeError):
        gloo.recv([nothing], peer, ABORT_TAG).wait(timedelta(milliseconds=1))


def reason(error: RuntimeError) -> str:
    """What Gloo says, without its C++ file and its advice."""
    return str(error).split("] ", 1)[-1].split(". ", 1)[0].split("\n", 1)[0]


class FailureDetector(Protocol):
    """Who knows which ranks live: a watchdog, or an engine that has one."""

    @property
    def failure(self) -> LatecomerError | None:
        """Why the group has failed, if it has."""

    def find_silent(self, noticed: str) -> LatecomerError | None:
        """Ask all ranks for a sign of life; the failure that names those that give none."""


class NativeWaits:
    """The waits of one rank for native collectives of one group; a ``detector`` comes later."""

    def __init__(self, gloo: Any, rank: int, world_size: int) -> None:
        self._gloo = gloo
        self._rank = rank
        self._world_size = world_size
        self._numbers = itertools.count()
        self._began_s: dict[int, float] = {}
        self._looked_s: float | None = None  # when the wait began that has been looked into
        self.detector: FailureDetector | None = None

    def watch(self, watchdog: Watchdog) -> None:
        """Put the waits under watch: each that lasts long is looked into, once."""
        watchdog.suspect(self._overdue, f"rank {self._rank} waits long for a collective")
        watchdog.on_failure(lambda failure: self.abort())

    def abort(self) -> None:
        """End every wait, here and on the peers."""
        gloo = self._gloo
        if gloo is not None:
            close_connections(gloo, self._rank, self._world_size)

    def close(self) -> None:
        """Let go of the Gloo group, whose threads end when nobody has it."""
        self._gloo = None

    def wait(self, wait: Callable[..., Any], *args: Any) -> Any:
        """Call ``wait``; its RuntimeError becomes the RankFailure that is behind it, if any is."""
        number = next(self._numbers)
        self._began_s[number] = host.monotonic()
        try:
            return wait(*args)
        except RuntimeError as error:
            self.diagnose(error)
            raise
        finally:
            del self._began_s[number]

    def diagnose(self, error: RuntimeError) -> None:
        """Raise the RankFailure that is behind an error of the native backend, if one is known."""
        noticed = f"rank {self._rank} lost a collective: {reason(error)}"
        if (detector := self.detector) is None:
            return
        if failure := detector.failure or detector.find_silent(noticed):
            raise failure from error

    def _overdue(self, limit_s: float) -> Collection[int]:
        since_s = min(list(self._began_s.values()), default=None)
        # Once for each wait: if all ranks live, Gloo's own time-out is what ends it.
        if since_s is None or since_s == self._looked_s or host.monotonic() < since_s + limit_s:
            return ()
        self._looked_s = since_s
        return range(self._world_size)


class NativeWork(Work):
    """A native backend's work (Any: incomplete stub); ``finish`` is called once, after it."""

    def __init__(self, work: Any, waits: NativeWaits, finish: Callable[[], None] | None) -> None:
        super().__init__()
        self._work = work
        self._waits = waits
        self._finish = finish
        self._lock = host.Lock()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until done (NCCL: until the current stream waits for it)."""
        done = self._waits.wait(self._work.wait, timeout)
        self._finished()
        return bool(done)

    def synchronize(self) -> None:
        """As :meth:`wait`, without a time limit of its own."""
        self._waits.wait(self._work.synchronize)
        self._finished()

    def is_completed(self) -> bool:
        """Whether the result is there, or has failed."""
        done = bool(self._work.is_completed())
        if done and self._finish is not None and self._work.is_success():
            self._finished()
        return done

    def result(self) -> list[torch.Tensor]:
        """The list of tensors, once they are done."""
        self.wait()
        return list(self._work.result())

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the list of tensors."""

        def result(base: torch.futures.Future[Any]) -> Any:
            value = self._waits.wait(base.value)
            self._finished()
            return value

        future: torch.futures.Future[Any] = self._work.get_future().then(result)
        return future

    def is_success(self) -> bool:
        """Whether the result is there."""
        return self.is_completed() and bool(self._work.is_success())

    def block_current_stream(self) -> None:
        """Let the current stream wait for it, without the host."""
        self._work.block_current_stream()
        self._finished()

    def _finished(self) -> None:
        with self._lock:
            finish = self._finish
            self._finish = None
            if finish is not None:
                finish()


FORWARDED = """
exception source_rank _source_rank get_future_result _get_duration _get_op_type _get_sequence_number
"""
for _name in FORWARDED.split():
    setattr(NativeWork, _name, lambda self, name=_name: getattr(self._work, name)())
