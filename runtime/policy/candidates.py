"""The schedules that decisions may choose from; all ranks have the same.

Up to ``MOST_RANKS_SEARCHED`` ranks rank 0 lets ``latecomer.synth.candidates`` make some at the
start, and proves them; the others get them through the store, and prove each of them themselves.

For ranks that are all on time there are some standard schedules (``on_time``), and halves of them
for reduce-scatters and all-gathers.

On machines of several ranks it makes two-level ones for one late rank, too; the runtime renames
whole machines and ranks within them, so these serve whichever rank is late.

For one late rank there is, besides, the closed form with 1, 2, 4, ... 256 chunks. A size has the
number whose completion takes the least time by the profile; none between two of these would be 3 %
faster (docs/explanation/auto.md). What a rank does for it is made in the background when a buffer
first wants it, and chosen once all ranks have made it.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import msgspec

from latecomer.runtime.executor.closed_form import ClosedFormPart
from latecomer.runtime.executor.halves import load_half
from latecomer.runtime.executor.load import Runnable, load
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.cost_model import Phase, ScheduleCandidate, TwoLevelCompletion
from latecomer.runtime.policy.machines import ALONE
from latecomer.runtime.policy.options import LEARNING, Options
from latecomer.verify.core.format import decode
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import SearchTimeout
from latecomer.verify.output import encode

if TYPE_CHECKING:
    from latecomer.synth.cost import Cost

MOST_RANKS_SEARCHED = 32  # beyond it only closed forms, for one late rank: searches take minutes
KEPT_OFFERS = 8  # that were proved; an elastic job comes back to the same
CLASSES = (8, 1, 2, 4, 16, 32, 64, 128, 256)
"""Chunks of the closed forms; where nothing is searched, the profile is measured with the first."""


class OfferedCandidate(msgspec.Struct, frozen=True):
    """A candidate as rank 0 sends it: what it costs, and its schedule, which receivers prove."""

    candidate: ScheduleCandidate
    schedule: msgspec.Raw


logger = logging.getLogger("latecomer")

# made with the module: see latecomer.verify.core.format
OFFER = msgspec.json.Decoder(list[OfferedCandidate])

RunnableCandidate = tuple[Runnable, ScheduleCandidate]


def candidates(
    group: StoreExchange,
    most_late: int,
    ranks_per_machine: int = ALONE,
    *,
    has_on_time: bool = False,
) -> tuple[tuple[Runnable, ...], tuple[ScheduleCandidate, ...]]:
    """The schedules for up to ``most_late`` ranks, at least one, and what each costs.

    Two-level ones are among them if the group's machines have ``ranks_per_machine`` ranks each,
    and with ``has_on_time`` those for ranks that are all on time.
    """
    ranks = group.world_size
    offered: tuple[RunnableCandidate, ...] = ()
    if ranks <= MOST_RANKS_SEARCHED:
        if group.rank == 0:
            offered = _made(ranks, most_late, ranks_per_machine, has_on_time)
            group.send("candidates", _offer(offered))
        else:
            offered = _proved(group.receive_from(0, "candidates"))

    numbers_of_chunks: tuple[int, ...] = CLASSES
    if not most_late:  # no operation runs by any, but the profile is measured with one
        numbers_of_chunks = CLASSES[: 0 if offered else 1]
    closed_forms = [_closed_form(ranks, group.rank, chunks) for chunks in numbers_of_chunks]

    schedules, costs = zip(*offered, *closed_forms, strict=True)
    return schedules, costs


def make_ahead(ranks: int, options: Options) -> None:
    """Make and prove what rank 0 of so many ranks would at the start, which is kept.

    So a group of so many, should this process have rank 0 in it, starts the sooner.
    """
    if ranks <= MOST_RANKS_SEARCHED:
        _made(ranks, options.at_most_late(ranks), ALONE, options.mode in LEARNING)


def costs_of_candidates(ranks: int, most_late: int) -> tuple[ScheduleCandidate, ...]:
    """What a job of so many ranks, one on each machine, chooses from: as :func:`candidates`."""
    offered = _made(ranks, most_late, ALONE, False) if ranks <= MOST_RANKS_SEARCHED else ()
    searched = tuple(candidate for _, candidate in offered)
    return searched + costs_of_closed_forms(ranks)


def costs_of_closed_forms(ranks: int) -> tuple[ScheduleCandidate, ...]:
    """Those of them that are not searched for: for one late rank, in so many chunks each."""
    closed_forms = [_closed_form(ranks, 0, chunks) for chunks in CLASSES]
    return tuple(candidate for _, candidate in closed_forms)


@functools.cache
def _made(
    ranks: int, most_late: int, ranks_per_machine: int, has_on_time: bool
) -> tuple[RunnableCandidate, ...]:
    """What rank 0 makes at the start, proved; once in a process, for all of its groups.

    ``synth`` has proved these, too, but nothing runs that ``load`` has not let in.
    """
    from latecomer.synth.candidates import (
        costs,
        halves,
        on_time_schedules,
        searches,
        two_level_completion_costs,
        two_level_schedules,
    )

    proved: list[RunnableCandidate] = []
    for name, search in searches(ranks, most_late):
        try:
            schedule = search()
        except SearchTimeout as error:  # there are others: a job must not end for it
            logger.warning("rank 0 goes without the schedule %r: %s", name, error)
            continue
        waiting, completion = _phases(costs(schedule))
        candidate = ScheduleCandidate(name, len(schedule.late), waiting, completion)
        proved.append((load(schedule), candidate))

    if most_late and ranks_per_machine != ALONE:
        for name, schedule in two_level_schedules(ranks, ranks_per_machine):
            waiting, completion = _phases(costs(schedule))
            by_level = two_level_completion_costs(schedule, ranks_per_machine)
            between, inside = _phases(by_level)
            two_level = TwoLevelCompletion(ranks_per_machine, between, inside)
            candidate = ScheduleCandidate(name, 1, waiting, completion, two_level=two_level)
            proved.append((load(schedule), candidate))

    if has_on_time:
        for name, schedule in on_time_schedules(ranks):
            nothing, whole = _phases(costs(schedule))
            candidate = ScheduleCandidate(name, 0, waiting=whole, completion=nothing)
            proved.append((load(schedule), candidate))
        for name, half, schedule in halves(ranks):
            nothing, whole = _phases(costs(schedule))
            candidate = ScheduleCandidate(
                name, 0, waiting=whole, completion=nothing, collective=half
            )
            proved.append((_loaded(schedule, candidate), candidate))
    return tuple(proved)


def _offer(proved: tuple[RunnableCandidate, ...]) -> str:
    """What rank 0 has made, for the others: JSON of OfferedCandidates."""
    offer = []
    for runnable, candidate in proved:
        offer.append(OfferedCandidate(candidate, msgspec.Raw(encode(runnable.schedule))))
    return msgspec.json.encode(offer).decode()


@functools.lru_cache(KEPT_OFFERS)
def _proved(offer: str) -> tuple[RunnableCandidate, ...]:
    """What rank 0 offers; ScheduleRefused if something of it is not proved here, too."""
    proved = []
    for offered in OFFER.decode(offer):
        schedule = decode(bytes(offered.schedule), offered.candidate.name)
        proved.append((_loaded(schedule, offered.candidate), offered.candidate))
    return tuple(proved)


def _loaded(schedule: Schedule, candidate: ScheduleCandidate) -> Runnable:
    """``schedule``, proved to be what the candidate is for; ScheduleRefused if it is not."""
    if candidate.collective == "all_reduce":
        return load(schedule)
    return load_half(schedule, candidate.name, candidate.collective)


def _closed_form(ranks: int, rank: int, chunks: int) -> RunnableCandidate:
    """The closed form for one late rank; its part is made when a buffer first wants it."""
    from latecomer.synth.candidates import closed_form_costs

    schedule = ClosedFormPart(ranks, rank, chunks)
    waiting, completion = _phases(closed_form_costs(ranks, chunks))
    return schedule, ScheduleCandidate(schedule.name, 1, waiting, completion, on_demand=True)


def _phases(costs: tuple[Cost, Cost]) -> tuple[Phase, Phase]:
    first, second = costs
    return Phase(first.messages, float(first.share)), Phase(second.messages, float(second.share))
