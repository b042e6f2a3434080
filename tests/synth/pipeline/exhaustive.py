"""The optimum by trying every order of every rank; shares no code with what it checks.

Microbatches may overtake each other; links have latency only, and each rank one stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

Task = tuple[str, int]


def _orders(n: int, limit: Fraction | None) -> list[list[Task]]:
    """Every order of F, I, W of n microbatches, each in turn, that holds at most ``limit``."""
    tasks = [(kind, m) for kind in "FIW" for m in range(n)]
    found = []
    for order in itertools.permutations(tasks):
        place = {task: i for i, task in enumerate(order)}
        if any(not place["F", m] < place["I", m] < place["W", m] for m in range(n)):
            continue
        held = [
            sum(Fraction(1) if kind == "F" else Fraction(-1, 2) for kind, _ in order[: i + 1])
            for i in range(len(order))
        ]
        if limit is None or max(held) <= limit:
            found.append(list(order))
    return found


def optimum(
    n: int,
    times: list[list[int]],
    scenarios: list[list[int]],
    memory: tuple[float, ...] | None,
    objective: Callable[[list[Fraction]], Fraction] = max,
) -> Fraction:
    """The least value of one order.

    Args:
        times: of F, of I and of W, per stage.
        scenarios: one or more times a delay per link, both ways.
        objective: of the makespans in all scenarios.
    """
    durations = [
        dict(zip("FIW", map(Fraction, stage), strict=True)) for stage in zip(*times, strict=True)
    ]
    limits = [None] * len(durations) if memory is None else [Fraction(limit) for limit in memory]
    values = []
    for orders in itertools.product(*(_orders(n, limit) for limit in limits)):
        lengths = [_length(orders, durations, list(map(Fraction, d))) for d in scenarios]
        known = [length for length in lengths if length is not None]
        if len(known) == len(scenarios):
            values.append(objective(known))
    return min(values)


def _length(
    orders: tuple[list[Task], ...], durations: list[dict[str, Fraction]], delays: list[Fraction]
) -> Fraction | None:
    """Makespan of given orders; None if they wait for each other."""
    end: dict[tuple[int, str, int], Fraction] = {}
    at, last = [0] * len(orders), len(orders) - 1
    moved = True
    while moved:
        moved = False
        for s, order in enumerate(orders):
            while at[s] < len(order):
                kind, m = order[at[s]]
                ready = end[s, *order[at[s] - 1]] if at[s] else Fraction(0)
                if kind == "F" and s > 0:
                    need, delay = (s - 1, "F", m), delays[s - 1]
                elif kind == "I" and s < last:
                    need, delay = (s + 1, "I", m), delays[s]
                else:
                    need, delay = None, Fraction(0)
                if need is not None:
                    if need not in end:
                        break
                    ready = max(ready, end[need] + delay)
                end[s, kind, m] = ready + durations[s][kind]
                at[s] += 1
                moved = True
    if any(at[s] < len(order) for s, order in enumerate(orders)):
        return None
    return max(end.values())
