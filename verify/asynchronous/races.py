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

import numpy as np
from numpy.typing import NDArray

from verify.asynchronous.connections import at_step
from verify.asynchronous.model import IntArray
from verify.asynchronous.order import Events, Flat, Run
from verify.asynchronous.sizes import Sizes, in_words, limits, may_overtake
from verify.core.verdict import PROVED, Counterexample, Result, Verdict, refuted, unknown

MOST_CLOCKS = 2**25
"""Entries of clocks held at once; blocks are taken in as many portions as that makes."""

BY_SLOTS = "only because FIFOs hold no more than {} message{}"
BY_WHOLE_SLOTS = "in order only if a slot waits for the last slice of the message before in it"
ONE_AFTER_THE_OTHER = "in order only if the chunks of a message move one after the other"
UNBOUNDED = "for FIFOs without bound; with {} slots no run ends"
STUCK = "no run ends, even with FIFOs without bound"


def race_free(flat: Flat, sizes: Sizes | None) -> tuple[Result, list[Run]]:
    """Decide for all sizes meant, with FIFOs of the program's slots.

    Returns:
        The result, and executions that can happen. Where the result is proved, their values are
        those of all executions, at all sizes; where it is refuted, there are none.
    """
    overlap = _overlapping_step(flat)
    if overlap is not None:
        return refuted(overlap), []

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
        return refuted(_told(unbounded, *race, sizes)), []
    result, runs = _in_order_by_slots(flat, sizes, slots)
    if result.verdict is Verdict.PROVED and _may_overtake(flat, sizes):
        return unknown(ONE_AFTER_THE_OTHER), runs
    return result, runs


def _may_overtake(flat: Flat, sizes: Sizes | None) -> bool:
    return may_overtake(flat.largest, sizes, flat.program.sliced)


def _free_of_races_backwards(flat: Flat) -> bool:
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
        np.array_equal(events.low[sent], events.low[taken])
        for sent, taken in zip(events.sent, events.taken, strict=True)
    )


def _overlapping_step(flat: Flat) -> Counterexample | None:
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


def _in_order_by_slots(flat: Flat, sizes: Sizes | None, slots: int) -> tuple[Result, list[Run]]:
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
            return refuted(_told(bounded, *race, sizes)), []
        runs.append(bounded)
        if flat.program.sliced and first_race(Run(events, slots + 1)) is not None:
            result = unknown(BY_WHOLE_SLOTS)
    return result, runs


def _told(run: Run, earlier: int, later: int, address: int, sizes: Sizes | None) -> Counterexample:
    events, flat = run.events, run.events.flat
    step, other = int(events.step[later]), int(events.step[earlier])
    does = [_touches(events, event, address) for event in (later, earlier)]
    found = f"{flat.program.name_of(address)}: one {does[0]}, one {does[1]}, in any order"
    if sizes and events.limit < flat.largest:
        found += f" (buffer of {in_words(sizes.least_with(events.limit))})"
    expected = f"one to wait for the other ({flat.describe(step)} for {flat.describe(other)})"
    return at_step(flat, step, "race_free", expected, found, other)


def _touches(events: Events, event: int, address: int) -> str:
    step = events.flat.steps[int(events.step[event])]
    low, high = events.span(event)
    writes = any(start + low <= address < start + high for start in step.targets)
    return "writes it" if writes else "reads it"


def _accesses(events: Events) -> tuple[IntArray, IntArray, NDArray[np.bool_]]:
    """Every (event, address, whether it writes), one row for each chunk."""
    rows = [
        (index, start, write)
        for index, step in enumerate(events.flat.steps)
        for write, starts in ((0, step.sources), (1, step.targets))
        for start in starts
    ]
    step, start, write = np.array(rows, np.int64).reshape(-1, 3).T
    parts = events.last[step] - events.first[step] + 1
    row = np.repeat(np.arange(len(step)), parts)
    part = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    whole = events.flat.count[step[row]]
    low = np.where(parts[row] == 1, 0, events.low[events.first[step[row]] + part])
    size = np.where(parts[row] == 1, whole, np.minimum(events.per_event, whole - low))
    chunk = np.repeat(np.arange(len(row)), size)
    within = np.arange(len(chunk)) - np.repeat(np.cumsum(size) - size, size)
    event = (events.first[step[row]] + part)[chunk]
    return event, (start[row] + low)[chunk] + within, write[row][chunk].astype(bool)


