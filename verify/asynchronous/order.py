"""What must come before what: the graph of waits, and whether it has a cycle.

A program is unrolled into *events*, one for each message (a step of many chunks is several), one
for a step without messages. An event waits for

- the event before it in its block;
- where it receives message k of a FIFO: the event that sends message k;
- where it sends message k of a FIFO with d slots: the event that receives message k - d;
- where its step waits for a counter: the last event of the first step that raises it so far.

Messages travel chunk by chunk: a receiver uses the first chunk before the last has been sent. That
makes no difference to whether a program ends, but to what comes before what. So events can be
single chunks, too; then the first chunk of message k waits for the last one of message k - d.

All of these are known before anything runs, because FIFOs have one block at each end and counters
are raised by one block. An event can happen exactly when all that it waits for have happened, and
nothing takes that back. So one run decides: if it ends, every run ends; if it gets stuck, every run
gets stuck at the same events, and these contain a cycle or a wait for what nobody does
(proofs/coq/ThreadBlocksRuns.v; for cycles proofs/coq/Asynchronous.v).

Splitting finer can only add waits: if a program is free of deadlock with at most m chunks a
message, it is so with any larger m (docs/explanation/msccl.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import cached_property
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from verify.asynchronous.model import NONE, Block, IntArray, Program, Step

NEVER = -1
"""Instead of an event: what is waited for is done nowhere."""


class Flat:
    """All steps of a program in one row, with what each wait comes down to.

    Attributes:
        steps, block: the steps, block after block, and whose they are.
        waits: (waiting step, step that ends the wait or ``NEVER``), by index into ``steps``.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.blocks: tuple[Block, ...] = program.blocks
        self.steps: list[Step] = list(chain.from_iterable(b.steps for b in program.blocks))
        lengths = [len(block.steps) for block in program.blocks]
        self.first = [0, *accumulate(lengths)]
        self.block: IntArray = np.repeat(np.arange(len(lengths)), lengths)
        self.count: IntArray = np.array([s.count for s in self.steps], np.int64)
        self.receives: IntArray = np.array([s.receives for s in self.steps], np.int64)
        self.sends: IntArray = np.array([s.sends for s in self.steps], np.int64)
        self.largest = program.largest
        raised: dict[int, tuple[list[int], list[int]]] = {}
        for index, step in enumerate(self.steps):
            for counter, value in step.signals:
                values, where = raised.setdefault(counter, ([], []))
                if not values or value > values[-1]:
                    values.append(value)
                    where.append(index)
        self.waits: list[tuple[int, int]] = []
        for index, step in enumerate(self.steps):
            for counter, value in step.waits:
                values, where = raised.get(counter, ([], []))
                at = bisect_left(values, value)
                self.waits.append((index, where[at] if at < len(values) else NEVER))

    def describe(self, index: int) -> str:
        """A step as people find it in its file."""
        block = self.blocks[int(self.block[index])]
        step = self.steps[index]
        return f"rank {block.rank} {block.name} step {step.place}: {step.text}"


