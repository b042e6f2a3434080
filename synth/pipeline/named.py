"""Schedules that are known by name and have a fixed order, whatever the durations.

gpipe             all forwards, then all backwards (Huang et al., 2019); with several stages per
                  rank stage by stage, as PyTorch's ScheduleLoopedBFS
1f1b              S - s forwards at stage s, then one backward and one forward in turn
                  (PipeDream-flush, Narayanan et al., 2021)
interleaved-1f1b  1F1B over several stages per rank (Megatron-LM, 2021). Microbatches go in groups
                  of N // max(1, N // R) as in PyTorch's ScheduleInterleaved1F1B
zero-bubble       1F1B with the backward split and W put off (ZB-H1, Qi et al., 2023): the W of
                  stage s waits for s more I, which costs s/2 activations more, so every stage
                  peaks at no more than stage 0 does in 1F1B

Backwards are fused (B) but for zero-bubble. Our deviation: under a memory limit 1F1B and
zero-bubble take fewer forwards, and put W off less, as the limit wants it. GPipe and interleaved
1F1B have nothing to take away, so they are refused under a limit that they exceed.
"""

from __future__ import annotations

from synth.pipeline.evaluate import Stuck, makespan, peaks
from synth.pipeline.problem import Orders, Problem
from verify.errors import ArgumentError
from verify.pipeline.schedule import Action


class Unsuited(ArgumentError):
    """A method that can't be used for this problem; others can."""


def gpipe(problem: Problem) -> Orders:
    """GPipe."""
    n = range(problem.microbatches)
    orders = [
        [Action(s, "F", m) for s in mine for m in n]
        + [Action(s, "B", m) for s in reversed(mine) for m in n]
        for mine in problem.stages_of
    ]
    return _within_memory(problem, "gpipe", orders)


def one_f_one_b(problem: Problem) -> Orders:
    """1F1B."""
    orders = []
    for s, warm in enumerate(_warm_up(problem, "1f1b")):
        order = [Action(s, "F", m) for m in range(warm)]
        for m in range(problem.microbatches):
            order.append(Action(s, "B", m))
            if warm + m < problem.microbatches:
                order.append(Action(s, "F", warm + m))
        orders.append(order)
    return orders


def zero_bubble(problem: Problem) -> Orders:
    """ZB-H1."""
    n = problem.microbatches
    orders = []
    for s, warm in enumerate(_warm_up(problem, "zero-bubble")):
        behind = min(s, n, problem.limits[s] - 2 * warm)
        order = [Action(s, "F", m) for m in range(warm)]
        for m in range(n):
            order.append(Action(s, "I", m))
            if m >= behind:
                order.append(Action(s, "W", m - behind))
            if warm + m < n:
                order.append(Action(s, "F", warm + m))
        orders.append(order + [Action(s, "W", m) for m in range(n - behind, n)])
    return orders


def interleaved(problem: Problem) -> Orders:
    """Interleaved 1F1B."""
    n = problem.microbatches
    ranks = problem.ranks
    chunks = problem.virtual
    name = "interleaved-1f1b"
    if problem.rank_of != tuple(s % ranks for s in range(problem.stages)):
        raise Unsuited("--placement", "vee", f"does not suit {name}", "--placement loop")
    rounds = max(1, n // ranks)
    if n % rounds:
        raise Unsuited(
            "--microbatches", n, f"must be a multiple of {rounds} groups for {name}",
            f"{n - n % rounds} would do",
        )  # fmt: skip
    group = n // rounds
    orders = []
    firsts = range(0, n, group)
    for rank, mine in enumerate(problem.stages_of):
        forward = [Action(s, "F", f + i) for f in firsts for s in mine for i in range(group)]
        backward = [Action(s, "B", f + i) for f in firsts for s in mine[::-1] for i in range(group)]
        warm = min(len(forward), (chunks - 1) * group + 2 * (ranks - rank - 1))
        order = forward[:warm]
        for i, action in enumerate(backward):
            order += [*forward[warm + i : warm + i + 1], action]
        orders.append(order)
    try:
        makespan(problem, orders)
    except Stuck:
        raise Unsuited(
            "--microbatches", n, f"gives groups of {group}, with which {name} deadlocks",
            f"Take a multiple of {ranks}",
        ) from None  # fmt: skip
    return _within_memory(problem, name, orders)


def _warm_up(problem: Problem, name: str) -> list[int]:
    """Per stage how many forwards come before the first backward."""
    require_one_each(problem, name)
    found: list[int] = []
    for s in range(problem.stages):
        most = min(problem.microbatches, problem.stages - s, problem.limits[s] // 2)
        found.append(min([most, *found[-1:]]))  # no more than the stage before can send
    return found


def require_one_each(problem: Problem, name: str) -> None:
    """Unsuited unless every rank has one stage."""
    if problem.virtual > 1:
        raise Unsuited("--virtual", problem.virtual, f"{name} has one stage per rank")


def _within_memory(problem: Problem, name: str, orders: Orders) -> Orders:
    for rank, (peak, limit) in enumerate(zip(peaks(orders), problem.limits, strict=True)):
        if peak > limit:
            raise Unsuited(
                "--memory", limit / 2, f"{name} holds {peak / 2:g} activations on rank {rank}",
                "Raise the limit, or take another method",
            )  # fmt: skip
    return orders
