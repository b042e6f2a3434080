"""What a program of the model does, at every size meant, in every interleaving.

Finer than the model says: chunks of a step are read and written one by one, in any order, and a
chunk of a message can be taken when it has been sent, before the rest of its message. The slot of a
message is free when all of it has been taken; a step signals when all of it is done.
"""

from __future__ import annotations

import random
from typing import Any

from tests.hunt.interleavings import (
    JUNK,
    NEVER,
    Action,
    Undecided,
    Value,
    both_orders,
    ends,
    order_of,
    races_of,
    run,
    samples,
)
from tests.hunt.model_programs import CHUNKS
from tests.hunt.outcome import Seen

STATES = 400
PAIRS = 30
SCHEDULES = 50
Draft = dict[str, Any]


class Fault(Exception):
    """What the model does not define."""


def per_message(draft: Draft) -> list[int]:
    """All numbers of chunks that a message has at most, as far as they make a difference."""
    steps = [s for block in draft["blocks"] for s in block]
    largest = max([1, *[s["count"] for s in steps if s["sends"] >= 0 or s["receives"] >= 0]])
    if draft["sizes"] is None:
        return [largest]
    chunks, room, least, most = draft["sizes"]
    low = max(1, -(-least // chunks))
    high = 4 * room if most is None else most // chunks
    return sorted({min(largest, max(1, room // size)) for size in range(low, max(low, high) + 1)})


class Unrolled:
    """The program with messages of at most ``limit`` chunks, as actions."""

    def __init__(self, draft: Draft, limit: int) -> None:
        self.draft = draft
        self.shared = self.cells = draft["addresses"]
        self.sent: list[list[int]] = [[] for _ in range(draft["fifos"])]
        self.taken: list[list[int]] = [[] for _ in range(draft["fifos"])]
        self.pieces: list[tuple[Any, range, bool, bool, int]] = []
        raised: dict[int, list[tuple[int, int]]] = {}
        users: dict[object, set[int]] = {}
        for number, block in enumerate(draft["blocks"]):
            for step in block:
                self._pieces(number, step, limit)
                for name in ("sends", "receives"):
                    if step[name] >= 0 and step["count"]:
                        users.setdefault((name, step[name]), set()).add(number)
                for counter, value in step["signals"]:
                    users.setdefault(("raises", counter), set()).add(number)
                    raised.setdefault(counter, []).append((value, len(self.pieces) - 1))
        shared = [key for key, who in users.items() if len(who) > 1]
        if shared:
            raise Fault(f"two blocks share {shared[0]}")
        for fifo, (sent, taken) in enumerate(zip(self.sent, self.taken, strict=True)):
            if len(sent) > len(taken):
                raise Fault(f"a message of FIFO {fifo} is left over")
            for one, two in zip(sent, taken, strict=False):
                if len(self.pieces[one][1]) != len(self.pieces[two][1]):
                    raise Fault(f"two sizes of one message of FIFO {fifo}")
        self._act(raised)

    def _pieces(self, number: int, step: Any, limit: int) -> None:
        count = step["count"]
        messages = step["sends"] >= 0 or step["receives"] >= 0
        size = limit if messages else max(1, count)
        lows = range(0, count, size) if count else range(1)
        for low in lows:
            chunks = range(low, min(low + size, count))
            if step["sends"] >= 0 and count:
                self.sent[step["sends"]].append(len(self.pieces))
            if step["receives"] >= 0 and count:
                self.taken[step["receives"]].append(len(self.pieces))
            self.pieces.append((step, chunks, low == 0, low == lows[-1], number))

    def _act(self, raised: dict[int, list[tuple[int, int]]]) -> None:
        first = [0]
        for _, chunks, _, _, _ in self.pieces:
            first.append(first[-1] + 2 * len(chunks) + 1)
        last = [start - 1 for start in first[1:]]
        carried = {}
        incoming: dict[int, int] = {}
        room: dict[int, int] = {}
        for sent, taken in zip(self.sent, self.taken, strict=True):
            for at, piece in enumerate(sent):
                size = len(self.pieces[piece][1])
                carried[piece] = range(self.cells, self.cells + size)
                self.cells += size
                slots = self.draft["slots"]
                if slots is not None and at >= slots:
                    freed = at - slots
                    room[piece] = last[taken[freed]] if freed < len(taken) else NEVER
            for at, piece in enumerate(taken):
                incoming[piece] = sent[at] if at < len(sent) else NEVER
        self.actions: list[Action] = []
        for number, (step, chunks, begins, _, block) in enumerate(self.pieces):
            after = []
            if number and self.pieces[number - 1][4] == block:
                after.append(last[number - 1])
            if begins:
                for counter, value in step["waits"]:
                    enough = [at for raises, at in raised.get(counter, []) if raises >= value]
                    after.append(last[enough[0]] if enough else NEVER)
            if number in room:
                after.append(room[number])
            source = incoming.get(number)
            if source == NEVER:
                after.append(NEVER)
            for at, chunk in enumerate(chunks):
                waits = list(after)
                sources = [start + chunk for start in step["sources"]]
                targets = [start + chunk for start in step["targets"]]
                if source is not None and source != NEVER:
                    waits.append(first[source] + 2 * at + 1)
                    sources.append(carried[source][at])
                if number in carried:
                    targets.append(carried[number][at])
                held = self.cells
                self.cells += 1
                here = first[number] + 2 * at
                self.actions.append(Action(tuple(waits), tuple(sources), (held,)))
                self.actions.append(Action((here,), (held,), tuple(targets)))
            done = [first[number] + 2 * at + 1 for at in range(len(chunks))]
            self.actions.append(Action((*after, *done)))


def look(draft: Draft, states: int = STATES, values_of_races: bool = True) -> Seen:
    """Look at a program at all sizes."""
    seen = Seen()
    draw = random.Random(len(draft["blocks"]))
    values = [[draw.randrange(1, 2**61) for _ in range(CHUNKS)] for _ in range(draft["ranks"])]
    wanted = {}
    for address, rank, chunk in draft["demand"]:
        of_all = sum(values[r][chunk] for r in range(draft["ranks"]))
        wanted[address] = of_all if rank < 0 else values[rank][chunk]
    for limit in per_message(draft):
        where = f"{limit} chunks a message"
        try:
            program = Unrolled(draft, limit)
        except Fault as fault:
            seen.fault = seen.fault or f"{where}: {fault}"
            continue
        order = order_of(program.actions)
        if len(order) < len(program.actions):
            seen.hangs = seen.hangs or where
            continue
        start: list[Value] = [JUNK] * program.cells
        for rank in range(draft["ranks"]):
            low = rank * 3 * CHUNKS
            start[low : low + CHUNKS] = values[rank]
        results = {tuple(run(program.actions, order, start))}
        races = races_of(program.actions, order, program.shared)
        if races:
            seen.races = seen.races or where
            if values_of_races:
                for swapped in both_orders(program.actions, order, races[:PAIRS]):
                    results.add(tuple(run(program.actions, swapped, start)))
                results |= _of_races(program, start, results, wanted, states, seen)
            else:
                seen.decided = False
        if any(result[a] != value for result in results for a, value in wanted.items()):
            seen.wrong = seen.wrong or where
    return seen


def _of_races(
    program: Unrolled,
    start: list[Value],
    known: set[tuple[Value, ...]],
    wanted: dict[int, int],
    states: int,
    seen: Seen,
) -> set[tuple[Value, ...]]:
    """What else memory can hold at the end, where all that is known is right."""
    if any(result[a] != value for result in known for a, value in wanted.items()):
        return set()
    try:
        return ends(program.actions, start, program.shared, states)
    except Undecided:
        seen.decided = False
        return samples(program.actions, start, program.shared, SCHEDULES, seed=2)