class Events:
    """The events of a program whose messages have at most ``limit`` chunks.

    Args:
        by_chunk: whether each chunk of a message is an event; else each message is.
        backwards: whether the events of a step come with its last chunk first; no slots are
            counted then.

    Attributes:
        per_event: chunks of a message that one event moves, at most.
        low: per event, the first chunk of its step that it moves.
        step, part: whose event it is, and which part of the step's messages.
        first, last: per step, its events.
        sent, taken: per FIFO, the events that send, and those that receive.
    """

    def __init__(
        self, flat: Flat, limit: int, *, by_chunk: bool = False, backwards: bool = False
    ) -> None:
        self.flat = flat
        self.limit = limit
        self.per_event = 1 if by_chunk else limit
        messages = (flat.receives != NONE) | (flat.sends != NONE)
        parts = np.where(messages, np.maximum(1, -(-flat.count // self.per_event)), 1)
        ends = np.cumsum(parts)
        self.first: IntArray = ends - parts
        self.last: IntArray = ends - 1
        self.step: IntArray = np.repeat(np.arange(len(parts)), parts)
        self.part: IntArray = np.arange(len(self.step)) - self.first[self.step]
        turn = (parts[self.step] - 1 - self.part) if backwards else self.part
        self.low: IntArray = turn * self.per_event
        self.block: IntArray = flat.block[self.step]
        self.sent = self._of_fifos(flat.sends)
        self.taken = self._of_fifos(flat.receives)

    def _of_fifos(self, fifo_of_step: IntArray) -> list[IntArray]:
        fifo = np.where(self.flat.count > 0, fifo_of_step, NONE)[self.step]
        order = np.argsort(fifo, kind="stable")
        cuts = np.searchsorted(fifo[order], np.arange(len(self.flat.program.fifos) + 1))
        return [order[a:b] for a, b in pairwise(cuts.tolist())]

    def __len__(self) -> int:
        return len(self.step)

    def span(self, event: int) -> tuple[int, int]:
        """The chunks of its step that the event moves: from, up to (not included)."""
        step = int(self.step[event])
        count = int(self.flat.count[step])
        if self.first[step] == self.last[step]:
            return 0, count
        low = int(self.low[event])
        return low, min(low + self.per_event, count)

    def _opens(self, events: IntArray) -> NDArray[np.bool_]:
        """Which events move the first chunk of a message."""
        first_chunk: IntArray = self.part[events] * self.per_event
        return np.equal(first_chunk % self.limit, 0)

    def _closes(self, events: IntArray) -> NDArray[np.bool_]:
        """Which events move the last chunk of a message."""
        next_chunk: IntArray = (self.part[events] + 1) * self.per_event
        ends_a_message = np.equal(next_chunk % self.limit, 0)
        ends_its_step = np.equal(self.last[self.step[events]], events)
        return np.logical_or(ends_a_message, ends_its_step)

    def waits(self, slots: int | None) -> tuple[IntArray, IntArray, IntArray]:
        """Pairs (earlier, later) of events, and the events that wait for what nobody does.

        The order of each block is not in it.
        """
        before = []
        after = []
        never = []
        for sent, taken in zip(self.sent, self.taken, strict=True):
            both = min(len(sent), len(taken))
            before.append(sent[:both])
            after.append(taken[:both])
            never.append(taken[both:])
            if slots is not None:
                opening = sent[self._opens(sent)]
                freed = taken[self._closes(taken)][: max(0, len(opening) - slots)]
                before.append(freed)
                after.append(opening[slots : slots + len(freed)])
                never.append(opening[slots + len(freed) :])
        flags = np.array(self.flat.waits, np.int64).reshape(-1, 2)
        known = flags[flags[:, 1] != NEVER]
        before.append(self.last[known[:, 1]])
        after.append(self.first[known[:, 0]])
        never.append(self.first[flags[flags[:, 1] == NEVER, 0]])
        return np.concatenate(before), np.concatenate(after), np.concatenate(never)


class Run:
    """One run of all events as far as it gets, which decides about all runs.

    Attributes:
        sequence: the events that happen, in an order in which they can.
    """

    def __init__(self, events: Events, slots: int | None) -> None:
        self.events = events
        self.slots = slots
        self.before, self.after, self.never = events.waits(slots)
        follows = np.flatnonzero(events.block[1:] == events.block[:-1])
        self.sequence = topological(
            len(events),
            np.concatenate([self.before, follows]),
            np.concatenate([self.after, follows + 1]),
            self.never,
        )

    @property
    def ends(self) -> bool:
        """Whether everything happens."""
        return len(self.sequence) == len(self.events)

    @cached_property
    def happened(self) -> set[int]:
        """The events of ``sequence``."""
        return set(self.sequence)


def topological(size: int, before: IntArray, after: IntArray, never: IntArray) -> list[int]:
    """As many of ``size`` events as can happen, each after all that it waits for."""
    missing = np.bincount(after, minlength=size)
    np.add.at(missing, never, 1)
    order = np.argsort(before, kind="stable")
    cuts = np.searchsorted(before[order], np.arange(size + 1)).tolist()
    freed = after[order].tolist()
    left = missing.tolist()
    ready = deque(np.flatnonzero(missing == 0).tolist())
    sequence = []
    while ready:
        event = ready.popleft()
        sequence.append(event)
        for later in freed[cuts[event] : cuts[event + 1]]:
            left[later] -= 1
            if not left[later]:
                ready.append(later)
    return sequence


def ends_with_rendezvous(events: Events) -> bool:
    """Whether all ends if a send is over only when it is received (FIFOs without any slot).

    Each message is one event of both its blocks; a step that receives and sends does one, then the
    other.
    """
    plain = np.arange(len(events))
    taken = plain.copy()
    sent = plain.copy()
    size = len(events)
    for sends, receives in zip(events.sent, events.taken, strict=True):
        if len(sends) != len(receives):
            return False
        sent[sends] = taken[receives] = size + np.arange(len(sends))
        size += len(sends)
    begins = np.where(taken != plain, taken, sent)
    over = np.where(sent != plain, sent, taken)
    both = np.flatnonzero((taken != plain) & (sent != plain))
    follows = np.flatnonzero(events.block[1:] == events.block[:-1])
    flags = np.array(events.flat.waits, np.int64).reshape(-1, 2)
    known = flags[flags[:, 1] != NEVER]
    never = begins[events.first[flags[flags[:, 1] == NEVER, 0]]]
    before = [over[follows], begins[both], over[events.last[known[:, 1]]]]
    after = [begins[follows + 1], over[both], begins[events.first[known[:, 0]]]]
    return len(topological(size, np.concatenate(before), np.concatenate(after), never)) == size
