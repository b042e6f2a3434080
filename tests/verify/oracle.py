"""A slow, naive judge of schedule documents that shares no code with ``verify``.

It reads the text with the plain ``json`` module and *runs* the schedule: on bags of contributions,
and with a random operation that commutes but does not associate, where two different expression
trees can't go unseen. Everything else is counting. The same run, with transfers lost, says what
their loss does.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

Document = dict[str, Any]
State = dict[tuple[int, int], Any]
"""What each (rank, chunk) holds."""
Entry = tuple[int, int, int]
Judgement = dict[str, bool]


def judge(text: str | bytes, rng: random.Random) -> Judgement:
    """Property name -> whether it holds; only ``well_formed`` where that fails."""
    doc = json.loads(text)
    if not _well_formed(doc):
        return {"well_formed": False}
    return {
        "well_formed": True,
        "ports": _ports(doc),
        "absence": _absence(doc),
        "exactly_once": not any(ending(doc, frozenset())[:2]),
        "same_bits": _same_bits(doc, rng),
        "hazards": _hazards(doc),
        "claims": _claims(doc),
    }


def _rounds(doc: Document) -> list[tuple[Document, list[list[Any]]]]:
    return [(phase, moves) for phase in doc["phases"] for moves in phase["rounds"]]


def transfers(doc: Document) -> list[list[Any]]:
    return [move for _, moves in _rounds(doc) for move in moves]


def _well_formed(doc: Document) -> bool:
    ranks = range(doc["ranks"])
    chunks = range(doc["chunks"])
    for phase in doc["phases"]:
        if not set(phase["absent"]) <= set(doc["late"]):
            return False
    for src, dst, chunk, _ in transfers(doc):
        if src not in ranks or dst not in ranks or src == dst or chunk not in chunks:
            return False
    return True


def _ports(doc: Document) -> bool:
    incast = doc["ports"]["incast"] if isinstance(doc["ports"], dict) else 1
    for _, moves in _rounds(doc):
        sends = Counter(move[0] for move in moves)
        receives = Counter(move[1] for move in moves)
        if max([*sends.values(), *receives.values()], default=0) > incast:
            return False
        if doc["ports"] == "matching":
            pairs = {frozenset(move[:2]) for move in moves}
            if max(Counter(rank for pair in pairs for rank in pair).values(), default=0) > 1:
                return False
    return True


def _absence(doc: Document) -> bool:
    for phase, moves in _rounds(doc):
        for src, dst, _, _ in moves:
            if src in phase["absent"] or dst in phase["absent"]:
                return False
    return True


def _hazards(doc: Document) -> bool:
    for _, moves in _rounds(doc):
        writers = Counter((dst, chunk) for _, dst, chunk, _ in moves)
        for _, dst, chunk, op in moves:
            alone = op == "copy" or not isinstance(doc["ports"], dict)
            if alone and writers[dst, chunk] > 1:
                return False
    return True


def run(
    doc: Document,
    state: State,
    add: Callable[[Any, Any], Any],
    lost: AbstractSet[int] = frozenset(),
    blank: Mapping[int, Any] = {},
) -> State:
    """What is held at the end; lost transfers do nothing, blank ones bring another value."""
    state = dict(state)
    number = 0
    for _, moves in _rounds(doc):
        before = dict(state)
        for src, dst, chunk, op in moves:
            if number not in lost:
                value = blank.get(number, before[src, chunk])
                state[dst, chunk] = value if op == "copy" else add(state[dst, chunk], value)
            number += 1
    return state


def _same_bits(doc: Document, rng: random.Random) -> bool:
    key = rng.randbytes(16)

    def add(a: bytes, b: bytes) -> bytes:
        return hashlib.blake2b(min(a, b) + max(a, b), key=key, digest_size=16).digest()

    state = {(r, c): rng.randbytes(16) for r in range(doc["ranks"]) for c in range(doc["chunks"])}
    state = run(doc, state, add)
    return all(value == state[0, c] for (_, c), value in state.items())


class Ending(NamedTuple):
    """Entries (rank, chunk, contribution) that are missing or there twice; whether ranks differ."""

    missing: frozenset[Entry]
    twice: frozenset[Entry]
    differ: bool


def ending(doc: Document, lost: AbstractSet[int], blank: AbstractSet[int] = frozenset()) -> Ending:
    """How the schedule ends if the transfers with these numbers, in file order, do not arrive.

    ``blank`` ones arrive with nothing in them: a blank copy leaves nothing, not what was there.
    """
    ranks = range(doc["ranks"])
    chunks = range(doc["chunks"])
    start = {(r, c): Counter([r]) for r in ranks for c in chunks}
    state = run(doc, start, Counter.__add__, lost, {number: Counter[int]() for number in blank})
    counts = {(r, c, q): value[q] for (r, c), value in state.items() for q in ranks}
    return Ending(
        frozenset(entry for entry, count in counts.items() if count == 0),
        frozenset(entry for entry, count in counts.items() if count > 1),
        any(value != state[0, c] for (_, c), value in state.items()),
    )


def _claims(doc: Document) -> bool:
    """The counts that can be claimed; ``optimal`` is left to the tests of the bounds."""
    completion = [moves for phase, moves in _rounds(doc) if not phase["absent"]]
    counts = {"rounds": len(_rounds(doc)), "completion_rounds": len(completion)}
    return all(doc["meta"].get(name, value) == value for name, value in counts.items())
