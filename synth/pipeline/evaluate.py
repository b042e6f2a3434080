"""Start times of given orders, fast: the dry run that decides makespans while searching.

Each rank runs its order; an action starts when its rank is free and its data is there. Messages
leave when they are computed; a link with occupancy serves first what is ready first (at equal times
the lower rank). This is the model of ``latecomer.verify.pipeline.lower``, of which it is
independent: what is written is measured there.
"""

from __future__ import annotations

import heapq

from latecomer.synth.pipeline.problem import Orders, Problem
from latecomer.verify.pipeline.schedule import Action

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
    # one function on local variables: searches call it thousands of times
    lengths = durations(problem)
    rank_of = problem.rank_of
    last_stage = problem.stages - 1
    begin: dict[Action, int] = {}
    arrivals: dict[
        tuple[int, bool, int], int
    ] = {}  # (stage, forward?, microbatch) -> data is there
    waiting_ranks: dict[tuple[int, bool, int], int] = {}  # the same -> rank that waits for it
    line_free: dict[tuple[int, int], int] = {}
    positions = [0] * len(orders)  # per rank of the action that runs, or waits
    running: list[tuple[int, int]] = []  # (end, rank)

    def start_next(rank: int, ticks: int) -> None:
        """Start the next action of a rank, or make it wait for its data."""
        if positions[rank] == len(orders[rank]):
            return
        action = orders[rank][positions[rank]]
        stage, kind, microbatch = action
        if kind != "W" and not (stage == 0 if kind == "F" else stage == last_stage):
            need = (stage, kind == "F", microbatch or 0)
            if need not in arrivals:
                waiting_ranks[need] = rank
                return
            ticks = max(ticks, arrivals[need])
        begin[action] = ticks
        heapq.heappush(running, (ticks + lengths[kind][stage], rank))

    for rank in range(len(orders)):
        start_next(rank, 0)

    while running:
        ticks, rank = heapq.heappop(running)
        stage, kind, microbatch = orders[rank][positions[rank]]
        positions[rank] += 1
        if kind != "W":
            forward = kind == "F"
            target = stage + 1 if forward else stage - 1
            if 0 <= target <= last_stage:
                latency, occupancy, half = problem.between[min(stage, target)]
                sent = ticks
                if occupancy:
                    line = line_of(rank, rank_of[target], half)
                    line_free[line] = sent = max(ticks, line_free.get(line, 0)) + occupancy
                need = (target, forward, microbatch or 0)
                arrivals[need] = sent + latency
                if need in waiting_ranks:
                    # that rank has been free since: it starts when its data is there
                    start_next(waiting_ranks.pop(need), 0)
        start_next(rank, ticks)

    if any(position < len(order) for position, order in zip(positions, orders, strict=True)):
        raise Stuck
    return begin


def makespan(problem: Problem, orders: Orders) -> int:
    """Ticks from the first start to the last end; ``Stuck`` if there is none."""
    lengths = durations(problem)
    begin = starts(problem, orders)
    return max(begin[order[-1]] + lengths[order[-1].kind][order[-1].stage] for order in orders)


def peaks(orders: Orders) -> list[int]:
    """The most half activations that each rank holds at once."""
    peak_of_ranks = []
    for order in orders:
        held = 0
        peak = 0
        for action in order:
            held += GIVES[action.kind]
            peak = max(peak, held)
        peak_of_ranks.append(peak)
    return peak_of_ranks
