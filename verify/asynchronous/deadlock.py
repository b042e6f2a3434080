"""No deadlock: at the largest size meant, with the FIFOs' slots; and how far it is from one.

Where a run gets stuck, every block that is not at its end waits at one event, the same in every
run. Which block waits for which makes a graph, and its shortest cycle is the counterexample.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import msgspec

from latecomer.verify.asynchronous.model import NONE
from latecomer.verify.asynchronous.order import (
    NEVER,
    Events,
    FlatProgram,
    Run,
    ends_with_rendezvous,
)
from latecomer.verify.asynchronous.sizes import Sizes, in_words
from latecomer.verify.core.verdict import PROVED, SHOWN, Counterexample, Result, refuted

# From each a search goes over all blocks that are stuck.
MOST_STARTS = 4096
"""Blocks from which a shortest cycle is looked for."""

MOST_SLOTS = 64
"""More slots than this are not tried for how many would do."""


class Freedom(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a program free of deadlock, and what would not.

    Attributes:
        up_to: largest size in bytes that is free of deadlock; None: any; 0: none meant is.
        slots_needed: fewest slots with which the sizes meant are free; None: no number will do.
        unlimited, rendezvous: whether it is free with FIFOs without bound, and without any slot.
    """

    up_to: int | None
    slots_needed: int | None
    unlimited: bool
    rendezvous: bool


def deadlock_free(flat: FlatProgram, sizes: Sizes | None) -> tuple[Result, Freedom]:
    """Decide at the largest size meant, which is the worst: there, messages are finest."""
    slots = flat.program.slots
    finest = min(sizes.finest if sizes else flat.largest, flat.largest)
    events = Events(flat, finest)
    run = Run(events, slots)
    unlimited = run.ends or Run(events, None).ends
    freedom = Freedom(
        up_to=None if run.ends else 0,
        slots_needed=_slots_needed(events, slots, run.ends) if unlimited else None,
        unlimited=unlimited,
        rendezvous=unlimited and ends_with_rendezvous(events),
    )
    if run.ends:
        if sizes and sizes.max_bytes is not None:
            # By halving: what is free of deadlock at a size is so at all smaller ones
            # (ThreadBlocksSizes.larger_messages).
            limit = _finest_that_ends(flat, finest)
            freedom = msgspec.structs.replace(freedom, up_to=sizes.up_to(limit))
        return PROVED, freedom

    if sizes and unlimited:
        # Smaller sizes may end; the counterexample is the first size that does not.
        coarsest = min(sizes.coarsest, flat.largest)
        run = Run(Events(flat, coarsest), slots)
        if run.ends:
            limit = _finest_that_ends(flat, coarsest)
            freedom = msgspec.structs.replace(freedom, up_to=sizes.up_to(limit))
            # Messages one chunk finer, so the first size that hangs.
            run = Run(Events(flat, limit - 1), slots)
    return refuted(_counterexample(run, sizes)), freedom


def _finest_that_ends(flat: FlatProgram, ends_with: int) -> int:
    """The finest messages, in chunks, that are free of deadlock; those of ``ends_with`` are."""
    slots = flat.program.slots
    low = 1
    high = ends_with
    while low < high:
        middle = (low + high) // 2
        if Run(Events(flat, middle), slots).ends:
            high = middle
        else:
            low = middle + 1
    return high


def _slots_needed(events: Events, slots: int | None, ends: bool) -> int | None:
    """The fewest slots that will do (more never harm); unlimited slots do."""
    if ends:
        low = 1
        high = slots or MOST_SLOTS
    else:
        low = (slots or 0) + 1
        high = 1 + max(len(sent) for sent in events.sent)
    while low < high:
        middle = (low + high) // 2
        if Run(events, middle).ends:
            high = middle
        else:
            low = middle + 1
    return high


def _counterexample(run: Run, sizes: Sizes | None) -> Counterexample:
    """The shortest cycle of blocks that wait for each other, or a wait for what nobody does."""
    events = run.events
    flat = events.flat
    stuck_at = _stuck_at(run)
    cycle = _shortest_cycle(_waits_of_blocks(run, stuck_at))
    if cycle:
        first_event = stuck_at[cycle[0][0]]
        lines = [_waiting(run, stuck_at[block], awaited) for block, awaited in cycle]
        found = f"a wait cycle of {len(cycle)}, in every interleaving"
    else:
        first_event = min(set(stuck_at.values()) & set(run.never.tolist()))
        lines = [_waiting(run, first_event, NEVER)]
        found = "a wait for what nobody does"
    if sizes and events.limit < flat.largest:
        found += f", from {in_words(sizes.least_with(events.limit))} on"

    index = int(events.step[first_event])
    step = flat.steps[index]
    block = flat.blocks[int(flat.block[index])]
    return Counterexample(
        property="deadlock_free",
        rank=block.rank,
        position=step.position,
        action=f"{block.name}: {step.text}",
        expected="all blocks to run to their ends",
        found=found,
        actions=tuple(lines[:SHOWN]),
    )


