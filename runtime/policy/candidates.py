"""The schedules that decisions may choose from; all ranks have the same.

Up to ``MOST_RANKS_SEARCHED`` ranks rank 0 asks ``synth`` once, at the start; the others get its
schedules through the store, and prove each of them themselves: for one late rank with balanced
owners, which need the shortest wait, and for more late ranks one each, made for ranks that come
together.

For one late rank there is, besides, the closed form with 1, 2, 4, ... 256 chunks. A size has the
number of chunks k whose completion takes the least time by the profile, so sizes fall into nine
classes: between k and 2k chunks the border is at 2 k^2 alpha / ((ceil(log2 n) - 1) beta) bytes. No
number of chunks between two of these would be 3 % faster. What a rank does in a class is made, in
the background, when the first buffer of the class comes, and chosen once all ranks have made it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from runtime.executor.closed_form import ClosedForm
from runtime.executor.load import Runnable, load
from runtime.network.store_exchange import StoreExchange
from runtime.policy.cost_model import Candidate, Phase
from verify.core.format import decode
from verify.core.schedule import Schedule
from verify.output import encode

if TYPE_CHECKING:
    from synth.cost import Cost

CHUNKS = (1, 2, 4)  # chunks per helper of the balanced schedules for one late rank
CHUNKS_OF_MORE = 2
MOST_RANKS_SEARCHED = 32  # beyond it only closed forms, for one late rank: searches take minutes
SEARCH_S = 5.0
CLASSES = (8, 1, 2, 4, 16, 32, 64, 128, 256)
"""Chunks of the closed forms; where nothing is searched, the profile is measured with the first."""
MADE = msgspec.json.Decoder(list[tuple[Candidate, str]])  # with the module: see verify.core.format


def candidates(
    group: StoreExchange, most_late: int
) -> tuple[tuple[Runnable, ...], tuple[Candidate, ...]]:
    """The schedules for up to ``most_late`` ranks (at least one to measure), and what each costs.

    What rank 0 makes is proved here.
    """
    from synth.straggler.own import costs

    n, found = group.world_size, list[tuple[Runnable, Candidate]]()
    if n <= MOST_RANKS_SEARCHED:
        if group.rank == 0:
            group.send("candidates", _made(n, most_late))
        made = MADE.decode(group.receive_from(0, "candidates"))
        found += ((load(decode(text.encode(), each.name)), each) for each, text in made)
    for k in CLASSES if most_late else CLASSES[: not found]:
        schedule = ClosedForm(n, group.rank, k)
        waiting, completion = map(_phase, costs(n, k))
        priced = Candidate(schedule.name, 1, waiting, completion, on_demand=True)
        found.append((schedule, priced))
    return tuple(schedule for schedule, _ in found), tuple(priced for _, priced in found)


@functools.cache
def _made(ranks: int, most_late: int) -> str:
    """Each candidate, and its schedule as text; as JSON."""
    schedules = _make(ranks, most_late)
    made = [(_priced(name, each), encode(each).decode()) for name, each in schedules]
    return msgspec.json.encode(made).decode()


def _make(ranks: int, most_late: int) -> list[tuple[str, Schedule]]:
    from synth.arrivals.generate import search
    from synth.straggler.generate import generate

    balanced = functools.partial(generate, ranks, owners="balanced", time_limit_s=SEARCH_S)
    numbers = CHUNKS if most_late else CHUNKS[:1]
    made = [(f"one late, m = {m}", balanced(m=m)) for m in numbers]
    for late in range(2, most_late + 1):
        wait = (ranks - late - 1) * CHUNKS_OF_MORE + 1
        together = dict.fromkeys(range(ranks - late, ranks), wait)
        found = search(ranks, together, m=CHUNKS_OF_MORE, time_limit_s=SEARCH_S)
        made.append((f"{late} late, m = {CHUNKS_OF_MORE}", found.schedule))
    return made


def _priced(name: str, schedule: Schedule) -> Candidate:
    from synth.cost import completion_cost, waiting_cost

    waiting, completion = waiting_cost(schedule), completion_cost(schedule)
    return Candidate(name, len(schedule.late), _phase(waiting), _phase(completion))


def _phase(cost: Cost) -> Phase:
    return Phase(cost.messages, float(cost.share))
