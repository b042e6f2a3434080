"""The optimum by trying every order of every rank; shares no code with what it checks.

Microbatches may overtake each other; links have latency only, and each rank one stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, permutations, product
from typing import Any

Order = tuple[tuple[str, int], ...]
HELD = {"F": 1, "I": -0.5, "W": -0.5}


def _orders(n: int, limit: float) -> list[Order]:
    """Every order of F, I, W of n microbatches, each in turn, that holds at most ``limit``."""
    return [
        order
        for order in permutations(product("FIW", range(n)))
        if all(order.index(("F", m)) < order.index(("I", m)) for m in range(n))
        if all(order.index(("I", m)) < order.index(("W", m)) for m in range(n))
        if max(accumulate(HELD[kind] for kind, _ in order)) <= limit
    ]


def optimum(
    n: int,
    times: list[list[int]],
    scenarios: list[list[int]],
    memory: tuple[float, ...] | None,
    objective: Callable[[list[int]], int | Fraction] = max,
) -> int | Fraction:
    """The least value of one order.

    Args:
        times: of F, of I and of W, per stage.
        scenarios: one or more times a delay per link, both ways.
        objective: of the makespans in all scenarios.
    """
    limits = memory or (3.0 * n,) * len(times[0])
    found = (
        [_length(orders, dict(zip("FIW", times, strict=True)), delays) for delays in scenarios]
        for orders in product(*(_orders(n, limit) for limit in limits))
    )
    return min(objective(lengths) for lengths in found if lengths[0])


def _length(orders: tuple[Order, ...], times: dict[str, list[int]], delays: list[int]) -> int:
    """Makespan of given orders; 0 if they wait for each other, whatever the delays."""
    end: dict[tuple[Any, ...], int] = {}
    left = list(map(deque, orders))
    clock = [0] * len(orders)
    while any(left):
        done = len(end)
        for s, row in enumerate(left):
            while row:
                kind, m = row[0]
                source = s + {"F": -1, "I": 1, "W": 0}[kind]
                if source != s and 0 <= source < len(orders):
                    if (source, kind, m) not in end:
                        break
                    clock[s] = max(clock[s], end[source, kind, m] + delays[min(s, source)])
                clock[s] = end[s, kind, m] = clock[s] + times[kind][s]
                row.popleft()
        if len(end) == done:
            return 0
    return max(clock)