def first_race(run: Run) -> tuple[int, int, int] | None:
    """An unordered pair of events and the chunk that they meet at, as early as there is one."""
    event, address, write = _accesses(run.events)
    block = run.events.block[event]
    turn = np.empty(len(run.events), np.int64)
    turn[run.sequence] = np.arange(len(run.sequence))
    order = np.lexsort((write, turn[event], address))
    event = event[order]
    address = address[order]
    write = write[order]
    block = block[order]
    begins = np.flatnonzero(np.append(True, np.diff(address) != 0)[: len(address)])
    if not len(begins):
        return None
    shared = np.minimum.reduceat(block, begins) != np.maximum.reduceat(block, begins)
    shared &= np.logical_or.reduceat(write, begins)
    ends = np.append(begins[1:], len(address))
    groups = [(int(a), int(b)) for a, b in zip(begins[shared], ends[shared], strict=True)]
    races = []
    for portion in _portions(run, groups, block):
        clocks = _Clocks(run, sorted({int(b) for a, e in portion for b in block[a:e].tolist()}))
        for a, e in portion:
            accesses = zip(
                event[a:e].tolist(), block[a:e].tolist(), write[a:e].tolist(), strict=True
            )
            pair = _unordered(list(accesses), clocks)
            if pair:
                races.append((max(turn[list(pair)]), *pair, int(address[a])))
    return min(races)[1:] if races else None


def _portions(
    run: Run, groups: list[tuple[int, int]], block: IntArray
) -> list[list[tuple[int, int]]]:
    """Groups of accesses, cut into portions of few enough blocks for their clocks."""
    room = max(1, MOST_CLOCKS // max(1, len(run.events)))
    portions: list[list[tuple[int, int]]] = []
    seen: set[int] = set()
    for a, e in groups:
        new = seen | set(block[a:e].tolist())
        if not portions or len(new) > max(room, 64):
            portions.append([])
            new = set(block[a:e].tolist())
        portions[-1].append((a, e))
        seen = new
    return portions


def _unordered(accesses: list[tuple[int, int, bool]], clocks: _Clocks) -> tuple[int, int] | None:
    """The first two accesses to one chunk that are not ordered; they come in a possible order.

    A write that is ordered after all before it stands for them from then on.
    """
    reads: dict[int, int] = {}
    writes: dict[int, int] = {}
    for event, block, write in accesses:
        for others in (writes, reads) if write else (writes,):
            for other, last in others.items():
                if other != block and not clocks.before(last, other, event):
                    return last, event
        if write:
            reads = {}
            writes = {block: event}
        else:
            reads[block] = event
    return None


class _Clocks:
    """Per event, the last event of each block of ``blocks`` that happened before it."""

    def __init__(self, run: Run, blocks: list[int]) -> None:
        events = run.events
        self.column = {block: at for at, block in enumerate(blocks)}
        size = len(events)
        order = np.argsort(run.after, kind="stable")
        cuts = np.searchsorted(run.after[order], np.arange(size + 1)).tolist()
        earlier = run.before[order].tolist()
        owner = events.block.tolist()
        joins = np.count_nonzero(np.diff(cuts))
        self.rows = np.full((1 + joins, len(blocks)), -1, np.int32)
        self.row = [0] * size
        used = 0
        for event in run.sequence:
            same = event and owner[event - 1] == owner[event]
            mine = self.row[event - 1] if same else 0
            a = cuts[event]
            b = cuts[event + 1]
            if a == b:
                self.row[event] = mine
                continue
            used += 1
            self.row[event] = used
            row = self.rows[used]
            row[:] = self.rows[mine]
            for other in earlier[a:b]:
                np.maximum(row, self.rows[self.row[other]], out=row)
                at = self.column.get(owner[other], -1)
                if at >= 0 and row[at] < other:
                    row[at] = other

    def before(self, event: int, block: int, later: int) -> bool:
        """Whether ``event`` of ``block`` happened before ``later`` of another block."""
        return bool(self.rows[self.row[later], self.column[block]] >= event)
