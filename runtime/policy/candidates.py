"""The schedules that decisions may choose from: made by rank 0 at the start, proved by every rank.

Rank 0 asks ``synth`` once; the others get the schedules through the store and prove each of them
themselves. The executor then compares digests, so no rank can run what another has not got. For one
late rank there are several numbers of chunks (few for small buffers, many for large ones), with the
balanced owners that need the shortest wait; for more late ranks one each, made for ranks that come
together.
"""

from __future__ import annotations

import functools

import msgspec

from runtime.executor.load import Verified, load
from runtime.network.store_exchange import StoreExchange
from runtime.policy.cost_model import Candidate, Phase
from verify.core.format import decode
from verify.core.schedule import Schedule
from verify.output import encode

CHUNKS = (1, 2, 4)  # chunks per helper of the schedules for one late rank
CHUNKS_OF_MORE = 2
MOST_RANKS_SEARCHED = 32  # beyond it only closed forms, for one late rank: searches take minutes
SEARCH_S = 5.0
MADE = msgspec.json.Decoder(list[tuple[Candidate, str]])  # with the module: see verify.core.format


def candidates(
    group: StoreExchange, most_late: int
) -> tuple[tuple[Verified, ...], tuple[Candidate, ...]]:
    """Make (rank 0) or receive the schedules for up to ``most_late`` ranks, and prove them here.

    Returns:
        The schedules, and what each costs; the same on all ranks.
    """
    if group.rank == 0:
        group.send("candidates", _made(group.world_size, most_late))
    text = group.receive_from(0, "candidates")
    made = MADE.decode(text)
    schedules = tuple(load(decode(text.encode(), each.name)) for each, text in made)
    return schedules, tuple(each for each, _ in made)


@functools.cache
def _made(ranks: int, most_late: int) -> str:
    """Each candidate, and its schedule as text; as JSON."""
    schedules = _make(ranks, most_late)
    made = [(_priced(name, each), encode(each).decode()) for name, each in schedules]
    return msgspec.json.encode(made).decode()


def _make(ranks: int, most_late: int) -> list[tuple[str, Schedule]]:
    from synth.arrivals.generate import search
    from synth.straggler.generate import generate

    searched = ranks <= MOST_RANKS_SEARCHED
    owners = "balanced" if searched else "free"
    made = [
        (f"one late, m = {m}", generate(ranks, m=m, owners=owners, time_limit_s=SEARCH_S))  # type: ignore[arg-type]
        for m in (CHUNKS if most_late else CHUNKS[:1])
    ]
    for late in range(2, most_late + 1) if searched else ():
        wait = (ranks - late - 1) * CHUNKS_OF_MORE + 1
        together = dict.fromkeys(range(ranks - late, ranks), wait)
        found = search(ranks, together, m=CHUNKS_OF_MORE, time_limit_s=SEARCH_S)
        made.append((f"{late} late, m = {CHUNKS_OF_MORE}", found.schedule))
    return made


def _priced(name: str, schedule: Schedule) -> Candidate:
    from synth.cost import completion_cost, waiting_cost

    costs = waiting_cost(schedule), completion_cost(schedule)
    phases = (Phase(cost.messages, float(cost.share)) for cost in costs)
    return Candidate(name, len(schedule.late), *phases)
