"""Random faults for pipeline documents: up to three small changes of a right one."""

import copy
import random
import re
from collections.abc import Callable

from tests.verify.pipeline.documents import Document, all_right, in_a_random_instance, split

RIGHT = list(all_right().values())
KINDS = ["F", "I", "W", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"]
Change = Callable[[list[str], int, Document, random.Random], object]
"""Changes a program at an action."""


def mutant(rng: random.Random) -> Document:
    """A right schedule in a random instance, then none to three changes."""
    doc = in_a_random_instance(copy.deepcopy(rng.choice(RIGHT)), rng)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        program = rng.choice([program for program in doc["programs"] if program])
        rng.choice(CHANGES)(program, rng.randrange(len(program)), doc, rng)
        if not any(doc["programs"]):
            break
    return doc


def _drop(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    del program[i]


def _double(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    program.insert(rng.randint(0, len(program)), program[i])


def _move(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    action = program.pop(i)
    program.insert(rng.randint(0, len(program)), action)


def _neighbours(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    """Two neighbouring actions change places: most often still a right schedule."""
    program[i - 1 : i + 1] = program[i - 1 : i + 1][::-1]


def _same_kind(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    """Two actions of one kind and stage change places: microbatches overtake each other."""
    bodies = [action.rstrip("0123456789") for action in program]
    j = rng.choice([j for j, body in enumerate(bodies) if body == bodies[i]])
    program[i], program[j] = program[j], program[i]


def _elsewhere(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    """An action goes to another rank."""
    action, other = program.pop(i), rng.choice(doc["programs"])
    other.insert(rng.randint(0, len(other)), action)


def _rewrite(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    """Another stage, kind or microbatch."""
    parts = list(split(program[i]))
    if parts[2] >= 0:
        stage, microbatch = rng.randint(0, doc["stages"]), rng.randint(0, doc["microbatches"])
        what = rng.randrange(3)
        parts[what] = (stage, rng.choice(KINDS), microbatch)[what]
        program[i] = "".join(map(str, parts))


def _fuse(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    """An I becomes a B, or a B an I and a W."""
    places = [j for j, action in enumerate(program) if re.fullmatch(r"\d+[IB]\d+", action)]
    if places:
        j = rng.choice(places)
        action = program[j]
        if "B" in action:
            program[j : j + 1] = [action.replace("B", "I"), action.replace("B", "W")]
        else:
            program[j] = action.replace("I", "B")
            if action.replace("I", "W") in program:
                program.remove(action.replace("I", "W"))


def _shard(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    stage = split(program[i])[0]
    begin, end = sorted(rng.sample(range(len(program) + 2), 2))
    program.insert(begin, f"{stage}UNSHARD")
    if rng.random() < 0.8:
        program.insert(end, f"{stage}RESHARD")


def _claim(program: list[str], i: int, doc: Document, rng: random.Random) -> None:
    doc["meta"][rng.choice(["makespan", "lower_bound"])] = rng.randint(0, 200)


CHANGES: list[Change] = [
    *(_drop, _double, _move, _move, _neighbours, _neighbours, _neighbours),
    *(_same_kind, _elsewhere, _rewrite, _fuse, _shard, _claim),
]