def _stuck_at(run: Run) -> dict[int, int]:
    """Per block that is not at its end, the first event of it that never happens."""
    stuck_at: dict[int, int] = {}
    for event in range(len(run.events)):
        if event not in run.happened:
            stuck_at.setdefault(int(run.events.block[event]), event)
    return stuck_at


def _waits_of_blocks(run: Run, stuck_at: dict[int, int]) -> dict[int, dict[int, int]]:
    """Block -> {block that it waits for: the event that it waits for there}."""
    block_of = run.events.block
    stuck_events = set(stuck_at.values())
    waits: dict[int, list[tuple[int, int]]] = {block: [] for block in stuck_at}
    for earlier, later in zip(run.before.tolist(), run.after.tolist(), strict=True):
        if later in stuck_events and earlier not in run.happened:
            waits[int(block_of[later])].append((int(block_of[earlier]), earlier))
    # Of several events of one block the first counts: reversed, it is the last and stays.
    return {block: dict(reversed(events)) for block, events in waits.items()}


def _shortest_cycle(waits: dict[int, dict[int, int]]) -> list[tuple[int, int]]:
    """A shortest cycle in block -> {block waited for: the event}; as (block, event) in turn.

    Where more than ``MOST_STARTS`` blocks are stuck, the shortest through those looked at first.
    """
    shortest: list[tuple[int, int]] = []
    for starts_tried, start in enumerate(sorted(waits)):
        if shortest and starts_tried > MOST_STARTS:
            break
        path = _path_back(waits, start)
        if path and (not shortest or len(path) - 1 < len(shortest)):
            shortest = [(block, waits[block][awaited]) for block, awaited in pairwise(path)]
    return shortest


def _path_back(waits: dict[int, dict[int, int]], start: int) -> list[int]:
    """Blocks of a shortest way from a block back to it, it first and last; empty: none."""
    reached_from: dict[int, int] = {}
    queue = deque([start])
    while queue and start not in reached_from:
        block = queue.popleft()
        for awaited in waits.get(block, {}):
            if awaited not in reached_from:
                reached_from[awaited] = block
                queue.append(awaited)
    if start not in reached_from:
        return []

    path = [start, reached_from[start]]
    while path[-1] != start:
        path.append(reached_from[path[-1]])
    path.reverse()
    return path


def _waiting(run: Run, event: int, awaited: int) -> str:
    """One line of a cycle: who stands where, and what it waits for."""
    events = run.events
    flat = events.flat
    step = int(events.step[event])
    line = flat.describe(step)
    messages = events.last[step] - events.first[step] + 1
    if messages > 1:
        line += f" (message {events.part[event] + 1} of {messages})"

    reason = _waits_for_message(run, event, awaited) or _waits_for_slot(run, event, awaited)
    if reason:
        return f"{line}, {reason}"
    if awaited == NEVER:
        return f"{line}, waits for a flag that nobody raises"
    return f"{line}, waits for the flag of {flat.describe(int(events.step[awaited]))}"


def _waits_for_message(run: Run, event: int, awaited: int) -> str:
    """The reason for a wait, if it is for a message that ``awaited`` sends; else empty."""
    events = run.events
    flat = events.flat
    fifo = int(flat.receives[int(events.step[event])])
    if fifo == NONE:
        return ""
    received = events.received[fifo].tolist()
    if event not in received:
        return ""

    number = received.index(event)
    name = flat.program.fifos[fifo]
    sent = events.sent[fifo].tolist()
    if awaited == NEVER:
        if number >= len(sent):
            return f"waits for message {number} of {name}, which nobody sends"
    elif number < len(sent) and sent[number] == awaited:
        sender = flat.describe(int(events.step[awaited]))
        return f"waits for message {number} of {name}, sent by {sender}"
    return ""


def _waits_for_slot(run: Run, event: int, awaited: int) -> str:
    """The reason for a wait, if it is for a slot that ``awaited`` frees; else empty."""
    events = run.events
    flat = events.flat
    fifo = int(flat.sends[int(events.step[event])])
    if fifo == NONE or run.slots is None:
        return ""
    sent = events.sent[fifo].tolist()
    if event not in sent:
        return ""

    number = sent.index(event)
    oldest = number - run.slots  # of the messages in the FIFO
    if oldest < 0:
        return ""
    received = events.received[fifo].tolist()
    full = f"{flat.program.fifos[fifo]} is full (messages {oldest} to {number - 1})"
    if awaited == NEVER:
        if oldest >= len(received):
            return f"waits for a slot: {full}, and nobody takes any"
    elif oldest < len(received) and received[oldest] == awaited:
        receiver = flat.describe(int(events.step[awaited]))
        return f"waits for a slot: {full} until {receiver}"
    return ""
