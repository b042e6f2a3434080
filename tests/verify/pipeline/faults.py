"""Random faults for pipeline documents: up to three small changes of a right one."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable

from tests.verify.pipeline.documents import Document, all_right, in_a_random_situation

RIGHT = list(all_right().values())
KINDS = ["F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]


def mutant(rng: random.Random) -> Document:
    """A right schedule in a random situation, then none to three mutations."""
    doc = in_a_random_situation(copy.deepcopy(rng.choice(RIGHT)), rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        rng.choice(MUTATIONS)(doc, rng)
    return doc


def _program(doc: Document, rng: random.Random) -> list[str]:
    return rng.choice([program for program in doc["programs"] if program] or [[]])


def _drop(doc: Document, rng: random.Random) -> None:
    program = _program(doc, rng)
    if program:
        del program[rng.randrange(len(program))]


def _double(doc: Document, rng: random.Random) -> None:
    program = _program(doc, rng)
    if program:
        program.insert(rng.randint(0, len(program)), rng.choice(program))


def _move(doc: Document, rng: random.Random) -> None:
    program = _program(doc, rng)
    if program:
        action = program.pop(rng.randrange(len(program)))
        program.insert(rng.randint(0, len(program)), action)


def _neighbours(doc: Document, rng: random.Random) -> None:
    """Two neighbouring actions change places: most often still a right schedule."""
    program = _program(doc, rng)
    if len(program) > 1:
        i = rng.randrange(len(program) - 1)
        program[i], program[i + 1] = program[i + 1], program[i]


def _same_kind(doc: Document, rng: random.Random) -> None:
    """Two actions of one kind and stage change places: microbatches overtake each other."""
    program = _program(doc, rng)
    if program:
        i = rng.randrange(len(program))
        body = program[i].rstrip("0123456789")
        same = [j for j, other in enumerate(program) if other.rstrip("0123456789") == body]
        j = rng.choice(same)
        program[i], program[j] = program[j], program[i]


def _elsewhere(doc: Document, rng: random.Random) -> None:
    """An action goes to another rank."""
    program = _program(doc, rng)
    if program:
        action = program.pop(rng.randrange(len(program)))
        other = rng.choice(doc["programs"])
        other.insert(rng.randint(0, len(other)), action)


def _rewrite(doc: Document, rng: random.Random) -> None:
    """Another stage, kind or microbatch."""
    program = _program(doc, rng)
    if not program:
        return
    i = rng.randrange(len(program))
    match = re.fullmatch(r"(\d+)([A-Z_]+)(\d*)", program[i])
    assert match is not None
    stage, kind, microbatch = match.groups()
    if not microbatch:
        return
    what = rng.randrange(3)
    if what == 0:
        stage = str(rng.randint(0, doc["stages"]))
    elif what == 1:
        kind = rng.choice(KINDS)
    else:
        microbatch = str(rng.randint(0, doc["microbatches"]))
    program[i] = stage + kind + microbatch


def _fuse(doc: Document, rng: random.Random) -> None:
    """An I becomes a B, or a B an I and a W."""
    program = _program(doc, rng)
    places = [i for i, action in enumerate(program) if re.fullmatch(r"\d+[IB]\d+", action)]
    if places:
        i = rng.choice(places)
        if "B" in program[i]:
            program[i : i + 1] = [program[i].replace("B", "I"), program[i].replace("B", "W")]
        else:
            weight = program[i].replace("I", "W")
            program[i] = program[i].replace("I", "B")
            if weight in program:
                program.remove(weight)


def _shard(doc: Document, rng: random.Random) -> None:
    program = _program(doc, rng)
    if program:
        stage = re.match(r"\d+", rng.choice(program))
        assert stage is not None
        begin, end = sorted(rng.sample(range(len(program) + 2), 2))
        program.insert(begin, f"{stage[0]}UNSHARD")
        if rng.random() < 0.8:
            program.insert(end, f"{stage[0]}RESHARD")


def _claim(doc: Document, rng: random.Random) -> None:
    doc["meta"][rng.choice(["makespan", "lower_bound"])] = rng.randint(0, 200)


MUTATIONS: list[Callable[[Document, random.Random], None]] = [
    _drop,
    _double,
    _move,
    _move,
    _neighbours,
    _neighbours,
    _neighbours,
    _same_kind,
    _elsewhere,
    _rewrite,
    _fuse,
    _shard,
    _claim,
]
