"""The schedules among which a runtime chooses when it sees who is late; each with its costs.

For one late rank: with balanced owners, which need the shortest wait, in several numbers of chunks,
and the closed form for any number of chunks. For more late ranks one each, made for ranks that come
together.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from synth.arrivals.generate import search
from synth.cost import Cost, completion_cost, completion_cost_of, straggler_cost, waiting_cost
from synth.straggler.generate import generate
from verify.core.schedule import Schedule

CHUNKS = (1, 2, 4)  # chunks per helper of the balanced schedules for one late rank
CHUNKS_OF_MORE = 2
SEARCH_S = 5.0


def searched(n: int, most_late: int) -> Iterator[tuple[str, Schedule]]:
    """By name, those for up to ``most_late`` of ``n`` ranks; the first for one, in any case."""
    balanced = partial(generate, n, owners="balanced", time_limit_s=SEARCH_S)
    for m in CHUNKS if most_late else CHUNKS[:1]:
        yield f"one late, m = {m}", balanced(m=m)
    for late in range(2, most_late + 1):
        wait = (n - late - 1) * CHUNKS_OF_MORE + 1
        together = dict.fromkeys(range(n - late, n), wait)
        found = search(n, together, m=CHUNKS_OF_MORE, time_limit_s=SEARCH_S)
        yield f"{late} late, m = {CHUNKS_OF_MORE}", found.schedule


def costs(schedule: Schedule) -> tuple[Cost, Cost]:
    """Those of its waiting phases, and of its completion."""
    return waiting_cost(schedule), completion_cost(schedule)


def closed_form_costs(n: int, chunks: int) -> tuple[Cost, Cost]:
    """The same of the closed form; its waiting phase takes so long at most."""
    hops = (n - 1).bit_length()
    return completion_cost_of(chunks + 2 * hops - 2, chunks), straggler_cost(n, chunks)
