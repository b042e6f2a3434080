"""What a pipeline schedule is asked for: sizes, placement of stages, and the instance.

A rank holds one stage, or ``virtual`` of them. Placement ``loop`` deals stages out round robin
(stage s on rank s mod R), ``vee`` goes there and back (R = S/2; stages r and S-1-r on rank r).

The least memory that any schedule meets is one activation per stage of a rank: a microbatch passes
all of a rank's stages before its first backward there, and one microbatch at a time needs no more.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec

from latecomer.verify.core.schedule import Scalar
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.bounds import lower_bound
from latecomer.verify.pipeline.costs import Costs, exact, fault
from latecomer.verify.pipeline.format import MAX_ACTIONS, MAX_MICROBATCHES, MAX_STAGES
from latecomer.verify.pipeline.schedule import Action, Instance, Link, Number, PipelineSchedule

Placement = Literal["loop", "vee"]
Orders = list[list[Action]]
"""Per rank its compute actions, in order."""


@dataclass(frozen=True)
class Starts:
    """A schedule by its times, in ticks.

    Attributes:
        actions: when each compute action starts.
        messages: when each message over a link with occupancy starts, by the action that makes it.
    """

    actions: dict[Action, int]
    messages: dict[Action, int]


@dataclass(frozen=True)
class Problem:
    """Sizes, placement and instance; ``microbatches`` are alike.

    Attributes:
        rank_of: per stage its rank.
        costs: the instance in ticks and half activations.
    """

    stages: int
    microbatches: int
    instance: Instance
    rank_of: tuple[int, ...]
    costs: Costs

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return 1 + max(self.rank_of)

    @functools.cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Per rank its stages, lowest first."""
        stages_by_rank: dict[int, list[int]] = defaultdict(list)
        for stage, rank in enumerate(self.rank_of):
            stages_by_rank[rank].append(stage)
        return tuple(tuple(stages_by_rank[rank]) for rank in range(self.ranks))

    @property
    def virtual(self) -> int:
        """The most stages on one rank."""
        return max(map(len, self.stages_of))

    @functools.cached_property
    def limits(self) -> tuple[int, ...]:
        """Per rank the half activations it may hold; as many as there are where it is not said."""
        all_activations = [2 * self.microbatches * len(stages) for stages in self.stages_of]
        if self.costs.memory is None:
            return tuple(all_activations)
        return tuple(map(min, self.costs.memory, all_activations))

    @functools.cached_property
    def between(self) -> tuple[tuple[int, int, bool], ...]:
        """Per stage but the last: (latency, occupancy, half duplex) to the next one, in ticks."""
        boundaries = []
        for rank, next_rank in pairwise(self.rank_of):
            if rank == next_rank:
                boundaries.append((0, 0, False))
            else:
                boundaries.append(self.costs.link(rank, next_rank))
        return tuple(boundaries)

    @functools.cached_property
    def closed_form(self) -> int:
        """The verifier's lower bound, in ticks."""
        # the bound needs to know which rank runs which stage, not in which order: one F is enough
        orders = []
        for stages in self.stages_of:
            orders.append([Action(stage, "F", 0) for stage in stages])
        return lower_bound(self.schedule(orders), self.costs)

    def schedule(self, orders: Orders, meta: dict[str, Scalar] | None = None) -> PipelineSchedule:
        """The schedule that runs ``orders``."""
        return PipelineSchedule(
            stages=self.stages,
            microbatches=self.microbatches,
            instance=self.instance,
            programs=tuple(map(tuple, orders)),
            meta=meta or {},
        )

    def with_links(self, links: Sequence[Link]) -> Problem:
        """The same over other links."""
        instance = msgspec.structs.replace(self.instance, links=tuple(links))
        return make(self.microbatches, instance, self.rank_of)


