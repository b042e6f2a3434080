"""No race: whatever two blocks do to one chunk, one of them writing, happens in a fixed order.

One event *happens before* another if a chain of waits leads from it to the other (order.py). Each
event gets a vector clock: per block, the last event that happened before it. Of two events that
touch one chunk, not both reading, and of which neither happened before the other, some interleaving
does one first and some the other, or both at once. The slots of FIFOs order events, too: a message
can't be sent before an old one has made room. As few programs mean to rely on that, it is used only
where the rest does not do, and then said.

A receiver uses the first chunk of a message before the last has been sent, so each chunk is an
event of its own here. With FIFOs without bound the size of messages then makes no difference, and
what is in order is so at every size, with any number of slots. Else each size of messages is looked
at (proofs/coq/ThreadBlocksCheck.v). Where a message is sliced, a slot is used again while its last
slice is still to be received: parts of one more message are on their way than there are slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from latecomer.verify.asynchronous.connections import at_step
from latecomer.verify.asynchronous.model import IntArray
from latecomer.verify.asynchronous.order import Events, FlatProgram, Run
from latecomer.verify.asynchronous.sizes import Sizes, in_words, limits, may_overtake
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, Verdict, refuted, unknown

MOST_CLOCKS = 2**25
"""Entries of clocks held at once; blocks are taken in as many portions as that makes."""

BY_SLOTS = "only because FIFOs hold no more than {} message{}"
BY_WHOLE_SLOTS = "in order only if a slot waits for the last slice of the message before in it"
ONE_AFTER_THE_OTHER = "in order only if the chunks of a message move one after the other"
UNBOUNDED = "for FIFOs without bound; with {} slots no run ends"
STUCK = "no run ends, even with FIFOs without bound"


class Race(NamedTuple):
    """Two events that touch one chunk in no fixed order; some run has them in this one."""

    earlier: int
    later: int
    address: int


def race_free(flat: FlatProgram, sizes: Sizes | None) -> tuple[Result, list[Run]]:
    """Decide for all sizes meant, with FIFOs of the program's slots.

    Returns:
        The result, and executions that can happen. Where the result is proved, their values are
        those of all executions, at all sizes; where it is refuted, there are none.
    """
    overlap = _overlapping_step(flat)
    if overlap is not None:
        return refuted(overlap), []

    # What is in order without any slots is so at every size and with any number of them, so this
    # one run decides for most programs.
    unbounded = Run(Events(flat, 1, by_chunk=True), None)
    if not unbounded.ends:
        return unknown(STUCK), []
    race = first_race(unbounded)
    if race is None:
        if _may_overtake(flat, sizes) and not _free_of_races_backwards(flat):
            return unknown(ONE_AFTER_THE_OTHER), [unbounded]
        return PROVED, [unbounded]

    slots = flat.program.slots
    if slots is None:
        return refuted(_counterexample(unbounded, race, sizes)), []
    result, runs = _in_order_by_slots(flat, sizes, slots)
    if result.verdict is Verdict.PROVED and _may_overtake(flat, sizes):
        return unknown(ONE_AFTER_THE_OTHER), runs
    return result, runs


def _may_overtake(flat: FlatProgram, sizes: Sizes | None) -> bool:
    return may_overtake(flat.largest, sizes, flat.program.sliced)


def _free_of_races_backwards(flat: FlatProgram) -> bool:
    """Whether there is no race if each step moves its last chunk first.

    Two accesses that are in order both ways are so whichever chunk of a step comes first: a chain
    of sends and receives leads from a chunk of one step to one chunk of the other, and both ways
    agree only if that is the chunk itself.
    """
    run = Run(Events(flat, 1, by_chunk=True, backwards=True), None)
    return run.ends and _same_steps_at_both_ends(run.events) and first_race(run) is None


def _same_steps_at_both_ends(events: Events) -> bool:
    """Whether each chunk is received where it was sent, if steps move their last chunk first."""
    return all(
        np.array_equal(events.low[sent], events.low[received])
        for sent, received in zip(events.sent, events.received, strict=True)
    )


def _overlapping_step(flat: FlatProgram) -> Counterexample | None:
    """A step that writes what it reads, or writes, at another place; None if there is none."""
    for index, step in enumerate(flat.steps):
        areas = (*step.sources, *step.targets)
        if len(areas) > 1 and step.count > 1 and _overlaps(areas, step.targets, step.count):
            return at_step(
                flat,
                index,
                "race_free",
                "what a step reads and what it writes to be the same chunks, or apart",
                "they overlap at different places, and chunks are not copied in any order",
            )
    return None


def _overlaps(areas: tuple[int, ...], targets: tuple[int, ...], count: int) -> bool:
    return any(0 < abs(area - target) < count for area in areas for target in targets)


def _in_order_by_slots(
    flat: FlatProgram, sizes: Sizes | None, slots: int
) -> tuple[Result, list[Run]]:
    """Whether at every size the slots put in order what nothing else does."""
    result = Result(Verdict.PROVED, note=BY_SLOTS.format(slots, "s" if slots > 1 else ""))
    runs = []
    for limit in limits(flat.largest, sizes):
        events = Events(flat, limit, by_chunk=True)
        bounded = Run(events, slots)
        if not bounded.ends:
            return unknown(UNBOUNDED.format(slots)), []

        race = first_race(bounded)
        if race is not None:
            return refuted(_counterexample(bounded, race, sizes)), []
        runs.append(bounded)

        # Slices: parts of one message more than there are slots are on their way
        # (ThreadBlocksSlices.slices_within).
        if flat.program.sliced and first_race(Run(events, slots + 1)) is not None:
            result = unknown(BY_WHOLE_SLOTS)
    return result, runs


def _counterexample(run: Run, race: Race, sizes: Sizes | None) -> Counterexample:
    events = run.events
    flat = events.flat
    later = int(events.step[race.later])
    earlier = int(events.step[race.earlier])

    does_later = _touches(events, race.later, race.address)
    does_earlier = _touches(events, race.earlier, race.address)
    chunk = flat.program.name_of(race.address)
    found = f"{chunk}: one {does_later}, one {does_earlier}, in any order"
    if sizes and events.limit < flat.largest:
        found += f" (buffer of {in_words(sizes.least_with(events.limit))})"
    expected = f"one to wait for the other ({flat.describe(later)} for {flat.describe(earlier)})"
    return at_step(flat, later, "race_free", expected, found, earlier)


def _touches(events: Events, event: int, address: int) -> str:
    step = events.flat.steps[int(events.step[event])]
    low, high = events.span(event)
    writes = any(start + low <= address < start + high for start in step.targets)
    return "writes it" if writes else "reads it"


class _Accesses(NamedTuple):
    """All accesses of events to single chunks, one row for each.

    Attributes:
        event, block: who has it.
        address: the chunk.
        writes: whether it is written; else it is read.
    """

    event: IntArray
    block: IntArray
    address: IntArray
    writes: NDArray[np.bool_]

    def in_order(self, order: IntArray) -> _Accesses:
        """The same rows in another order."""
        return _Accesses(
            self.event[order], self.block[order], self.address[order], self.writes[order]
        )

    def rows(self, start: int, end: int) -> list[tuple[int, int, bool]]:
        """(event, block, whether it writes) of the rows from ``start`` up to ``end``."""
        events = self.event[start:end].tolist()
        blocks = self.block[start:end].tolist()
        writes = self.writes[start:end].tolist()
        return list(zip(events, blocks, writes, strict=True))


def _accesses(events: Events) -> _Accesses:
    """Every access to a chunk: areas of steps are cut into their events, and these into chunks."""
    areas = []
    for index, step in enumerate(events.flat.steps):
        areas += [(index, start, 0) for start in step.sources]
        areas += [(index, start, 1) for start in step.targets]
    step_of_area, start_of_area, writes_area = np.array(areas, np.int64).reshape(-1, 3).T

    # A row for each event of each area: which area, and which part of its step.
    parts = events.last[step_of_area] - events.first[step_of_area] + 1
    area = np.repeat(np.arange(len(step_of_area)), parts)
    part = _counted_from_0(parts)
    step_of_row = step_of_area[area]
    event = events.first[step_of_row] + part

    # The chunks that it touches, as Events.span says.
    chunks_of_step = events.flat.count[step_of_row]
    is_whole_step = parts[area] == 1
    low = np.where(is_whole_step, 0, events.low[event])
    chunks_moved = np.minimum(events.per_event, chunks_of_step - low)
    chunks = np.where(is_whole_step, chunks_of_step, chunks_moved)

    # A row for each chunk of those.
    row = np.repeat(np.arange(len(area)), chunks)
    event_of_chunk = event[row]
    return _Accesses(
        event=event_of_chunk,
        block=events.block[event_of_chunk],
        address=(start_of_area[area] + low)[row] + _counted_from_0(chunks),
        writes=writes_area[area][row].astype(bool),
    )


def _counted_from_0(lengths: IntArray) -> IntArray:
    """0, 1, ..., length - 1 for each length, one after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - lengths, lengths)


