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

from collections.abc import Sequence
from typing import Literal

from latecomer.synth.pipeline.evaluate import Stuck, makespan, peaks
from latecomer.synth.pipeline.problem import Orders, Problem
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.schedule import Action


class Unsuited(ArgumentError):
    """A method that can't be used for this problem; others can."""


def gpipe(problem: Problem) -> Orders:
    """GPipe."""
    orders = []
    for stages in problem.stages_of:
        order = []
        for stage in stages:
            order += [Action(stage, "F", m) for m in range(problem.microbatches)]
        for stage in reversed(stages):
            order += [Action(stage, "B", m) for m in range(problem.microbatches)]
        orders.append(order)
    return _within_memory(problem, "gpipe", orders)


def one_f_one_b(problem: Problem) -> Orders:
    """1F1B."""
    orders = []
    for stage, warm_up in enumerate(_warm_up(problem, "1f1b")):
        order = [Action(stage, "F", m) for m in range(warm_up)]
        for m in range(problem.microbatches):
            order.append(Action(stage, "B", m))
            if warm_up + m < problem.microbatches:
                order.append(Action(stage, "F", warm_up + m))
        orders.append(order)
    return orders


def zero_bubble(problem: Problem) -> Orders:
    """ZB-H1."""
    n = problem.microbatches
    orders = []
    for stage, warm_up in enumerate(_warm_up(problem, "zero-bubble")):
        behind = min(stage, n, problem.limits[stage] - 2 * warm_up)  # so many I before the first W
        order = [Action(stage, "F", m) for m in range(warm_up)]
        for m in range(n):
            order.append(Action(stage, "I", m))
            if m >= behind:
                order.append(Action(stage, "W", m - behind))
            if warm_up + m < n:
                order.append(Action(stage, "F", warm_up + m))
        order += [Action(stage, "W", m) for m in range(n - behind, n)]
        orders.append(order)
    return orders


def interleaved(problem: Problem) -> Orders:
    """Interleaved 1F1B."""
    n = problem.microbatches
    ranks = problem.ranks
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
    for rank, stages in enumerate(problem.stages_of):
        forwards = _by_groups("F", stages, n, group)
        backwards = _by_groups("B", stages[::-1], n, group)
        # As in PyTorch: Megatron-LM takes two forwards more for each rank that comes after.
        warm_up = min(len(forwards), (problem.virtual - 1) * group + 2 * (ranks - rank - 1))

        order = forwards[:warm_up]
        for number, backward in enumerate(backwards):
            if warm_up + number < len(forwards):
                order.append(forwards[warm_up + number])
            order.append(backward)
        orders.append(order)

    try:
        makespan(problem, orders)
    except Stuck:
        raise Unsuited(
            "--microbatches", n, f"gives groups of {group}, with which {name} deadlocks",
            f"Take a multiple of {ranks}",
        ) from None  # fmt: skip
    return _within_memory(problem, name, orders)


def _by_groups(
    kind: Literal["F", "B"], stages: Sequence[int], microbatches: int, group: int
) -> list[Action]:
    """One kind of action of a rank: each group of microbatches goes through all its stages."""
    actions = []
    for first in range(0, microbatches, group):
        for stage in stages:
            actions += [Action(stage, kind, m) for m in range(first, first + group)]
    return actions


def _warm_up(problem: Problem, name: str) -> list[int]:
    """Per stage how many forwards come before the first backward."""
    require_one_each(problem, name)
    counts: list[int] = []
    for stage in range(problem.stages):
        count = min(problem.microbatches, problem.stages - stage, problem.limits[stage] // 2)
        if counts:
            count = min(count, counts[-1])  # no more than the stage before can send
        counts.append(count)
    return counts


def require_one_each(problem: Problem, name: str) -> None:
    """Unsuited unless every rank has one stage."""
    if problem.virtual > 1:
        raise Unsuited("--virtual", problem.virtual, f"{name} has one stage per rank")


def _within_memory(problem: Problem, name: str, orders: Orders) -> Orders:
    """The orders as they are; Unsuited if a rank would hold more than it may."""
    for rank, (peak, limit) in enumerate(zip(peaks(orders), problem.limits, strict=True)):
        if peak > limit:
            raise Unsuited(
                "--memory", limit / 2, f"{name} holds {peak / 2:g} activations on rank {rank}",
                "Raise the limit, or take another method",
            )  # fmt: skip
    return orders
