"""All interleavings of actions that wait for each other, with real values in real memory.

An *action* stores the sum of its source cells in its target cells, at one moment. It waits for
other actions; which ones is known before anything runs. Two actions *race* if they touch one cell,
one of them writing, and neither comes before the other. An interleaving that swaps two actions that
do not race has the same values, so it is enough to try both orders of those that do: without races
one run stands for all. :func:`ends` does so, state by state; with ``reduce=False`` it tries
everything, which the tests compare.

Memory that holds nothing defined holds ``JUNK``, which spoils every sum. Nothing here is shared
with ``verify``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

JUNK = None
NEVER = -1
"""Instead of an action: what is waited for is done nowhere."""

Value = int | None


class Action(NamedTuple):
    """``targets`` get the sum of ``sources``, when all of ``after`` have happened."""

    after: tuple[int, ...]
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()


class Undecided(Exception):
    """There are more states than were to be looked at."""


def order_of(actions: list[Action]) -> list[int]:
    """The actions that happen, in an order in which they can; all, if the program ends."""
    missing = [0] * len(actions)
    later: list[list[int]] = [[] for _ in actions]
    ready = []
    for number, action in enumerate(actions):
        missing[number] = len(action.after)
        for earlier in action.after:
            if earlier != NEVER:
                later[earlier].append(number)
        if not action.after:
            ready.append(number)

    happened = []
    while ready:
        number = ready.pop()
        happened.append(number)
        for successor in later[number]:
            missing[successor] -= 1
            if not missing[successor]:
                ready.append(successor)
    return happened


def races_of(actions: list[Action], order: list[int], shared: int) -> list[tuple[int, int]]:
    """All pairs of actions that meet at a cell below ``shared`` in no fixed order.

    Cells from ``shared`` on belong to one message or one moment between reading and writing, and
    are touched in one order by what they are.
    """
    before = [0] * len(actions)  # per action, a bit for each that must have happened
    touching: dict[int, list[tuple[int, bool]]] = {}
    races = set()
    for number in order:
        action = actions[number]
        must_precede = 0
        for earlier in action.after:
            must_precede |= before[earlier] | 1 << earlier
        before[number] = must_precede

        for cells, writes in ((action.sources, False), (action.targets, True)):
            for cell in cells:
                if cell >= shared:
                    continue
                accesses = touching.setdefault(cell, [])
                for previous, wrote in accesses:
                    ordered = previous == number or must_precede >> previous & 1
                    if (wrote or writes) and not ordered:
                        races.add((previous, number))
                accesses.append((number, writes))
    return sorted(races)


def perform(action: Action, memory: list[Value]) -> None:
    """Carry out one action."""
    if not action.targets:
        return

    total: Value = 0
    for cell in action.sources:
        value = memory[cell]
        if value is JUNK:
            total = JUNK
            break
        total += value

    for cell in action.targets:
        memory[cell] = total


def run(actions: list[Action], order: list[int], memory: list[Value]) -> list[Value]:
    """The memory after one interleaving."""
    cells = list(memory)
    for number in order:
        perform(actions[number], cells)
    return cells


def ends(
    actions: list[Action],
    memory: list[Value],
    shared: int,
    most_states: int = 20_000,
    reduce: bool = True,
) -> set[tuple[Value, ...]]:
    """What shared memory holds at the end, over all interleavings; the program ends.

    Raises:
        Undecided: there are more than ``most_states`` states.
    """
    order = order_of(actions)
    rivals = _rivals(actions, order, shared, reduce)
    needs = [_bits(action.after) for action in actions]
    everything = _bits(order)
    final_memories: set[tuple[Value, ...]] = set()
    visited: set[tuple[int, tuple[Value, ...]]] = set()

    todo = [(0, list(memory))]
    while todo:
        done, current = todo.pop()

        # An action without a rival that is still to come may as well happen now.
        while True:
            ready = [n for n in order if not done >> n & 1 and not needs[n] & ~done]
            alone = [n for n in ready if not rivals[n] & everything & ~done]
            if not alone:
                break
            for number in alone:
                perform(actions[number], current)
                done |= 1 << number

        if not ready:
            final_memories.add(tuple(current[:shared]))
            continue

        state = (done, tuple(current))
        if state in visited:
            continue
        visited.add(state)
        if len(visited) > most_states:
            raise Undecided

        for number in ready:
            after = list(current)
            perform(actions[number], after)
            todo.append((done | 1 << number, after))
    return final_memories


def _bits(numbers: Iterable[int]) -> int:
    """A set of actions as the bits of one number."""
    bits = 0
    for number in set(numbers):
        bits |= 1 << number
    return bits


def _rivals(actions: list[Action], order: list[int], shared: int, reduce: bool) -> list[int]:
    """Per action, those with which both orders are to be tried; all others without ``reduce``."""
    if not reduce:
        all_actions = (1 << len(actions)) - 1
        return [all_actions - (1 << number) for number in range(len(actions))]

    rivals = [0] * len(actions)
    for first, second in races_of(actions, order, shared):
        rivals[first] |= 1 << second
        rivals[second] |= 1 << first
    return rivals


def both_orders(
    actions: list[Action], order: list[int], races: list[tuple[int, int]]
) -> list[list[int]]:
    """For each race, an interleaving in which the one is first, and one with the other.

    What is first comes as early as it can, with nothing before it but what it waits for.
    """
    orders = []
    for pair in races:
        for first in pair:
            before = {first}
            todo = [first]
            while todo:
                for earlier in actions[todo.pop()].after:
                    if earlier not in before:
                        before.add(earlier)
                        todo.append(earlier)

            early = [number for number in order if number in before]
            late = [number for number in order if number not in before]
            orders.append(early + late)
    return orders


def samples(
    actions: list[Action], memory: list[Value], shared: int, count: int, seed: int
) -> set[tuple[Value, ...]]:
    """What shared memory holds at the end, over so many interleavings drawn at random.

    In one of two runs every action has a priority, so that some are delayed for long; in the other
    each next action is drawn from those that are ready, which mixes all.
    """
    draw = random.Random(seed)
    final_memories = set()
    later: list[list[int]] = [[] for _ in actions]
    for number, action in enumerate(actions):
        for earlier in set(action.after):
            later[earlier].append(number)

    for turn in range(count):
        missing = [len(set(action.after)) for action in actions]
        ready = [number for number, action in enumerate(actions) if not action.after]
        priority = [draw.random() for _ in actions]
        current = list(memory)

        while ready:
            number = draw.choice(ready) if turn % 2 else max(ready, key=priority.__getitem__)
            ready.remove(number)
            perform(actions[number], current)
            for successor in later[number]:
                missing[successor] -= 1
                if not missing[successor]:
                    ready.append(successor)
        final_memories.add(tuple(current[:shared]))
    return final_memories
