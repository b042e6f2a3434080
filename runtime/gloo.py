"""Moving chunks of CPU tensors over Gloo, each rank at its own pace.

Source of the order: the plan (``runtime.plan``). There is no barrier between rounds: receives are
posted ahead, a send starts as soon as its step comes, and is waited for only when its chunk is
about to change or the phase ends. Receives are always posted before sends: Gloo moves the two
directions of an exchange one after the other when both sides send first.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from runtime.blame import Waiting
from runtime.operation import Observer, Operation, PeerLost
from runtime.plan import Receive, Send
from verify.schedule import Schedule

MAX_TAG = 2**31 - 2
NEVER = timedelta(days=365)


class GlooMover:
    """A Gloo process group of its own, and how a phase runs on it.

    Safe to use from several threads for different operations or phases: every message has a tag
    of its own.
    """

    asynchronous = False
    """A phase is over when :meth:`run` returns."""

    def __init__(
        self, store: Store, rank: int, size: int, schedules: Sequence[Schedule], timeout_s: float
    ) -> None:
        self._transfers = max(len(schedule.table) for schedule in schedules)
        self._rank, self._size = rank, size
        connecting = timedelta(seconds=timeout_s)
        # Any: the stubs give backends no send and recv
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, connecting)

    def submitted(self, operation: Operation) -> None:
        """CPU data is there when it is submitted: nothing to note."""

    def run(
        self,
        lane: int,
        operation: Operation,
        observer: Observer,
        waits: Callable[[Waiting | None], None],
    ) -> None:
        """Run this rank's part of phase ``lane`` on ``operation``.

        Args:
            waits: is told what this thread waits for, and ``None`` when it no longer does.

        Raises:
            PeerLost: the connection to a peer, or all of them, closed during a wait.
        """
        _Run(self, lane, operation, observer, waits).run()

    def divide(self, operation: Operation, divisor: int) -> None:
        """Divide this rank's data, before the first phase."""
        operation.flat.div_(divisor)

    def drain(self, operation: Operation) -> None:
        """Everything has been waited for already."""

    def abort(self) -> None:
        """End every wait of this rank and of its peers for it: closes all connections.

        Gloo closes all pairs of a group when a point-to-point wait times out, and has no other
        call that does (``abort`` leaves waits blocked).
        """
        nothing, peer = torch.empty(1), (self._rank + 1) % self._size
        with contextlib.suppress(RuntimeError):
            self._group.recv([nothing], peer, MAX_TAG).wait(timedelta(milliseconds=1))

    def close(self) -> None:
        """Release the group."""
        del self._group

    def send(self, operation: Operation, send: Send) -> dist.Work:
        """Start a send."""
        tag = self._tag(operation, send.index)
        work: dist.Work = self._group.send([operation.chunk(send.chunk)], send.peer, tag)
        return work

    def receive(self, operation: Operation, receive: Receive, into: torch.Tensor) -> dist.Work:
        """Post a receive into ``into``."""
        work: dist.Work = self._group.recv(
            [into], receive.peer, self._tag(operation, receive.index)
        )
        return work

    def wait(self, work: dist.Work) -> None:
        """Wait until it is done or connections close: then RuntimeError."""
        work.wait(NEVER)

    def _tag(self, operation: Operation, index: int) -> int:
        return (operation.number * self._transfers + index) % MAX_TAG


class _Run:
    """One phase of one operation in progress on this rank."""

    def __init__(
        self,
        mover: GlooMover,
        lane: int,
        operation: Operation,
        observer: Observer,
        waits: Callable[[Waiting | None], None],
    ) -> None:
        self.mover, self.phase, self.operation = mover, operation.plans[lane], operation
        self.observer, self.waits = observer, waits
        self.arriving: dict[int, tuple[dist.Work, torch.Tensor]] = {}  # by transfer index
        self.leaving: defaultdict[int, list[tuple[Send, dist.Work, int]]] = defaultdict(list)
        self.spare: list[torch.Tensor] = []

    def run(self) -> None:
        operation, name = self.operation, self.phase.name
        for step, posts in zip(self.phase.steps, self.phase.posts, strict=True):
            self.observer.step_begins(operation.number, name, step.round)
            for receive in posts:
                self._post(receive)
            for send in step.sends:
                if operation.chunk(send.chunk).numel():
                    work = self.mover.send(operation, send)
                    self.leaving[send.chunk].append((send, work, step.round))
            for receive in step.receives:
                self._absorb(receive, step.round)
            self.observer.step_ends(operation.number, name, step.round)
        for chunk in list(self.leaving):
            self._until_sent(chunk)

    def _post(self, receive: Receive) -> None:
        into = self.operation.chunk(receive.chunk)
        if not into.numel():
            return
        if receive.scratch:
            into = self._scratch(into)
        else:
            self._until_sent(receive.chunk)
        self.arriving[receive.index] = self.mover.receive(self.operation, receive, into), into

    def _absorb(self, receive: Receive, round: int) -> None:
        if receive.index not in self.arriving:
            return
        work, landed = self.arriving.pop(receive.index)
        self._wait(work, receive.peer, round)
        if receive.scratch:
            self._until_sent(receive.chunk)
            chunk = self.operation.chunk(receive.chunk)
            if receive.reduce:
                chunk.add_(landed)
            else:
                chunk.copy_(landed)
            self.spare.append(landed)

    def _scratch(self, like: torch.Tensor) -> torch.Tensor:
        for position, buffer in enumerate(self.spare):
            if buffer.numel() == like.numel():
                return self.spare.pop(position)
        return torch.empty_like(like)

    def _until_sent(self, chunk: int) -> None:
        for send, work, round in self.leaving.pop(chunk, ()):
            self._wait(work, send.peer, round)

    def _wait(self, work: dist.Work, peer: int, round: int) -> None:
        waiting = Waiting(self.operation.number, self.phase.name, round, peer)
        self.waits(waiting)
        try:
            self.mover.wait(work)
        except RuntimeError as error:
            detail = str(error).split("] ", 1)[-1].split(". ", 1)[0]  # without C++ file, advice
            raise PeerLost(waiting, detail) from None
        self.waits(None)