def linked_ranks(rank_of: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of ranks that hold consecutive stages, lower rank first, sorted.

    Args:
        rank_of: per stage its rank.
    """
    linked = set()
    for rank, next_rank in pairwise(rank_of):
        if rank != next_rank:
            linked.add((min(rank, next_rank), max(rank, next_rank)))
    return sorted(linked)


def place(stages: int, virtual: int, placement: Placement) -> tuple[int, ...]:
    """Per stage its rank.

    Args:
        stages: in all.
        virtual: stages on each rank; divides ``stages``.
        placement: ``loop`` deals them out round robin, ``vee`` goes there and back (two a rank).

    Raises:
        ArgumentError: the numbers don't fit.

    Examples:
        >>> from latecomer.synth.pipeline import place
        >>> place(8, virtual=2, placement="loop")
        (0, 1, 2, 3, 0, 1, 2, 3)
        >>> place(8, virtual=2, placement="vee")
        (0, 1, 2, 3, 3, 2, 1, 0)
    """
    if not 1 <= stages <= MAX_STAGES:
        raise ArgumentError("--stages", stages, f"must be in 1..{MAX_STAGES}")
    if virtual < 1 or stages % virtual:
        raise ArgumentError("--virtual", virtual, f"must divide the {stages} stages")
    ranks = stages // virtual
    if placement == "loop":
        return tuple(s % ranks for s in range(stages))
    if virtual != 2:
        raise ArgumentError("--placement", placement, "needs two stages per rank", "--virtual 2")
    return tuple(min(s, stages - 1 - s) for s in range(stages))


def make(microbatches: int, instance: Instance, rank_of: Sequence[int]) -> Problem:
    """A problem that has a solution.

    Args:
        microbatches: in a step.
        instance: durations of each stage, links, limits on memory; any one unit of time.
        rank_of: per stage its rank, as ``place`` returns it.

    Raises:
        ArgumentError: a number is out of its range, a link joins no neighbours, or no schedule
            meets a memory limit.

    Examples:
        >>> from latecomer.synth.pipeline import make
        >>> from latecomer.verify.pipeline import uniform
        >>> problem = make(8, uniform(4), rank_of=(0, 1, 2, 3))
        >>> problem.ranks, problem.stages, problem.microbatches
        (4, 4, 8)
    """
    stages = len(rank_of)
    ranks = 1 + max(rank_of)
    if not 1 <= microbatches <= MAX_MICROBATCHES:
        raise ArgumentError("--microbatches", microbatches, f"must be in 1..{MAX_MICROBATCHES}")
    if 3 * stages * microbatches > MAX_ACTIONS:
        raise ArgumentError(
            "--microbatches",
            microbatches,
            f"{stages} stages have more than {MAX_ACTIONS} actions, the most that can be read",
        )

    problem_of_instance = fault(instance, stages, ranks)
    if problem_of_instance is not None:
        field, _, requirement = problem_of_instance.partition(" ")
        name = field.partition("[")[0]
        option = {"links": "--slow", "fused": "fused"}.get(name, f"--{name}")
        raise ArgumentError(option, field, requirement)
    if instance.fused is not None:
        raise ArgumentError("fused", instance.fused, "must take as long as backward and weight")
    _require_links(instance.links, linked_ranks(rank_of))

    problem = Problem(
        stages=stages,
        microbatches=microbatches,
        instance=instance,
        rank_of=tuple(rank_of),
        costs=Costs.of(instance),
    )
    _require_memory(problem, instance.memory)
    return problem


def _require_links(links: Sequence[Link], linked: list[tuple[int, int]]) -> None:
    """ArgumentError for a link between ranks that send each other nothing."""
    pairs = set(linked)
    for link in links:
        lower, higher = sorted(link.between)
        if (lower, higher) not in pairs:
            links_in_words = ", ".join(f"{a}-{b}" for a, b in linked) or "none"
            raise ArgumentError(
                "--slow", f"{lower}-{higher}", f"is no link; the links are: {links_in_words}"
            )


def _require_memory(problem: Problem, memory: tuple[Number, ...] | None) -> None:
    """ArgumentError for a limit that no schedule meets."""
    for rank, limit in enumerate(memory or ()):
        least = len(problem.stages_of[rank])
        if exact(limit) < least:
            raise ArgumentError(
                "--memory",
                limit,
                f"no schedule meets it on rank {rank}, which holds {least} at once at the least",
                f"The least that works is {least}",
            )
