"""The schedules that decisions may choose from; all ranks have the same.

Up to ``MOST_RANKS_SEARCHED`` ranks rank 0 lets ``synth.candidates`` make some at the start; the
others get them through the store, and prove each of them themselves.

On machines of several ranks it makes two-level ones for one late rank, too; the runtime renames
whole machines and ranks within them, so these serve whichever rank is late.

For one late rank there is, besides, the closed form with 1, 2, 4, ... 256 chunks. A size has the
number whose completion takes the least time by the profile; none between two of these would be 3 %
faster (docs/explanation/auto.md). What a rank does for it is made in the background when a buffer
first wants it, and chosen once all ranks have made it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import msgspec

from runtime.executor.closed_form import ClosedForm
from runtime.executor.load import Runnable, load
from runtime.network.store_exchange import StoreExchange
from runtime.policy.cost_model import Candidate, Phase, TwoLevelCompletion
from runtime.policy.machines import ALONE
from verify.core.format import decode
from verify.output import encode

if TYPE_CHECKING:
    from synth.cost import Cost

MOST_RANKS_SEARCHED = 32  # beyond it only closed forms, for one late rank: searches take minutes
CLASSES = (8, 1, 2, 4, 16, 32, 64, 128, 256)
"""Chunks of the closed forms; where nothing is searched, the profile is measured with the first."""
MADE = msgspec.json.Decoder(list[tuple[Candidate, str]])  # with the module: see verify.core.format


def candidates(
    group: StoreExchange, most_late: int, ranks_per_machine: int = ALONE
) -> tuple[tuple[Runnable, ...], tuple[Candidate, ...]]:
    """The schedules for up to ``most_late`` ranks, at least one, and what each costs.

    Two-level ones are among them if the group's machines have ``ranks_per_machine`` ranks each.
    """
    from synth.candidates import closed_form_costs

    n = group.world_size
    found = list[tuple[Runnable, Candidate]]()
    if n <= MOST_RANKS_SEARCHED:
        if group.rank == 0:
            group.send("candidates", _made(n, most_late, ranks_per_machine))
        made = MADE.decode(group.receive_from(0, "candidates"))
        found += ((load(decode(text.encode(), each.name)), each) for each, text in made)
    for k in CLASSES if most_late else CLASSES[: not found]:
        schedule = ClosedForm(n, group.rank, k)
        phases = _phases(closed_form_costs(n, k))
        found.append((schedule, Candidate(schedule.name, 1, *phases, on_demand=True)))
    return tuple(schedule for schedule, _ in found), tuple(priced for _, priced in found)


@functools.cache
def _made(n: int, most_late: int, ranks_per_machine: int) -> str:
    """Each candidate that is made at the start, and its schedule as text; as JSON."""
    from synth.candidates import costs, searched, two_level_completion_costs, two_level_schedules

    made = [
        (Candidate(name, len(each.late), *_phases(costs(each))), encode(each).decode())
        for name, each in searched(n, most_late)
    ]
    if most_late and ranks_per_machine != ALONE:
        for name, schedule in two_level_schedules(n, ranks_per_machine):
            waiting, completion = _phases(costs(schedule))
            by_level = two_level_completion_costs(schedule, ranks_per_machine)
            between, inside = _phases(by_level)
            two_level = TwoLevelCompletion(ranks_per_machine, between, inside)
            candidate = Candidate(name, 1, waiting, completion, two_level=two_level)
            made.append((candidate, encode(schedule).decode()))
    return msgspec.json.encode(made).decode()


def _phases(costs: tuple[Cost, Cost]) -> tuple[Phase, Phase]:
    first, second = (Phase(cost.messages, float(cost.share)) for cost in costs)
    return first, second
