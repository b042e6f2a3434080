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
message, it is so with any larger m (proofs/paper/thread-blocks.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from functools import cached_property
from itertools import accumulate, chain, pairwise

import numpy as np
from numpy.typing import NDArray

from latecomer.verify.asynchronous.model import NONE, Block, BlockProgram, IntArray, Step

NEVER = -1
"""Instead of an event: what is waited for is done nowhere."""


class FlatProgram:
    """All steps of a program in one row, with what each wait comes down to.

    Attributes:
        steps: of all blocks, block after block; below, a step is an index into it.
        first: per block its first step, and at the end the number of steps.
        block, count, receives, sends: per step: its block, and what ``Step`` says of it.
        largest: chunks of the largest step that sends or receives; at least 1.
        waits: (waiting step, step that ends the wait or ``NEVER``).
    """

    def __init__(self, program: BlockProgram) -> None:
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
        self.waits = self._waits()

    def _waits(self) -> list[tuple[int, int]]:
        """Every wait for a counter, with the first step that raises the counter so far."""
        # Per counter: the values that it is raised to, rising, and the first step that does so.
        raised: dict[int, tuple[list[int], list[int]]] = {}
        for index, step in enumerate(self.steps):
            for counter, value in step.signals:
                values, raising_steps = raised.setdefault(counter, ([], []))
                if not values or value > values[-1]:
                    values.append(value)
                    raising_steps.append(index)

        waits: list[tuple[int, int]] = []
        for index, step in enumerate(self.steps):
            for counter, value in step.waits:
                values, raising_steps = raised.get(counter, ([], []))
                first_enough = bisect_left(values, value)
                if first_enough < len(values):
                    waits.append((index, raising_steps[first_enough]))
                else:
                    waits.append((index, NEVER))
        return waits

    def describe(self, index: int) -> str:
        """A step as people find it in its file."""
        block = self.blocks[int(self.block[index])]
        step = self.steps[index]
        return f"rank {block.rank} {block.name} step {step.position}: {step.text}"


class Events:
    """The events of a program whose messages have at most ``limit`` chunks.

    Args:
        by_chunk: whether each chunk of a message is an event; else each message is.
        backwards: whether the events of a step come with its last chunk first; no slots are
            counted then.

    Attributes:
        per_event: chunks of a message that one event moves, at most.
        step, block: per event, whose it is.
        part: per event, which part of its step's messages it is, from 0.
        low: per event, the first chunk of its step that it moves.
        first, last: per step, its events.
        sent, received: per FIFO, the events that send, and those that receive, in order.
    """

    def __init__(
        self, flat: FlatProgram, limit: int, *, by_chunk: bool = False, backwards: bool = False
    ) -> None:
        self.flat = flat
        self.limit = limit
        self.per_event = 1 if by_chunk else limit

        # A step that neither sends nor receives is one event, however many chunks it has.
        has_messages = (flat.receives != NONE) | (flat.sends != NONE)
        parts_of_count = np.maximum(1, -(-flat.count // self.per_event))  # rounded up
        parts = np.where(has_messages, parts_of_count, 1)
        ends = np.cumsum(parts)
        self.first: IntArray = ends - parts
        self.last: IntArray = ends - 1

        self.step: IntArray = np.repeat(np.arange(len(parts)), parts)
        self.block: IntArray = flat.block[self.step]
        self.part: IntArray = np.arange(len(self.step)) - self.first[self.step]
        part_moved = (parts[self.step] - 1 - self.part) if backwards else self.part
        self.low: IntArray = part_moved * self.per_event

        self.sent = self._of_fifos(flat.sends)
        self.received = self._of_fifos(flat.receives)

    def _of_fifos(self, fifo_of_step: IntArray) -> list[IntArray]:
        """Per FIFO, the events of the steps that have it; a step of no chunks has no messages."""
        fifo = np.where(self.flat.count > 0, fifo_of_step, NONE)[self.step]
        by_fifo = np.argsort(fifo, kind="stable")
        starts = np.searchsorted(fifo[by_fifo], np.arange(len(self.flat.program.fifos) + 1))
        return [by_fifo[start:end] for start, end in pairwise(starts.tolist())]

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
        for sent, received in zip(self.sent, self.received, strict=True):
            messages = min(len(sent), len(received))
            before.append(sent[:messages])
            after.append(received[:messages])
            never.append(received[messages:])

            if slots is not None:
                opening = sent[self._opens(sent)]
                freeing = self._closes(received)
                freed = received[freeing][: max(0, len(opening) - slots)]
                before.append(freed)
                after.append(opening[slots : slots + len(freed)])
                never.append(opening[slots + len(freed) :])

        ended, unended = self.flag_waits()
        before.append(self.last[ended[:, 1]])
        after.append(self.first[ended[:, 0]])
        never.append(self.first[unended])
        return np.concatenate(before), np.concatenate(after), np.concatenate(never)

    def flag_waits(self) -> tuple[IntArray, IntArray]:
        """Waits for counters: rows (waiting step, raising step); steps that wait for nobody."""
        waits = np.array(self.flat.waits, np.int64).reshape(-1, 2)
        unended = waits[:, 1] == NEVER
        return waits[~unended], waits[unended, 0]

    def followed(self) -> IntArray:
        """The events that another one of the same block follows: the next event."""
        return np.flatnonzero(self.block[1:] == self.block[:-1])


class Run:
    """One run of all events as far as it gets, which decides about all runs.

    Attributes:
        before, after: waits: ``before[i]`` comes before ``after[i]``; see ``Events.waits``.
        never: events that wait for what nobody does.
        sequence: the events that happen, in an order in which they can.
    """

    def __init__(self, events: Events, slots: int | None) -> None:
        self.events = events
        self.slots = slots
        self.before, self.after, self.never = events.waits(slots)
        followed = events.followed()
        self.sequence = topological(
            len(events),
            before=np.concatenate([self.before, followed]),
            after=np.concatenate([self.after, followed + 1]),
            never=self.never,
        )

    @property
    def ends(self) -> bool:
        """Whether everything happens."""
        return len(self.sequence) == len(self.events)

    @cached_property
    def happened(self) -> set[int]:
        """The events of ``sequence``."""
        return set(self.sequence)


def topological(events: int, before: IntArray, after: IntArray, never: IntArray) -> list[int]:
    """As many events as can happen, each after all that it waits for.

    Args:
        events: how many there are, numbered from 0.
        before, after: waits: ``before[i]`` comes before ``after[i]``.
        never: events that wait for what nobody does.
    """
    waits_of_event = np.bincount(after, minlength=events)
    np.add.at(waits_of_event, never, 1)

    # Row e of a table: the events that wait for event e. A table of lists would be slower.
    by_earlier = np.argsort(before, kind="stable")
    starts = np.searchsorted(before[by_earlier], np.arange(events + 1)).tolist()
    waiting = after[by_earlier].tolist()

    pending_waits = waits_of_event.tolist()
    ready = deque(np.flatnonzero(waits_of_event == 0).tolist())
    sequence = []
    while ready:
        event = ready.popleft()
        sequence.append(event)
        for later in waiting[starts[event] : starts[event + 1]]:
            pending_waits[later] -= 1
            if not pending_waits[later]:
                ready.append(later)
    return sequence


def ends_with_rendezvous(events: Events) -> bool:
    """Whether all ends if a send is over only when it is received (FIFOs without any slot).

    Each message is one event of both its blocks; a step that receives and sends does one, then the
    other.
    """
    # Messages are numbered behind the events. What an event sends, or receives, is the number of
    # its message; where there is none, its own number.
    own = np.arange(len(events))
    receive = own.copy()
    send = own.copy()
    total = len(events)
    for sent, received in zip(events.sent, events.received, strict=True):
        if len(sent) != len(received):
            return False
        message = total + np.arange(len(sent))
        send[sent] = message
        receive[received] = message
        total += len(sent)

    begins = np.where(receive != own, receive, send)
    ends = np.where(send != own, send, receive)
    does_both = np.flatnonzero((receive != own) & (send != own))

    followed = events.followed()
    ended, unended = events.flag_waits()
    before = [ends[followed], begins[does_both], ends[events.last[ended[:, 1]]]]
    after = [begins[followed + 1], ends[does_both], begins[events.first[ended[:, 0]]]]
    sequence = topological(
        total,
        before=np.concatenate(before),
        after=np.concatenate(after),
        never=begins[events.first[unended]],
    )
    return len(sequence) == total
