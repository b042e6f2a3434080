"""Random faults for schedule documents: one to three small changes of a right one."""

import random
from collections.abc import Callable
from typing import Any

from tests.verify.builders import Document, all_right, shuffled

RIGHT = list(all_right().values())


def mutant(rng: random.Random) -> Document:
    """A right schedule under random names, then one to three mutations."""
    doc = shuffled(rng.choice(RIGHT), rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MUTATIONS)(doc, rng)
    return doc


Mutation = Callable[[Document, random.Random], None]
Moves = list[list[Any]]


def _somewhere(doc: Document, rng: random.Random) -> tuple[Moves, int] | None:
    """A round, and the index of a transfer in it."""
    rounds = [moves for phase in doc["phases"] for moves in phase["rounds"]]
    places = [(moves, t) for moves in rounds for t in range(len(moves))]
    return rng.choice(places) if places else None


def _at_transfer(change: Callable[[Document, Moves, int, random.Random], None]) -> Mutation:
    def mutate(doc: Document, rng: random.Random) -> None:
        place = _somewhere(doc, rng)
        if place is not None:
            change(doc, *place, rng)

    return mutate


def _drop(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
    del moves[t]


def _double(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
    moves.insert(rng.randint(0, len(moves)), list(moves[t]))


def _field(number: int, size: str) -> Callable[[Document, Moves, int, random.Random], None]:
    def change(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
        limit = doc[size]
        outside = rng.random() < 0.02
        moves[t][number] = rng.choice((-1, limit, 2**70)) if outside else rng.randrange(limit)

    return change


def _flip(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
    moves[t][3] = {"copy": "reduce", "reduce": "copy"}[moves[t][3]]


def _turn_around(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
    moves[t][:2] = reversed(moves[t][:2])


def _move(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
    """Into another round, in any phase."""
    move = moves.pop(t)
    target = rng.choice([phase for phase in doc["phases"] if phase["rounds"]])
    there = rng.choice(target["rounds"])
    there.insert(rng.randint(0, len(there)), move)


def _swap(doc: Document, moves: Moves, t: int, rng: random.Random) -> None:
    """Two transfers change places."""
    other = _somewhere(doc, rng)
    assert other is not None
    there, u = other
    moves[t], there[u] = there[u], moves[t]


def _swap_rounds(doc: Document, rng: random.Random) -> None:
    rounds = rng.choice(doc["phases"])["rounds"]
    if rounds:
        a, b = rng.randrange(len(rounds)), rng.randrange(len(rounds))
        rounds[a], rounds[b] = rounds[b], rounds[a]


def _reorder(doc: Document, rng: random.Random) -> None:
    """Another order within a round: it matters only where several reduces meet."""
    rounds = rng.choice(doc["phases"])["rounds"]
    if rounds:
        rng.shuffle(rng.choice(rounds))


def _absent(doc: Document, rng: random.Random) -> None:
    """A rank is away from a phase that it takes part in; declared late most of the time."""
    phase, rank = rng.choice(doc["phases"]), rng.randrange(doc["ranks"])
    if rank not in phase["absent"]:
        phase["absent"].append(rank)
    if rank not in doc["late"] and rng.random() < 0.8:
        doc["late"].append(rank)


def _ports(doc: Document, rng: random.Random) -> None:
    doc["ports"] = rng.choice(["duplex", "matching", {"incast": 1}, {"incast": 2}])


def _claim(doc: Document, rng: random.Random) -> None:
    doc["meta"][rng.choice(["rounds", "completion_rounds"])] = rng.randint(0, 12)


MUTATIONS: list[Mutation] = [
    *map(_at_transfer, [_drop, _double, _field(0, "ranks"), _field(1, "ranks")]),
    *map(_at_transfer, [_field(2, "chunks"), _flip, _turn_around, _move, _swap]),
    *[_swap_rounds, _reorder, _absent, _ports, _claim],
]