def first_race(run: Run) -> Race | None:
    """An unordered pair of events and the chunk that they meet at, as early as there is one."""
    accesses = _accesses(run.events)
    turn = np.empty(len(run.events), np.int64)  # of an event in the run
    turn[run.sequence] = np.arange(len(run.sequence))
    order = np.lexsort((accesses.writes, turn[accesses.event], accesses.address))
    accesses = accesses.in_order(order)

    # Rows of one chunk are neighbours now, in the order of the run; a race needs two blocks and a
    # write among them.
    address = accesses.address
    starts = np.flatnonzero(np.append(True, np.diff(address) != 0)[: len(address)])
    if not len(starts):
        return None
    ends = np.append(starts[1:], len(address))
    lowest_block = np.minimum.reduceat(accesses.block, starts)
    highest_block = np.maximum.reduceat(accesses.block, starts)
    shared = lowest_block != highest_block
    shared &= np.logical_or.reduceat(accesses.writes, starts)
    chunks = list(zip(starts[shared].tolist(), ends[shared].tolist(), strict=True))

    races = []
    for portion in _portions(run, chunks, accesses.block):
        blocks = {block for start, end in portion for block in accesses.block[start:end].tolist()}
        clocks = _VectorClocks(run, sorted(blocks))
        for start, end in portion:
            pair = _unordered(accesses.rows(start, end), clocks)
            if pair is not None:
                race = Race(*pair, address=int(address[start]))
                races.append((int(max(turn[list(pair)])), race))
    return min(races)[1] if races else None


