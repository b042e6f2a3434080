"""Who runs next, what strong loads find, when hosts stop: at random, by a seed.

Groups that only look at words again and again, and have seen the newest message of each, sleep
until something is stored: they are in the same state whenever they look. So a hang is seen at once:
nobody is awake, and no kernel can begin. What becomes visible does so in the end: a load finds an
old message with a probability, which is below one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.runtime.device.ptx.group import Group
from tests.runtime.device.ptx.machine import Machine
from tests.runtime.device.ptx.regions import Wrong

LONGEST = 100_000
"""Steps of a run: the longest here have a tenth."""


@dataclass
class Outcome:
    """How a run went: ``steps`` from one strong access to the next, and strong loads that found
    an ``old`` message.
    """

    steps: int = 0
    old: int = 0


class Adversary:
    """One seed's choices.

    Args:
        seed: for all of them.
        stops: by rank, after how many steps its host raises the stop word. Where a rank was
            stopped and the others wait for it, their hosts stop them, too, as the runtime does.
        most: steps, beyond which a run is taken to hang.
    """

    def __init__(self, seed: int, stops: dict[int, int] | None = None, most: int = LONGEST) -> None:
        self._most = most
        self._dice = random.Random(seed)
        self._stops = dict(stops or {})
        self._stale = self._dice.choice([0.0, 0.2, 0.5, 0.8])
        self._speeds: dict[object, float] = {}
        self.outcome = Outcome()

    def run(self, machine: Machine) -> Outcome:
        """Until all kernels have ended; Wrong for a hang, or what the machine finds."""
        while not machine.has_ended:
            self.outcome.steps += 1
            if self.outcome.steps > self._most:
                raise Wrong("a hang: some go on, and come to no end")
            for rank, at in list(self._stops.items()):
                if self.outcome.steps >= at:
                    self._stop(machine, rank)
            choices = self._choices(machine)
            if not choices:
                self._end_the_wait(machine)
                continue
            weights = [speed for speed, _ in choices]
            _, act = self._dice.choices(choices, weights)[0]
            act()
            if self._dice.random() < 0.02 and self._speeds:
                self._speeds[self._dice.choice(list(self._speeds))] = self._speed()
        return self.outcome

    def _choices(self, machine: Machine) -> list[tuple[float, Callable[[], object]]]:
        choices: list[tuple[float, Callable[[], object]]] = []
        for rank, run in enumerate(machine.ranks):
            if run.may_begin:
                speed = self._speed_of(("begins", rank, run.launched))
                choices.append((speed, lambda rank=rank: machine.begin(rank)))
        for group in machine.groups():
            if not is_asleep(group, machine):
                speed = self._speed_of((group.block.order.number, group.unit))
                choices.append((speed, lambda group=group: group.advance(self._choose)))
        return choices

    def _speed_of(self, what: object) -> float:
        if what not in self._speeds:
            self._speeds[what] = self._speed()
        return self._speeds[what]

    def _speed(self) -> float:
        return self._dice.random() ** 3 + 1e-4

    def _choose(self, oldest: int, newest: int) -> int:
        if self._dice.random() >= self._stale:
            return newest
        found = self._dice.randint(oldest, newest)
        self.outcome.old += found < newest
        return found

    def _stop(self, machine: Machine, rank: int) -> None:
        self._stops.pop(rank, None)
        if rank not in machine.stopped:
            machine.stop(rank)

    def _end_the_wait(self, machine: Machine) -> None:
        """Nobody can go on."""
        if self._stops:
            self._stop(machine, next(iter(self._stops)))
        elif machine.stopped and len(machine.stopped) < len(machine.ranks):
            left = [rank for rank in range(len(machine.ranks)) if rank not in machine.stopped]
            self._stop(machine, self._dice.choice(left))
        else:
            raise Wrong("a hang: all that run wait for what nobody will do")


def is_asleep(group: Group, machine: Machine) -> bool:
    """Whether it looks at words in turn, and has seen the newest message of each twice."""
    return group.stutters >= 2 * len(group.polls) > 0 and all(
        machine.memory.newest(at) == seen for at, seen in group.polls.items()
    )
