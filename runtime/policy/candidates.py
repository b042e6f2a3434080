"""The schedules that decisions may choose from: made by rank 0 at the start, proved by every rank.

Rank 0 asks ``synth`` once; the others get the schedules through the store and prove each of them
themselves. The executor then compares digests, so no rank can run what another has not got. For one
late rank there are several numbers of chunks (few for small buffers, many for large ones), with the
balanced owners that need the shortest wait; for more late ranks one each, made for ranks that come
together.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import msgspec

from runtime.executor.load import Verified, load
from runtime.network.store_exchange import hear, require_all, tell
from runtime.policy.cost_model import Candidate, Phase
from runtime.torch_versions import Store
from verify.core.format import decode
from verify.core.schedule import Schedule
from verify.output import encode

KEY = "offers"
CHUNKS = (1, 2, 4)
"""Chunks per helper of the schedules for one late rank."""
CHUNKS_OF_MORE = 2
MOST_RANKS_SEARCHED = 32
"""Beyond it only closed forms, for one late rank: searches would take minutes."""
SEARCH_S = 5.0


class _Offer(msgspec.Struct):
    candidate: Candidate
    schedule: str


@dataclass(frozen=True)
class Candidates:
    """Proved schedules, and what each costs; the same on all ranks."""

    schedules: tuple[Verified, ...]
    candidates: tuple[Candidate, ...]


def candidates(store: Store, rank: int, size: int, most_late: int, timeout_s: float) -> Candidates:
    """Make (rank 0) or receive the schedules for up to ``most_late`` late ranks of ``size``.

    Raises:
        RankFailure: rank 0 said nothing for ``timeout_s``.
        ScheduleRefused: a schedule is not proved here.
    """
    if rank == 0:
        tell(store, KEY, _made(size, most_late), timeout_s)
    heard = hear(store, {0: KEY}, timeout_s)
    require_all(heard, [0], timeout_s)
    told = msgspec.json.decode(heard[0], type=list[_Offer])
    return Candidates(
        tuple(load(decode(each.schedule.encode(), each.candidate.name)) for each in told),
        tuple(each.candidate for each in told),
    )


@functools.cache
def _made(size: int, most_late: int) -> str:
    made = [_offer(name, schedule) for name, schedule in _make(size, most_late)]
    return msgspec.json.encode(made).decode()


def _make(size: int, most_late: int) -> list[tuple[str, Schedule]]:
    from synth.arrivals.generate import search
    from synth.straggler.generate import generate

    searched = size <= MOST_RANKS_SEARCHED
    owners = "balanced" if searched else "free"
    made = [
        (f"one late, m = {m}", generate(size, m=m, owners=owners, time_limit_s=SEARCH_S))  # type: ignore[arg-type]
        for m in (CHUNKS if most_late else CHUNKS[:1])
    ]
    for late in range(2, most_late + 1) if searched else ():
        wait = (size - late - 1) * CHUNKS_OF_MORE + 1
        together = dict.fromkeys(range(size - late, size), wait)
        found = search(size, together, m=CHUNKS_OF_MORE, time_limit_s=SEARCH_S)
        made.append((f"{late} late, m = {CHUNKS_OF_MORE}", found.schedule))
    return made


def _offer(name: str, schedule: Schedule) -> _Offer:
    from synth.cost import Cost, completion_cost, waiting_cost

    def phase(cost: Cost) -> Phase:
        return Phase(cost.messages, float(cost.share))

    waiting, completion = phase(waiting_cost(schedule)), phase(completion_cost(schedule))
    candidate = Candidate(name, len(schedule.late), waiting, completion)
    return _Offer(candidate, encode(schedule).decode())
