"""The schedules among which a runtime chooses when it sees who is late; each with its costs.

For one late rank: with balanced owners, which need the shortest wait, in several numbers of chunks,
and the closed form for any number of chunks; on machines of several ranks two-level ones, too. For
more late ranks one each, made for ranks that come together. For ranks that are all on time some of
the standard ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from latecomer.synth.arrivals.generate import search
from latecomer.synth.cost import (
    Cost,
    Link,
    completion_cost,
    completion_cost_of,
    straggler_cost,
    waiting_cost,
)
from latecomer.synth.standard import circulant, direct, doubling, rhd, ring
from latecomer.synth.straggler.generate import generate
from latecomer.synth.twolevel.cost import level_costs
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.search import two_level
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.halves import Half
from latecomer.verify.renaming import renamed

CHUNKS = (1, 2, 4)  # chunks per helper of the balanced schedules for one late rank
CHUNKS_OF_MORE = 2  # chunks per rank on time of the schedules for several late ranks

# These searches are made at the start of a job.
SEARCH_S = 5.0
"""For each search, at the most."""
TWO_LEVEL_CHUNKS = (2, 16)
"""Two chunks suffice between two machines, whose links then are busy both ways; a chain of more
machines is filled by more. Measured: docs/measurements/lab.md."""


def searches(n: int, most_late: int) -> Iterator[tuple[str, Callable[[], Schedule]]]:
    """By name, what searches those for up to ``most_late`` of ``n`` ranks; one for one in any case.

    A search raises SearchTimeout where it finds none in time, as on a machine that is very busy.
    """
    for m in CHUNKS if most_late else CHUNKS[:1]:
        balanced = partial(generate, n, m=m, owners="balanced", time_limit_s=SEARCH_S)
        yield f"one late, m = {m}", balanced
    for late in range(2, most_late + 1):
        yield f"{late} late, m = {CHUNKS_OF_MORE}", partial(_together, n, late)


def _together(n: int, late: int) -> Schedule:
    """For ``late`` ranks that come together."""
    wait = (n - late - 1) * CHUNKS_OF_MORE + 1
    together = dict.fromkeys(range(n - late, n), wait)
    return search(n, together, m=CHUNKS_OF_MORE, time_limit_s=SEARCH_S).schedule


def on_time_schedules(n: int) -> Iterator[tuple[str, Schedule]]:
    """By name, those for ranks that are all on time: with few rounds, few bytes, or both."""
    yield "ring", ring(n)
    yield _few_rounds(n)
    yield "doubling", doubling(n)
    yield "direct", direct(n)


def halves(n: int) -> Iterator[tuple[str, Half, Schedule]]:
    """By name and collective, halves of those: what a reduce-scatter or an all-gather goes by.

    Between two ranks all are the same.
    """
    # in a ring it is the rank before that ends with a chunk
    own_ring = renamed(ring(n), {rank: (rank + 1) % n for rank in range(n)})
    for name, schedule in (("ring", own_ring), _few_rounds(n), ("direct", direct(n))):
        if n == 2 and name != "direct":
            continue
        scatter, gather = schedule.phases
        yield name, "reduce_scatter", replace(schedule, phases=(scatter,))
        yield name, "all_gather", replace(schedule, phases=(gather,))


def _few_rounds(n: int) -> tuple[str, Schedule]:
    """The one with few rounds and few bytes, and its name."""
    if n & (n - 1):
        return "circulant", circulant(n)
    return "halving and doubling", rhd(n, nearest_first=True)  # torchrun numbers by machines


def costs(schedule: Schedule) -> tuple[Cost, Cost]:
    """Those of its waiting phases, and of its completion."""
    return waiting_cost(schedule), completion_cost(schedule)


def closed_form_costs(n: int, chunks: int) -> tuple[Cost, Cost]:
    """The same of the closed form; its waiting phase takes so long at most."""
    hops = (n - 1).bit_length()
    return completion_cost_of(chunks + 2 * hops - 2, chunks), straggler_cost(n, chunks)


def two_level_schedules(n: int, ranks_per_machine: int) -> Iterator[tuple[str, Schedule]]:
    """By name, those for one late rank of machines that have one network port each."""
    machine = _machine(n, ranks_per_machine)
    for chunks in TWO_LEVEL_CHUNKS:
        schedule = two_level(machine, late=n - 1, chunks=chunks, burst=1)
        yield f"two-level, k = {chunks}", schedule


def two_level_completion_costs(schedule: Schedule, ranks_per_machine: int) -> tuple[Cost, Cost]:
    """Those of its completion: of the rounds that use the network, and of all others."""
    return level_costs(schedule, _machine(schedule.ranks, ranks_per_machine))


def _machine(n: int, ranks_per_machine: int) -> Machine:
    """Machines of which only the numbers count here, not how fast their links are."""
    link = Link(alpha_s=0.0, bandwidth=1.0)
    return Machine(n // ranks_per_machine, ranks_per_machine, 1, inner=link, outer=link)
