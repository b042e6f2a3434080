"""The optimum by trying every order of every rank; shares no code with what it checks.

Microbatches may overtake each other; links have latency only, and each rank one stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, permutations, product

Order = tuple[tuple[str, int], ...]
HELD = {"F": 1, "I": -0.5, "W": -0.5}


def _orders(n: int, limit: float) -> list[Order]:
    """Every order of F, I, W of n microbatches, each in turn, that holds at most ``limit``."""

    def in_turn(order: Order) -> bool:
        return all(
            order.index(("F", m)) < order.index(("I", m)) < order.index(("W", m)) for m in range(n)
        )

    def most_held(order: Order) -> float:
        return max(accumulate(HELD[kind] for kind, _ in order))

    return [
        order
        for order in permutations(product("FIW", range(n)))
        if in_turn(order) and most_held(order) <= limit
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
    limits = memory or (3.0 * n,) * len(times[0])  # n microbatches never hold more than n
    times_of = dict(zip("FIW", times, strict=True))
    values = []
    for orders in product(*(_orders(n, limit) for limit in limits)):
        lengths = [_length(orders, times_of, delays) for delays in scenarios]
        if lengths[0]:
            values.append(objective(lengths))
    return min(values)


def _length(orders: tuple[Order, ...], times: dict[str, list[int]], delays: list[int]) -> int:
    """Makespan of given orders; 0 if they wait for each other, whatever the delays."""
    end: dict[tuple[int, str, int], int] = {}
    """When an action ends, by stage, kind and microbatch."""
    remaining = [deque(order) for order in orders]
    clock = [0] * len(orders)

    while any(remaining):
        done = len(end)
        for stage, order in enumerate(remaining):
            while order:
                kind, m = order[0]
                source = stage + {"F": -1, "I": 1, "W": 0}[kind]
                if source != stage and 0 <= source < len(orders):
                    if (source, kind, m) not in end:
                        break
                    arrival = end[source, kind, m] + delays[min(stage, source)]
                    clock[stage] = max(clock[stage], arrival)
                clock[stage] += times[kind][stage]
                end[stage, kind, m] = clock[stage]
                order.popleft()
        if len(end) == done:
            return 0
    return max(clock)
