"""Random device programs for the extracted checker: right ones, and such with changed rows.

Each is the rows of a right schedule, as the machine that is the oracle of the tests makes them,
with no change or up to three, or rows that match in random order. The schedule is beside them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from latecomer.verify import decode
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.device.program import DeviceProgram
from tests.verify.builders import (
    Document,
    direct,
    document,
    halving_doubling,
    moves,
    recursive_doubling,
    ring,
    straggler,
)
from tests.verify.device.machine import COPY, PUT, REDUCE, lowered

Rows = list[list[list[int]]]


def star(ranks: int, root: int) -> Document:
    """All to one, one after another, and back."""
    leaves = [rank for rank in range(ranks) if rank != root]
    gather = [f"{rank}+{root}:0" for rank in leaves]
    scatter = [f"{root}={rank}:0" for rank in leaves]
    return document(ranks, 1, [("star", [], [moves(move) for move in gather + scatter])])


def right_schedule(rng: random.Random) -> Document:
    """A small one of any kind."""
    kind = rng.randrange(6)
    if kind == 0:
        return ring(rng.randint(2, 5))
    if kind == 1:
        return straggler(rng.randint(3, 6), blocks=rng.randint(1, 2))
    if kind == 2:
        return direct(rng.randint(2, 5), rng.randint(1, 3))
    if kind == 3:
        return recursive_doubling(rng.choice([2, 4, 8]))
    if kind == 4:
        return halving_doubling(rng.choice([2, 4]))
    ranks = rng.randint(2, 5)
    return star(ranks, rng.randrange(ranks))


def change(rng: random.Random, rows: Rows, chunks: int) -> None:
    """One edit of one row, or of two."""
    ranks = len(rows)
    rank = rng.randrange(ranks)
    own = rows[rank]
    if not own:
        return

    index = rng.randrange(len(own))
    kind = rng.choice(
        ["swap", "near", "drop", "double", "action", "peer", "chunk", "slot", "pair", "rename"]
    )
    if kind == "swap":
        swap(own, index, rng.randrange(len(own)))
    elif kind == "near" and index:
        swap(own, index - 1, index)
    elif kind == "drop":
        del own[index]
    elif kind == "double":
        own.insert(rng.randint(0, len(own)), list(own[index]))
    elif kind == "action":
        own[index][0] = rng.choice([PUT, REDUCE, COPY])
    elif kind == "peer":
        own[index][1] = rng.randint(-1, ranks)
    elif kind == "chunk":
        own[index][2] = rng.randint(-1, chunks)
    elif kind == "slot":
        own[index][3] = rng.randint(-1, 1 + max(row[3] for row in own))
    elif kind == "pair":
        change_both_ends(rng, rows, rank, index, chunks)
    elif kind == "rename":
        rename_slots(rng, rows, rank)


def swap(own: list[list[int]], first: int, second: int) -> None:
    row = own[first]
    own[first] = own[second]
    own[second] = row


def other_end(rows: Rows, rank: int, index: int) -> list[int] | None:
    """The row that puts what this one receives, or the other way round."""
    action, peer, _, slot = rows[rank][index]
    if not 0 <= peer < len(rows):
        return None
    for row in rows[peer]:
        if (row[0] == PUT) != (action == PUT) and row[1] == rank and row[3] == slot:
            return row
    return None


def change_both_ends(rng: random.Random, rows: Rows, rank: int, index: int, chunks: int) -> None:
    """Another chunk is moved, which both ends know: rows still match, and sums are wrong."""
    matching = other_end(rows, rank, index)
    if matching is not None:
        rows[rank][index][2] = matching[2] = rng.randrange(chunks)


def rename_slots(rng: random.Random, rows: Rows, rank: int) -> None:
    """A rank's slots under other numbers, now and then with a gap."""
    used = sorted({row[3] for row in rows[rank] if row[0] != PUT})
    with_gap = rng.random() < 0.3
    new_slots = list(range(len(used) + with_gap))
    rng.shuffle(new_slots)
    new_slot_of = dict(zip(used, new_slots, strict=False))  # with a gap, one is left over

    for receiver, own in enumerate(rows):
        for row in own:
            holder = row[1] if row[0] == PUT else receiver
            if holder == rank and row[3] in new_slot_of:
                row[3] = new_slot_of[row[3]]


def matched_rows(rng: random.Random, ranks: int) -> Rows:
    """Rows that match, of one chunk, in any order: cycles and races are frequent."""
    rows: Rows = [[] for _ in range(ranks)]
    slots = [0] * ranks
    for _ in range(rng.randint(1, 6)):
        src = rng.randrange(ranks)
        dst = (src + rng.randint(1, ranks - 1)) % ranks
        rows[src].append([PUT, dst, 0, slots[dst]])
        rows[dst].append([rng.choice([REDUCE, COPY]), src, 0, slots[dst]])
        slots[dst] += 1
    for own in rows:
        rng.shuffle(own)
    return rows


def device_programs(rng: random.Random) -> Iterator[Document]:
    """Without end."""
    while True:
        doc = right_schedule(rng)
        rows = lowered(json.dumps(doc))
        if rng.random() < 0.2:
            doc = star(len(rows), 0)
            rows = matched_rows(rng, len(rows))
        else:
            for _ in range(rng.choice([0, 0, 1, 1, 1, 2, 3])):
                change(rng, rows, doc["chunks"])

        largest_slot = max((row[3] for own in rows for row in own), default=-1)
        yield {
            "format": "latecomer-device/1",
            "ranks": doc["ranks"],
            "chunks": doc["chunks"],
            "sets": rng.choice([1, 1, 2, 2, 4]),
            "slots": max(0, largest_slot + 1),
            "rows": rows,
            "schedule": doc,
        }


def decoded_program(text: bytes) -> tuple[DeviceProgram, Schedule]:
    """What :func:`device_programs` made."""
    doc: dict[str, Any] = json.loads(text)
    program = DeviceProgram(
        chunks=doc["chunks"],
        slots=doc["slots"],
        sets=doc["sets"],
        rows=tuple(np.array(rows, np.int32).reshape(-1, 4) for rows in doc["rows"]),
    )
    return program, decode(json.dumps(doc["schedule"]).encode())
