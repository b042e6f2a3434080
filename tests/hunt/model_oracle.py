"""What a program of the model does, at every size meant, in every interleaving.

Finer than the model says: chunks of a step are read and written one by one, in any order, and a
chunk of a message can be taken when it has been sent, before the rest of its message. The slot of a
message is free when all of it has been taken; a step signals when all of it is done.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

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
from tests.hunt.model_programs import AREAS, CHUNKS
from tests.hunt.outcome import Outcome

STATES = 400
"""More states than these are not explored, and the program is undecided."""
PAIRS = 30
"""So many races, at most, are tried in both orders before that."""
SCHEDULES = 50
"""Interleavings drawn at random of what has too many states."""
Draft = dict[str, Any]


class Fault(Exception):
    """What the model does not define."""


def per_message(draft: Draft) -> list[int]:
    """All numbers of chunks that a message has at most, as far as they make a difference."""
    largest = 1
    for block in draft["blocks"]:
        for step in block:
            if step["sends"] >= 0 or step["receives"] >= 0:
                largest = max(largest, step["count"])
    if draft["sizes"] is None:
        return [largest]

    chunks, room, least_bytes, most_bytes = draft["sizes"]
    smallest_chunk = max(1, -(-least_bytes // chunks))
    largest_chunk = 4 * room if most_bytes is None else most_bytes // chunks
    limits = set()
    for chunk_bytes in range(smallest_chunk, max(smallest_chunk, largest_chunk) + 1):
        limits.add(min(largest, max(1, room // chunk_bytes)))
    return sorted(limits)


class Piece(NamedTuple):
    """A part of a step that moves at once: as many of its chunks as a message has room for."""

    step: dict[str, Any]
    chunks: range
    first: bool
    block: int


class Unrolled:
    """The program with messages of at most ``limit`` chunks, as actions."""

    def __init__(self, draft: Draft, limit: int) -> None:
        self.draft = draft
        self.shared = self.cells = draft["addresses"]
        self.sent: list[list[int]] = [[] for _ in range(draft["fifos"])]
        self.received: list[list[int]] = [[] for _ in range(draft["fifos"])]
        self.pieces: list[Piece] = []
        raised: dict[int, list[tuple[int, int]]] = {}
        users: dict[object, set[int]] = {}
        for number, block in enumerate(draft["blocks"]):
            for step in block:
                self._cut(number, step, limit)
                for name in ("sends", "receives"):
                    if step[name] >= 0 and step["count"]:
                        users.setdefault((name, step[name]), set()).add(number)
                for counter, value in step["signals"]:
                    users.setdefault(("raises", counter), set()).add(number)
                    raised.setdefault(counter, []).append((value, len(self.pieces) - 1))

        shared = [key for key, blocks in users.items() if len(blocks) > 1]
        if shared:
            raise Fault(f"two blocks share {shared[0]}")
        self._check_messages()
        self._act(raised)

    def _cut(self, number: int, step: dict[str, Any], limit: int) -> None:
        """Cut a step of a block into pieces, and note which are messages."""
        count = step["count"]
        messages = step["sends"] >= 0 or step["receives"] >= 0
        size = limit if messages else max(1, count)
        lows = range(0, count, size) if count else range(1)
        for low in lows:
            chunks = range(low, min(low + size, count))
            if step["sends"] >= 0 and count:
                self.sent[step["sends"]].append(len(self.pieces))
            if step["receives"] >= 0 and count:
                self.received[step["receives"]].append(len(self.pieces))
            self.pieces.append(Piece(step, chunks, first=low == 0, block=number))

    def _check_messages(self) -> None:
        """Each message that is sent is received, and with as many chunks."""
        for fifo, (sent, received) in enumerate(zip(self.sent, self.received, strict=True)):
            if len(sent) > len(received):
                raise Fault(f"a message of FIFO {fifo} is left over")
            for sender, receiver in zip(sent, received, strict=False):
                if len(self.pieces[sender].chunks) != len(self.pieces[receiver].chunks):
                    raise Fault(f"two sizes of one message of FIFO {fifo}")

    def _act(self, raised: dict[int, list[tuple[int, int]]]) -> None:
        """All actions: per chunk of a piece a read and a write, then the end of the piece."""
        self.first = [0]
        for piece in self.pieces:
            self.first.append(self.first[-1] + 2 * len(piece.chunks) + 1)
        self.last = [start - 1 for start in self.first[1:]]
        self._connect()

        self.actions: list[Action] = []
        for number, piece in enumerate(self.pieces):
            after = self._waits_of(number, piece, raised)
            self._move(number, piece, after)
            writes = [self.first[number] + 2 * n + 1 for n in range(len(piece.chunks))]
            self.actions.append(Action((*after, *writes)))

    def _connect(self) -> None:
        """Cells for chunks on their way; whose message a piece receives; when a slot is free."""
        self.carried: dict[int, range] = {}
        self.incoming: dict[int, int] = {}
        self.room: dict[int, int] = {}
        slots = self.draft["slots"]
        for sent, received in zip(self.sent, self.received, strict=True):
            for turn, piece in enumerate(sent):
                size = len(self.pieces[piece].chunks)
                self.carried[piece] = range(self.cells, self.cells + size)
                self.cells += size
                if slots is not None and turn >= slots:
                    self.room[piece] = NEVER
                    if turn - slots < len(received):
                        self.room[piece] = self.last[received[turn - slots]]
            for turn, piece in enumerate(received):
                self.incoming[piece] = sent[turn] if turn < len(sent) else NEVER

    def _waits_of(
        self, number: int, piece: Piece, raised: dict[int, list[tuple[int, int]]]
    ) -> list[int]:
        """The actions that must have happened before a piece begins."""
        after = []
        if number and self.pieces[number - 1].block == piece.block:
            after.append(self.last[number - 1])

        if piece.first:
            for counter, value in piece.step["waits"]:
                pieces = [n for raises, n in raised.get(counter, []) if raises >= value]
                after.append(self.last[pieces[0]] if pieces else NEVER)

        if number in self.room:
            after.append(self.room[number])
        if self.incoming.get(number) == NEVER:
            after.append(NEVER)
        return after

    def _move(self, number: int, piece: Piece, after: list[int]) -> None:
        """Read and write each chunk of a piece, at two moments."""
        source = self.incoming.get(number)
        for offset_in_piece, chunk in enumerate(piece.chunks):
            waits = list(after)
            sources = [start + chunk for start in piece.step["sources"]]
            targets = [start + chunk for start in piece.step["targets"]]
            if source is not None and source != NEVER:
                waits.append(self.first[source] + 2 * offset_in_piece + 1)
                sources.append(self.carried[source][offset_in_piece])
            if number in self.carried:
                targets.append(self.carried[number][offset_in_piece])

            held = self.cells
            self.cells += 1
            read = self.first[number] + 2 * offset_in_piece
            self.actions.append(Action(tuple(waits), tuple(sources), (held,)))
            self.actions.append(Action((read,), (held,), tuple(targets)))


def look(draft: Draft, states: int = STATES, values_of_races: bool = True) -> Outcome:
    """Look at a program at all sizes."""
    outcome = Outcome()
    values = _inputs(draft)
    wanted = _wanted(draft, values)
    for limit in per_message(draft):
        where = f"{limit} chunks a message"
        try:
            program = Unrolled(draft, limit)
        except Fault as fault:
            outcome.fault = outcome.fault or f"{where}: {fault}"
            continue

        order = order_of(program.actions)
        if len(order) < len(program.actions):
            outcome.hangs = outcome.hangs or where
            continue

        start: list[Value] = [JUNK] * program.cells
        for rank in range(draft["ranks"]):
            low = rank * AREAS * CHUNKS
            start[low : low + CHUNKS] = values[rank]

        results = {tuple(run(program.actions, order, start))}
        races = races_of(program.actions, order, program.shared)
        if races:
            outcome.races = outcome.races or where
            if values_of_races:
                for swapped in both_orders(program.actions, order, races[:PAIRS]):
                    results.add(tuple(run(program.actions, swapped, start)))
                results |= _of_races(program, start, results, wanted, states, outcome)
            else:
                outcome.decided = False
        if not _all_right(results, wanted):
            outcome.wrong = outcome.wrong or where
    return outcome


def _inputs(draft: Draft) -> list[list[int]]:
    """What each rank's input holds: 61 random bits, so that different sums hardly ever agree."""
    draw = random.Random(len(draft["blocks"]))
    inputs = []
    for _ in range(draft["ranks"]):
        inputs.append([draw.randrange(1, 2**61) for _ in range(CHUNKS)])
    return inputs


def _wanted(draft: Draft, values: list[list[int]]) -> dict[int, int]:
    """What is to be at which address at the end."""
    wanted = {}
    for address, rank, chunk in draft["demand"]:
        if rank < 0:
            wanted[address] = sum(of_rank[chunk] for of_rank in values)
        else:
            wanted[address] = values[rank][chunk]
    return wanted


def _all_right(results: set[tuple[Value, ...]], wanted: dict[int, int]) -> bool:
    return all(_right(memory, wanted) for memory in results)


def _right(memory: tuple[Value, ...], wanted: dict[int, int]) -> bool:
    return all(memory[address] == value for address, value in wanted.items())


def _of_races(
    program: Unrolled,
    start: list[Value],
    results: set[tuple[Value, ...]],
    wanted: dict[int, int],
    states: int,
    outcome: Outcome,
) -> set[tuple[Value, ...]]:
    """What else memory can hold at the end, where all results so far are right."""
    if not _all_right(results, wanted):
        return set()
    try:
        return ends(program.actions, start, program.shared, states)
    except Undecided:
        outcome.decided = False
        return samples(program.actions, start, program.shared, SCHEDULES, seed=2)
