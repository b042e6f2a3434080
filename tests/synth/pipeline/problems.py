"""Random problems for the planner."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from latecomer.synth.pipeline.problem import Problem, linked_ranks, make, place
from latecomer.verify.pipeline.schedule import Instance, Link


@st.composite
def problems(
    draw: st.DrawFn, most_stages: int = 5, most_microbatches: int = 7, least_time: int = 0
) -> Problem:
    """Any shape, durations from ``least_time``, links and limits."""
    virtual, placement = draw(
        st.sampled_from([(1, "loop"), (1, "loop"), (2, "loop"), (2, "vee"), (3, "loop")])
    )
    ranks = draw(st.integers(1, max(1, most_stages // virtual)))
    stages = ranks * virtual
    rank_of = place(stages, virtual, placement)
    times = st.one_of(st.integers(least_time, 12), st.integers(2, 24).map(lambda x: x / 2))
    per_stage = st.lists(times, min_size=stages, max_size=stages).map(tuple)
    links = []
    for pair in linked_ranks(rank_of):
        if draw(st.booleans()):
            link = Link(
                between=pair,
                latency=draw(times),
                occupancy=draw(st.one_of(st.just(0), times)),
                duplex=draw(st.sampled_from(["full", "half"])),
            )
            links.append(link)

    limits = st.integers(2 * virtual, 12).map(lambda halves: halves / 2)
    memory = draw(st.one_of(st.none(), st.lists(limits, min_size=ranks, max_size=ranks).map(tuple)))
    instance = Instance(
        forward=draw(per_stage),
        backward=draw(per_stage),
        weight=draw(per_stage),
        links=tuple(links),
        memory=memory,
        sends=draw(st.sampled_from(["rendezvous", "buffered"])),
    )
    return make(draw(st.integers(1, most_microbatches)), instance, rank_of)


def random_times(rng: random.Random, stages: int) -> list[list[int]]:
    """Times of F, of I and of W, per stage."""
    times = []
    for _ in range(3):
        times.append([rng.randint(1, 9) for _ in range(stages)])
    return times


def uniform(
    stages: int,
    microbatches: int,
    links: dict[tuple[int, int], float] | None = None,
    memory: float | None = None,
    durations: tuple[float, float, float] = (10, 10, 10),
) -> Problem:
    """One stage per rank, all alike; links by their latency."""
    times = [[time] * stages for time in durations]
    memory_of_rank = None if memory is None else (memory,) * stages
    return chain(microbatches, times, links or {}, memory_of_rank)


def chain(
    microbatches: int,
    times: list[list[float]],
    links: dict[tuple[int, int], float],
    memory: tuple[float, ...] | None = None,
) -> Problem:
    """One stage per rank; ``times`` of F, of I and of W, per stage; links by their latency."""
    forward, backward, weight = map(tuple, times)
    instance = Instance(
        forward=forward,
        backward=backward,
        weight=weight,
        links=tuple(Link(between=pair, latency=x) for pair, x in links.items()),
        memory=memory,
    )
    return make(microbatches, instance, place(len(forward), 1, "loop"))
