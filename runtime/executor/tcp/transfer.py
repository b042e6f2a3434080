"""One operation on its way through this rank: how far each transfer is, and what may go on.

Every end of a transfer has a count of bytes that are *done*: handed to the kernel (send), or in
place in the tensor (receive: copied, or added). The dependencies of
``latecomer.runtime.executor.program`` are inequalities between these counts. What arrives before
its place is free waits in buffers, as much as there is credit for. Torch adds piece by piece, while
the data is in the cache.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque

import torch

from latecomer.runtime.executor.tcp.frames import CREDIT, Header, Sizes
from latecomer.runtime.executor.tcp.priority import Priority, priority_of
from latecomer.runtime.host import host
from latecomer.runtime.work import CollectiveWork, Observer

ALIGN = 16  # bytes: a multiple of every element's size
PIECE = 1024 * 1024  # bytes that wait together: few enough to be in the cache when they are added


class PieceBuffer:
    """Memory for a piece of a frame: ``filled`` bytes have come, ``used`` of them are in place."""

    __slots__ = ("data", "filled", "memory", "size", "used")

    def __init__(self) -> None:
        self.data = torch.empty(PIECE, dtype=torch.uint8)
        self.memory = self.data.numpy().data
        self.size = 0
        self.filled = 0
        self.used = 0

    def rewind(self) -> None:
        """Begin again in the cached start of the memory if at most part of an element waits."""
        unused = self.filled - self.used
        if unused < ALIGN <= self.used:
            self.memory[:unused] = self.memory[self.used : self.filled]
            self.size -= self.used
            self.filled = unused
            self.used = 0


class TransferState:
    """The progress of one operation: bytes for each of ``program.ends``, ends that are ``left``."""

    def __init__(
        self, work: CollectiveWork, spare: list[PieceBuffer], observer: Observer, sizes: Sizes
    ) -> None:
        program = work.program
        assert program is not None
        self.work = work
        self.program = program
        self.number = work.number
        self.priority = priority_of(work)
        digest = hashlib.blake2b(work.description.encode(), digest_size=8).digest()
        self.digest = int.from_bytes(digest, "little")
        self.moved_s = host.monotonic()
        self._spare = spare
        self._sizes = sizes
        # The base class does nothing: no calls for it with every piece.
        self._observer = None if type(observer) is Observer else observer
        self._flat = work.flat
        self._item = work.flat.element_size()
        self._memory = work.flat.view(torch.uint8).numpy().data

        # by position in ``program.ends``, in bytes
        bounds = [bound * self._item for bound in work.bounds]
        self._begin = [bounds[end.chunk] for end in program.ends]
        self.size = [bounds[end.chunk + 1] - bounds[end.chunk] for end in program.ends]
        self.done = [0] * len(program.ends)
        self.credit = [0] * len(program.ends)
        self.needs_credit = self.priority is not Priority.SMALL
        if not self.needs_credit:
            self.credit = list(self.size)
        self.arrived = [0] * len(program.ends)

        self.left = sum(map(bool, self.size))
        self._front = [0] * len(program.receives)  # see receives_left
        self._stash: dict[int, deque[PieceBuffer]] = defaultdict(deque)
        self._step_left = [0] * len(program.steps)
        self._begun = [False] * len(program.steps)
        for end, size in zip(program.ends, self.size, strict=True):
            self._step_left[end.step] += size > 0
        if self._observer is None:
            return
        for step, left in enumerate(self._step_left):
            if not left:  # all its chunks are empty, so nothing will ever begin or end it
                observer.step_begins(self.number, *program.steps[step])
                observer.step_ends(self.number, *program.steps[step])

    def needs(self, peer: int) -> bool:
        """Something must still go to ``peer`` or come from it."""
        for i, end in enumerate(self.program.ends):
            moved = self.done[i] if end.send else self.arrived[i]
            if end.peer == peer and moved < self.size[i]:
                return True
        return False

    def receives_left(self, phase: int) -> tuple[int, ...]:
        """The receives of a phase from the first that is not complete on."""
        receives = self.program.receives[phase]
        front = self._front[phase]
        while front < len(receives) and self.done[receives[front]] == self.size[receives[front]]:
            front += 1
        self._front[phase] = front
        return receives[front:]

    def limit(self, i: int) -> int:
        """Up to which byte end ``i`` may go, as far as this rank's own data is concerned."""
        after = self.program.ends[i].after
        if not after:
            return self.size[i]
        done = self.done
        # mostly one, and this is asked for every piece
        return done[after[0]] if len(after) == 1 else min(done[j] for j in after)

    def sendable(self, i: int) -> int:
        """How many bytes of send ``i`` are the next frame: whole elements; 0 if it must wait."""
        done = self.done[i]
        credit = self.credit[i]
        size = self.size[i]
        upto = min(credit, self.limit(i))
        length = min(upto - done, self._sizes.frame)
        if done + length < size:
            length -= length % ALIGN
            if length < self._sizes.wake and upto < credit:
                return 0  # more comes soon: so little is not worth waking the receiver for
        return length

    def piece(self, i: int, length: int) -> memoryview:
        """The next ``length`` bytes to send of end ``i``."""
        begin = self._begin[i] + self.done[i]
        return self._memory[begin : begin + length]

    def landing(self, i: int, left: int) -> memoryview:
        """Where the next bytes of receive ``i`` go, at most ``left``, those of its frame."""
        stash = self._stash[i]
        if not stash and not self.program.ends[i].reduce:
            done = self.done[i]
            room = min(left, self.limit(i) - done)
            if room > 0:
                begin = self._begin[i] + done
                return self._memory[begin : begin + room]
        if not stash or stash[-1].filled == stash[-1].size:
            buffer = self._spare.pop() if self._spare else PieceBuffer()
            buffer.size = min(left, PIECE)
            buffer.filled = 0
            buffer.used = 0
            stash.append(buffer)
        buffer = stash[-1]
        return buffer.memory[buffer.filled : buffer.size]

    def landed(self, i: int, length: int) -> None:
        """So many bytes have been read to where :meth:`landing` said."""
        self.arrived[i] += length
        stash = self._stash.get(i)
        if stash:
            stash[-1].filled += length
            self._fold(i, stash)
        else:
            self.advance(i, length)

    def advance(self, i: int, length: int) -> None:
        """So many more bytes of end ``i`` are done."""
        self.moved_s = host.monotonic()
        self.done[i] = done = self.done[i] + length
        for j in self.program.waiting[i]:
            if stash := self._stash.get(j):
                self._fold(j, stash)
        if done == self.size[i]:
            self.left -= 1
            step = self.program.ends[i].step
            self._step_left[step] -= 1
            if self._observer and not self._step_left[step]:
                self._observer.step_ends(self.number, *self.program.steps[step])

    def touch(self, i: int) -> None:
        """Bytes of end ``i`` are about to move: tell the observer if they are its step's first."""
        step = self.program.ends[i].step
        if self._observer and not self._begun[step]:
            self._begun[step] = True
            self._observer.step_begins(self.number, *self.program.steps[step])

    def _fold(self, i: int, stash: deque[PieceBuffer]) -> None:
        """Put waiting bytes into the tensor as far as receive ``i`` may go."""
        reduce = self.program.ends[i].reduce
        item = self._item
        begin = self._begin[i]
        limit = self.limit(i)
        done = self.done[i]
        while stash:
            buffer = stash[0]
            used = buffer.used
            length = min(buffer.filled - used, limit - done)
            if reduce:
                length -= length % item
            if length <= 0:
                break
            low = begin + done
            high = begin + done + length
            if reduce:
                received = buffer.data[used : used + length].view(self._flat.dtype)
                self._flat[low // item : high // item].add_(received)
            else:
                self._memory[low:high] = buffer.memory[used : used + length]
            buffer.used = used + length
            done += length
            if buffer.used == buffer.size:
                self._spare.append(stash.popleft())
            else:
                buffer.rewind()
        if done > self.done[i]:
            self.advance(i, done - self.done[i])


class EarlyFrame:
    """A credit, or data of a small operation, that this rank has not come to: kept until it has.

    ``header``: peer, transfer, operation, offset, length and digest.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.peer, transfer, _, _, length, _ = header
        self.is_credit = transfer & CREDIT != 0
        self._memory = memoryview(bytearray(length))
        self._filled = 0
        self._receiver: tuple[TransferState, int] | None = None  # once this rank has come to it

    def landing(self, i: int, left: int) -> memoryview:
        """Where its next bytes go."""
        return self._memory[self._filled :]

    def landed(self, i: int, length: int) -> None:
        """So many bytes have been read to there."""
        self._filled += length
        self._pass_on()

    def pass_to(self, state: TransferState, i: int) -> None:
        """This rank has come to the operation: its receive ``i`` gets the data once it is whole."""
        self._receiver = state, i
        self._pass_on()

    def _pass_on(self) -> None:
        if self._receiver is None or self._filled < len(self._memory):
            return
        state, i = self._receiver
        left = self._memory
        while left:
            landing = state.landing(i, len(left))
            landing[:] = left[: len(landing)]
            state.landed(i, len(landing))
            left = left[len(landing) :]
