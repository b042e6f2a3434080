"""Start times of given orders, fast: the dry run that decides makespans while searching.

Each rank runs its order; an action starts when its rank is free and its data is there. Messages
leave when they are computed; a link with occupancy serves first what is ready first (at equal times
the lower rank). This is the model of ``verify.pipeline.lower``, of which it is independent: what is
written is measured there.
"""

from __future__ import annotations

import heapq

from synth.pipeline.problem import Orders, Problem
from verify.pipeline.schedule import Action

GIVES = {"F": 2, "I": -1, "W": -1, "B": -2}
"""Half activations that an action takes."""


class Stuck(Exception):
    """The orders wait for each other in a cycle, or lack an action."""


def durations(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Kind of action -> ticks per stage."""
    costs = problem.costs
    return {"F": costs.forward, "I": costs.backward, "W": costs.weight, "B": costs.fused}


def line_of(sender: int, receiver: int, half: bool) -> tuple[int, int]:
    """What a message holds while it is sent: the direction, or the link if it is half duplex."""
    return (min(sender, receiver), max(sender, receiver)) if half else (sender, receiver)


def starts(problem: Problem, orders: Orders) -> dict[Action, int]:
    """When each action starts, in ticks; ``Stuck`` if one never does."""
    lengths = durations(problem)
    rank_of = problem.rank_of
    last = problem.stages - 1
    begin: dict[Action, int] = {}
    there: dict[tuple[int, bool, int], int] = {}  # (stage, forward?, microbatch) -> data there at
    waiting: dict[tuple[int, bool, int], int] = {}  # the same -> rank that stands still for it
    line_free: dict[tuple[int, int], int] = {}
    at = [0] * len(orders)
    running: list[tuple[int, int]] = []

    def proceed(rank: int, now: int) -> None:
        if at[rank] == len(orders[rank]):
            return
        action = orders[rank][at[rank]]
        stage, kind, microbatch = action
        if kind != "W" and not (stage == 0 if kind == "F" else stage == last):
            need = (stage, kind == "F", microbatch or 0)
            if need not in there:
                waiting[need] = rank
                return
            now = max(now, there[need])
        begin[action] = now
        heapq.heappush(running, (now + lengths[kind][stage], rank))

    for rank in range(len(orders)):
        proceed(rank, 0)
    while running:
        now, rank = heapq.heappop(running)
        stage, kind, microbatch = orders[rank][at[rank]]
        at[rank] += 1
        if kind != "W":
            forward = kind == "F"
            target = stage + 1 if forward else stage - 1
            if 0 <= target <= last:
                latency, occupancy, half = problem.between[min(stage, target)]
                arrival = now
                if occupancy:
                    line = line_of(rank, rank_of[target], half)
                    line_free[line] = arrival = max(now, line_free.get(line, 0)) + occupancy
                need = (target, forward, microbatch or 0)
                there[need] = arrival + latency
                if need in waiting:
                    proceed(waiting.pop(need), 0)
        proceed(rank, now)
    if any(position < len(order) for position, order in zip(at, orders, strict=True)):
        raise Stuck
    return begin


def makespan(problem: Problem, orders: Orders) -> int:
    """Ticks from the first start to the last end; ``Stuck`` if there is none."""
    lengths = durations(problem)
    begin = starts(problem, orders)
    return max(begin[order[-1]] + lengths[order[-1].kind][order[-1].stage] for order in orders)


def peaks(orders: Orders) -> list[int]:
    """The most half activations that each rank holds at once."""
    found = []
    for order in orders:
        held = most = 0
        for action in order:
            held += GIVES[action.kind]
            most = max(most, held)
        found.append(most)
    return found
