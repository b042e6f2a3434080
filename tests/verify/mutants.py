"""Random faults for schedule documents: one to three small changes of a right one."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from tests.verify.builders import Document, all_right, shuffled

Place = tuple[int, int, int]
"""Indices of phase, round, transfer."""

RIGHT = list(all_right().values())


def mutant(rng: random.Random) -> Document:
    """A right schedule under random names, then one to three mutations."""
    doc = copy.deepcopy(shuffled(rng.choice(RIGHT), rng))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MUTATIONS)(doc, rng)
    return doc


def _somewhere(doc: Document, rng: random.Random) -> Place | None:
    places = [
        (p, r, t)
        for p, phase in enumerate(doc["phases"])
        for r, moves in enumerate(phase["rounds"])
        for t in range(len(moves))
    ]
    return rng.choice(places) if places else None


def _at_transfer(change: Callable[[Document, Place, random.Random], None]) -> Mutation:
    def mutate(doc: Document, rng: random.Random) -> None:
        place = _somewhere(doc, rng)
        if place is not None:
            change(doc, place, rng)

    return mutate


Mutation = Callable[[Document, random.Random], None]


def _drop(doc: Document, at: Place, rng: random.Random) -> None:
    p, r, t = at
    del doc["phases"][p]["rounds"][r][t]


def _double(doc: Document, at: Place, rng: random.Random) -> None:
    p, r, t = at
    moves = doc["phases"][p]["rounds"][r]
    moves.insert(rng.randint(0, len(moves)), list(moves[t]))


def _field(number: int, size: str) -> Callable[[Document, Place, random.Random], None]:
    def change(doc: Document, at: Place, rng: random.Random) -> None:
        p, r, t = at
        limit = doc[size]
        outside = rng.random() < 0.02
        value = rng.choice((-1, limit, 2**70)) if outside else rng.randrange(limit)
        doc["phases"][p]["rounds"][r][t][number] = value

    return change


def _flip(doc: Document, at: Place, rng: random.Random) -> None:
    p, r, t = at
    move = doc["phases"][p]["rounds"][r][t]
    move[3] = {"copy": "reduce", "reduce": "copy"}[move[3]]


def _turn_around(doc: Document, at: Place, rng: random.Random) -> None:
    p, r, t = at
    move = doc["phases"][p]["rounds"][r][t]
    move[0], move[1] = move[1], move[0]


def _move(doc: Document, at: Place, rng: random.Random) -> None:
    """Into another round, in any phase."""
    p, r, t = at
    move = doc["phases"][p]["rounds"][r].pop(t)
    target = rng.choice([phase for phase in doc["phases"] if phase["rounds"]])
    moves = rng.choice(target["rounds"])
    moves.insert(rng.randint(0, len(moves)), move)


def _swap(doc: Document, at: Place, rng: random.Random) -> None:
    """Two transfers change places."""
    other = _somewhere(doc, rng)
    assert other is not None
    one, two = (doc["phases"][p]["rounds"][r] for p, r, _ in (at, other))
    one[at[2]], two[other[2]] = two[other[2]], one[at[2]]


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
    *map(
        _at_transfer,
        [
            _drop,
            _double,
            _field(0, "ranks"),
            _field(1, "ranks"),
            _field(2, "chunks"),
            _flip,
            _turn_around,
            _move,
            _swap,
        ],
    ),
    _swap_rounds,
    _reorder,
    _absent,
    _ports,
    _claim,
]
