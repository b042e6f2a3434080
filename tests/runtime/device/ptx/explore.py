"""All interleavings of a small case, and all that its strong loads may find.

States are explored one by one; one that was seen before is not explored again. Whoever waits, and
finds nothing new, stays in the same state, so there are finitely many. Between two strong accesses
of a group of threads nothing else can be told apart, if there is no race (:mod:`group`): it runs on
to the next at once. So it does over a look at a stop word, where no host raises any.

No state may be a dead end: from each one all kernels can still come to their end. (That they do,
takes for granted that each is given time, and that what is stored is found in the end.)
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.runtime.device.ptx.allreduce import AllReduces
from tests.runtime.device.ptx.group import Group
from tests.runtime.device.ptx.machine import Machine
from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.ptx.validation import check


class TooMany(Exception):
    """More states than were allowed."""


@dataclass
class Explored:
    """``states``, ``steps`` between them, and ``ends`` in which all kernels have ended."""

    states: int = 0
    steps: int = 0
    ends: int = 0


def explore(
    runs: AllReduces,
    *,
    stops: bool = False,
    most: int = 100_000,
    check_end: Callable[[AllReduces], object] = check,
) -> Explored:
    """All of a case: Wrong for a state that is not right, TooMany beyond ``most`` states.

    ``stops``: hosts may raise their stop words, at any moment and in any order. ``check_end`` looks
    at each state in which all kernels have ended.
    """
    result = Explored()
    numbers: dict[bytes, int] = {}
    before: list[list[int]] = []
    ends: list[int] = []
    to_visit: list[tuple[int, Machine]] = []

    def number_of(machine: Machine) -> int:
        key = hashlib.blake2b(pickle.dumps(machine.key()), digest_size=16).digest()
        if key not in numbers:
            if len(numbers) >= most:
                raise TooMany(f"more than {most} states")
            numbers[key] = len(numbers)
            before.append([])
            to_visit.append((numbers[key], machine))
            if machine.has_ended:
                runs.machine = machine
                runs.memory = machine.memory
                check_end(runs)
                ends.append(numbers[key])
        return numbers[key]

    number_of(runs.machine)
    while to_visit:
        number, machine = to_visit.pop()
        for following in _next(machine, stops):
            before[number_of(following)].append(number)
            result.steps += 1
    result.states = len(numbers)
    result.ends = len(ends)
    _require_no_dead_end(before, ends)
    return result


def _require_no_dead_end(before: list[list[int]], ends: list[int]) -> None:
    """Wrong if from some state no end can be reached."""
    reaches = set(ends)
    to_visit = list(ends)
    while to_visit:
        for number in before[to_visit.pop()]:
            if number not in reaches:
                reaches.add(number)
                to_visit.append(number)
    if len(reaches) < len(before):
        raise Wrong(f"a hang: from {len(before) - len(reaches)} states no end can be reached")


def _next(machine: Machine, stops: bool) -> Iterator[Machine]:
    """The states that may follow."""
    for rank, run in enumerate(machine.ranks):
        if run.may_begin:
            yield _after(machine, stops, lambda other, rank=rank: other.begin(rank))
        if stops and rank not in machine.stopped and not machine.has_ended:
            yield _after(machine, stops, lambda other, rank=rank: other.stop(rank))
    for at in range(len(machine.groups())):
        choices: list[range] = []

        def choose_newest(oldest: int, newest: int, choices: list[range] = choices) -> int:
            choices.append(range(oldest, newest))
            return newest

        yield _after(machine, stops, lambda other, at=at: other.groups()[at].advance(choose_newest))
        if len(choices) > 1:
            raise Wrong("several threads look at words at once")  # no build has such
        for found in choices[0] if choices else ():
            yield _after(
                machine,
                stops,
                lambda other, at=at, found=found: other.groups()[at].advance(
                    lambda oldest, newest: found
                ),
            )


def _after(machine: Machine, stops: bool, act: Callable[[Machine], object]) -> Machine:
    other = machine.copy()
    act(other)
    quiet = [group for group in other.groups() if _is_quiet(group, other, stops)]
    while quiet:
        for group in quiet:
            group.advance(min)
        quiet = [group for group in other.groups() if _is_quiet(group, other, stops)]
    return other


def _is_quiet(group: Group, machine: Machine, stops: bool) -> bool:
    """Whether what a group does next nobody else can tell, and nobody else can change."""
    strong = group.strong
    if strong is None:
        return True
    return not stops and group.registers[strong.base] in machine.stop_words