def _portions(
    run: Run, chunks: list[tuple[int, int]], block: IntArray
) -> list[list[tuple[int, int]]]:
    """Chunks, as (start, end) of their rows, in portions of few enough blocks for their clocks."""
    most_blocks = max(64, MOST_CLOCKS // max(1, len(run.events)))
    portions: list[list[tuple[int, int]]] = []
    blocks_of_portion: set[int] = set()
    for start, end in chunks:
        blocks_of_chunk = set(block[start:end].tolist())
        blocks_together = blocks_of_portion | blocks_of_chunk
        if not portions or len(blocks_together) > most_blocks:
            portions.append([])
            blocks_together = blocks_of_chunk
        portions[-1].append((start, end))
        blocks_of_portion = blocks_together
    return portions


def _unordered(
    accesses: list[tuple[int, int, bool]], clocks: _VectorClocks
) -> tuple[int, int] | None:
    """The first two accesses to one chunk that are not ordered; they come in a possible order.

    A write that is ordered after all before it stands for them from then on.
    """
    last_reads: dict[int, int] = {}  # block -> event
    last_writes: dict[int, int] = {}
    for event, block, writes in accesses:
        conflicting = (last_writes, last_reads) if writes else (last_writes,)
        for last_of_blocks in conflicting:
            for other_block, last in last_of_blocks.items():
                if other_block != block and not clocks.before(last, other_block, event):
                    return last, event

        if writes:
            last_reads = {}
            last_writes = {block: event}
        else:
            last_reads[block] = event
    return None


class _VectorClocks:
    """Per event, the last event of each block of ``blocks`` that happened before it.

    An event that waits for nobody else shares the clock of the event before it in its block: clocks
    are kept only where some are joined.
    """

    def __init__(self, run: Run, blocks: list[int]) -> None:
        events = run.events
        self._column = {block: column for column, block in enumerate(blocks)}

        # Row e of a table: the events of other blocks that event e waits for.
        by_later = np.argsort(run.after, kind="stable")
        starts = np.searchsorted(run.after[by_later], np.arange(len(events) + 1)).tolist()
        awaited = run.before[by_later].tolist()

        block_of = events.block.tolist()
        joins = np.count_nonzero(np.diff(starts))
        self._clocks = np.full((1 + joins, len(blocks)), -1, np.int32)  # the first: nothing yet
        self._clock_of = [0] * len(events)
        used = 0
        for event in run.sequence:
            clock_before = 0
            if event and block_of[event - 1] == block_of[event]:
                clock_before = self._clock_of[event - 1]
            start = starts[event]
            end = starts[event + 1]
            if start == end:
                self._clock_of[event] = clock_before
                continue

            used += 1
            self._clock_of[event] = used
            clock = self._clocks[used]
            clock[:] = self._clocks[clock_before]
            for earlier in awaited[start:end]:
                np.maximum(clock, self._clocks[self._clock_of[earlier]], out=clock)
                column = self._column.get(block_of[earlier], -1)
                if column >= 0 and clock[column] < earlier:
                    clock[column] = earlier

    def before(self, event: int, block: int, later: int) -> bool:
        """Whether ``event`` of ``block`` happened before ``later`` of another block."""
        clock = self._clocks[self._clock_of[later]]
        return bool(clock[self._column[block]] >= event)
