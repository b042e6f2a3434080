"""No deadlock: at the largest size meant, with the FIFOs' slots; and how far it is from one.

Where a run gets stuck, every block that is not at its end waits at one event, the same in every
run. Which block waits for which makes a graph, and its shortest cycle is the counterexample.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import msgspec

from verify.asynchronous.model import NONE
from verify.asynchronous.order import NEVER, Events, Flat, Run, ends_with_rendezvous
from verify.asynchronous.sizes import Sizes, in_words
from verify.core.verdict import PROVED, SHOWN, Counterexample, Result, refuted

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


def deadlock_free(flat: Flat, sizes: Sizes | None) -> tuple[Result, Freedom]:
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
            safe = _coarsest_needed(flat, finest)
            freedom = msgspec.structs.replace(freedom, up_to=sizes.up_to(safe))
        return PROVED, freedom
    if sizes and unlimited:
        coarsest = min(sizes.coarsest, flat.largest)
        if (at_coarsest := Run(Events(flat, coarsest), slots)).ends:
            safe = _coarsest_needed(flat, coarsest)
            freedom = msgspec.structs.replace(freedom, up_to=sizes.up_to(safe))
            run = Run(Events(flat, safe - 1), slots)
        else:
            run = at_coarsest
    return refuted(_stuck(run, sizes)), freedom


def _coarsest_needed(flat: Flat, known: int) -> int:
    """The finest messages, in chunks, that are free of deadlock; ``known`` are."""
    slots = flat.program.slots
    low = 1
    high = known
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


def _stuck(run: Run, sizes: Sizes | None) -> Counterexample:
    """The shortest cycle of blocks that wait for each other, or a wait for what nobody does."""
    events, flat = run.events, run.events.flat
    fronts: dict[int, int] = {}
    for event in range(len(events)):
        if event not in run.happened:
            fronts.setdefault(int(events.block[event]), event)
    at = set(fronts.values())
    waits: dict[int, list[tuple[int, int]]] = {block: [] for block in fronts}
    for earlier, later in zip(run.before.tolist(), run.after.tolist(), strict=True):
        if later in at and earlier not in run.happened:
            block = int(events.block[later])
            waits[block].append((int(events.block[earlier]), earlier))
    cycle = _shortest_cycle({block: dict(reversed(for_)) for block, for_ in waits.items()})
    if cycle:
        lines = [_waiting(run, fronts[block], event) for block, event in cycle]
        found = f"a wait cycle of {len(cycle)}, in every interleaving"
        first = fronts[cycle[0][0]]
    else:
        first = min(at & set(run.never.tolist()))
        lines = [_waiting(run, first, NEVER)]
        found = "a wait for what nobody does"
    if sizes and events.limit < flat.largest:
        found += f", from {in_words(sizes.least_with(events.limit))} on"
    step = int(events.step[first])
    stands = flat.blocks[int(flat.block[step])]
    return Counterexample(
        property="deadlock_free",
        rank=stands.rank,
        position=flat.steps[step].place,
        action=f"{stands.name}: {flat.steps[step].text}",
        expected="all blocks to run to their ends",
        found=found,
        actions=tuple(lines[:SHOWN]),
    )


def _shortest_cycle(waits: dict[int, dict[int, int]]) -> list[tuple[int, int]]:
    """A shortest cycle in block -> {block waited for: the event}; as (block, event) in turn.

    Where more than ``MOST_STARTS`` blocks are stuck, the shortest through those looked at first.
    """
    best: list[tuple[int, int]] = []
    for tried, start in enumerate(sorted(waits)):
        if best and tried > MOST_STARTS:
            break
        came: dict[int, int] = {}
        queue = deque([start])
        while queue and start not in came:
            at = queue.popleft()
            for other in waits.get(at, {}):
                if other not in came:
                    came[other] = at
                    queue.append(other)
        if start in came:
            path = [start]
            while path[-1] != start or len(path) == 1:
                path.append(came[path[-1]])
            path.reverse()
            cycle = [(a, waits[a][b]) for a, b in pairwise(path)]
            if not best or len(cycle) < len(best):
                best = cycle
    return best


def _waiting(run: Run, event: int, awaited: int) -> str:
    """One line of a cycle: who stands where, and what it waits for."""
    events, flat = run.events, run.events.flat
    step = int(events.step[event])
    line = flat.describe(step)
    if events.first[step] != events.last[step]:
        line += (
            f" (message {events.part[event] + 1} of {events.last[step] - events.first[step] + 1})"
        )
    for fifo, kind, mine in (
        (int(flat.receives[step]), "message", events.taken),
        (int(flat.sends[step]), "slot", events.sent),
    ):
        if fifo == NONE or event not in (own := mine[fifo].tolist()):
            continue
        number = own.index(event)
        name = flat.program.fifos[fifo]
        if kind == "message":
            sent = events.sent[fifo].tolist()
            if awaited == NEVER and number >= len(sent):
                return f"{line}, waits for message {number} of {name}, which nobody sends"
            if awaited != NEVER and number < len(sent) and sent[number] == awaited:
                of = flat.describe(int(events.step[awaited]))
                return f"{line}, waits for message {number} of {name}, sent by {of}"
        elif run.slots is not None and number >= run.slots:
            taken = events.taken[fifo].tolist()
            full = f"{name} is full (messages {number - run.slots} to {number - 1})"
            if awaited == NEVER and number - run.slots >= len(taken):
                return f"{line}, waits for a slot: {full}, and nobody takes any"
            if awaited != NEVER and taken[number - run.slots] == awaited:
                of = flat.describe(int(events.step[awaited]))
                return f"{line}, waits for a slot: {full} until {of}"
    if awaited == NEVER:
        return f"{line}, waits for a flag that nobody raises"
    return f"{line}, waits for the flag of {flat.describe(int(events.step[awaited]))}"
