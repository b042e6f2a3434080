"""One operation on its way through this rank: how far each move is, and what may go on.

Every move has a count of bytes that are *done*: handed to the kernel (send), or in place in the
tensor (receive: copied, or added). The dependencies of ``runtime.executor.tcp.ends`` are
inequalities between these counts. What arrives before its place is free waits in buffers; how much
that can be is bounded by the grants.

Sums are formed frame by frame, while the data is in the cache, by torch's own kernels.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque

import torch

from runtime.executor.operation import Observer, Operation
from runtime.executor.tcp.ends import RankProgram
from runtime.executor.tcp.sizes import LARGEST_FRAME, Sizes

ALIGN = 16  # bytes: a multiple of every element's size


class Buffer:
    """Memory for one frame's data: ``filled`` bytes have arrived, ``used`` of them are in place."""

    __slots__ = ("_data", "_typed", "filled", "memory", "size", "used")

    def __init__(self) -> None:
        self._data = torch.empty(LARGEST_FRAME, dtype=torch.uint8)
        self._typed: dict[torch.dtype, torch.Tensor] = {}
        self.memory = self._data.numpy().data
        self.size = self.filled = self.used = 0

    def elements(self, dtype: torch.dtype) -> torch.Tensor:
        """The same memory as elements."""
        if dtype not in self._typed:
            self._typed[dtype] = self._data.view(dtype)
        return self._typed[dtype]

    def rewind(self) -> None:
        """Begin again at the start of the memory, which is still in the cache, where nothing waits.

        At most part of an element is left, where all that has arrived and has a place is in it.
        """
        rest = self.filled - self.used
        if rest < ALIGN <= self.used:
            self.memory[:rest] = self.memory[self.used : self.filled]
            self.size -= self.used
            self.filled, self.used = rest, 0


class TransferState:
    """The progress of one operation.

    Attributes:
        size, done, granted, arrived: bytes, per move.
        left: moves that are not complete.
        moved_s: ``time.monotonic()`` when the last byte moved.
    """

    def __init__(
        self,
        operation: Operation,
        plan: RankProgram,
        spare: list[Buffer],
        observer: Observer,
        sizes: Sizes,
    ) -> None:
        self.operation, self.plan = operation, plan
        digest = hashlib.blake2b(operation.description.encode(), digest_size=8).digest()
        self.digest = int.from_bytes(digest, "little")
        self.number = operation.number
        self.moved_s = time.monotonic()
        self._spare, self._sizes = spare, sizes
        self._observer = None if type(observer) is Observer else observer
        self._flat, self._item = operation.flat, operation.flat.element_size()
        self._memory = operation.flat.view(torch.uint8).numpy().data
        bounds = operation.bounds
        self._begin = [bounds[move.chunk] * self._item for move in plan.all]
        self.size = [
            (bounds[move.chunk + 1] - bounds[move.chunk]) * self._item for move in plan.all
        ]
        self.done = [0] * len(plan.all)
        self.granted = [0] * len(plan.all)
        self.arrived = [0] * len(plan.all)
        self.left = sum(map(bool, self.size))
        self._front = [0] * len(plan.lanes)  # see receives_left
        self._stash: dict[int, deque[Buffer]] = {}
        self._step_left = [0] * len(plan.steps)
        self._begun = [False] * len(plan.steps)
        for move, size in zip(plan.all, self.size, strict=True):
            self._step_left[move.step] += size > 0
        if self._observer:
            for step, left in enumerate(self._step_left):
                if not left:
                    self._observer.step_begins(self.number, *plan.steps[step])
                    self._observer.step_ends(self.number, *plan.steps[step])

    def needs(self, peer: int) -> bool:
        """Something must still go to ``peer`` or come from it."""
        return any(
            move.peer == peer and (self.done[i] if move.send else self.arrived[i]) < self.size[i]
            for i, move in enumerate(self.plan.all)
        )

    def receives_left(self, lane: int) -> tuple[int, ...]:
        """The receives of a lane from the first that is not complete on."""
        receives = self.plan.lanes[lane]
        front = self._front[lane]
        while front < len(receives) and self.done[receives[front]] == self.size[receives[front]]:
            front += 1
        self._front[lane] = front
        return receives[front:]

    def limit(self, i: int) -> int:
        """Up to which byte move ``i`` may go, as far as this rank's own data is concerned."""
        after = self.plan.all[i].after
        if not after:
            return self.size[i]
        done = self.done
        return done[after[0]] if len(after) == 1 else min(done[j] for j in after)

    def sendable(self, i: int) -> int:
        """How many bytes of send ``i`` make up the next frame; 0 if it has to wait.

        Frames begin at whole elements. A frame is not cut short for lack of data that is on its
        way, unless a good part of it is there.
        """
        done, granted, size = self.done[i], self.granted[i], self.size[i]
        upto = min(granted, self.limit(i))
        length = min(upto - done, self._sizes.frame)
        if done + length < size:
            length -= length % ALIGN
            if length < self._sizes.wake and upto < granted:
                return 0
        return length

    def piece(self, i: int, length: int) -> memoryview:
        """The next ``length`` bytes to send of move ``i``."""
        begin = self._begin[i] + self.done[i]
        return self._memory[begin : begin + length]

    def landing(self, i: int, left: int) -> memoryview:
        """Where the next bytes of receive ``i`` go, at most ``left``, those of its frame."""
        stash = self._stash.get(i)
        if not stash and not self.plan.all[i].reduce:
            done = self.done[i]
            room = min(left, self.limit(i) - done)
            if room > 0:
                begin = self._begin[i] + done
                return self._memory[begin : begin + room]
        if stash is None:
            stash = self._stash[i] = deque()
        if not stash or stash[-1].filled == stash[-1].size:
            buffer = self._spare.pop() if self._spare else Buffer()
            buffer.size, buffer.filled, buffer.used = left, 0, 0
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
        """So many more bytes of move ``i`` are done."""
        self.moved_s = time.monotonic()
        self.done[i] = done = self.done[i] + length
        for j in self.plan.waiting[i]:
            if stash := self._stash.get(j):
                self._fold(j, stash)
        if done == self.size[i]:
            self.left -= 1
            step = self.plan.all[i].step
            self._step_left[step] -= 1
            if self._observer and not self._step_left[step]:
                self._observer.step_ends(self.number, *self.plan.steps[step])

    def touch(self, i: int) -> None:
        """Bytes of move ``i`` are about to move: tell the observer if they are its step's first."""
        step = self.plan.all[i].step
        if self._observer and not self._begun[step]:
            self._begun[step] = True
            self._observer.step_begins(self.number, *self.plan.steps[step])

    def _fold(self, i: int, stash: deque[Buffer]) -> None:
        """Put waiting bytes into the tensor as far as receive ``i`` may go."""
        reduce, item = self.plan.all[i].reduce, self._item
        begin, limit, done = self._begin[i], self.limit(i), self.done[i]
        while stash:
            buffer = stash[0]
            used = buffer.used
            length = min(buffer.filled - used, limit - done)
            if reduce:
                length -= length % item
            if length <= 0:
                break
            low, high = begin + done, begin + done + length
            if reduce:
                come = buffer.elements(self._flat.dtype)[used // item : (used + length) // item]
                self._flat[low // item : high // item].add_(come)
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
