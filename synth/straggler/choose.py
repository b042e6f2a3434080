"""Which number m of chunks per helper is best for a given buffer, latency and bandwidth.

More chunks bring the completion closer to the physical limit S*beta, at one alpha per round more:
at the lower bound it takes (k + L - 1)(alpha + S/k beta) with k = (n - 1) m and L = ceil(log2 n).
Candidates are searched in order of that time while the time limit lasts, and one that could not
win even at its lower bound is passed over, so the winner beats everything but what ran out of time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from synth.cost import MOST_M, Setting, completion_cost, straggler_cost
from synth.solvers.choice import SolverName, require_search
from synth.standard import require_ranks
from synth.straggler.generate import StragglerAnswer, search
from synth.straggler.instance import Owners, PortModel
from synth.straggler.search import Progress
from verify.errors import SearchTimeout

LARGEST = 2**18
"""Ranks times chunks of a candidate with m > 1: larger files gain little and load slowly."""


@dataclass(frozen=True)
class Candidate:
    """One m that was considered; ``predicted_s`` is at its bound where nothing was found."""

    m: int
    predicted_s: float
    note: str
    found: StragglerAnswer | None = None


def choose(
    n: int,
    setting: Setting | None,
    *,
    late: int | None,
    m: int | None,
    ports: PortModel,
    owners: Owners,
    seed: int,
    time_limit_s: float,
    solver: SolverName,
    progress: Progress,
) -> tuple[StragglerAnswer, tuple[Candidate, ...]]:
    """The schedule with the least predicted time, and all candidates in order of m.

    With ``m`` given, or no ``setting`` to predict in (then m = 1), there is nothing to choose and
    there are no candidates. The other arguments are those of
    :func:`synth.straggler.generate.search`.

    Raises:
        ArgumentError: as ``search``.
        SearchTimeout: no schedule was found in time for any m.
    """
    require_ranks(n)
    require_search(seed, time_limit_s, solver)
    found_with = partial(
        search,
        n,
        late=late,
        ports=ports,
        owners=owners,
        seed=seed,
        solver=solver,
        progress=progress,
    )
    if setting is None or m is not None:
        return found_with(m=1 if m is None else m, time_limit_s=time_limit_s), ()
    candidates: list[Candidate] = []
    best: Candidate | None = None
    deadline = time.monotonic() + time_limit_s
    for at_bound_s, each in sorted(_at_bound(n, setting)):
        left_s = deadline - time.monotonic()
        if best is not None and at_bound_s >= best.predicted_s:
            candidates.append(Candidate(each, at_bound_s, "cannot win, even at its lower bound"))
            continue
        if left_s <= 0:
            candidates.append(Candidate(each, at_bound_s, "not searched: time limit"))
            continue
        try:
            found = found_with(m=each, time_limit_s=left_s / 2)
        except SearchTimeout as error:
            candidates.append(Candidate(each, at_bound_s, f"not found: {error}"))
            continue
        cost = completion_cost(found.schedule)
        predicted_s = setting.seconds(cost)
        candidates.append(Candidate(each, predicted_s, f"{cost}, gap {found.gap}", found))
        if best is None or predicted_s < best.predicted_s:
            best = candidates[-1]
    if best is None:
        raise SearchTimeout(candidates[0].note)
    assert best.found is not None
    return best.found, tuple(sorted(candidates, key=lambda candidate: candidate.m))


def _at_bound(n: int, setting: Setting) -> Iterator[tuple[float, int]]:
    """For each candidate m the predicted time at the lower bound."""
    for m in range(1, MOST_M + 1):
        if m > 1 and n * (n - 1) * m > LARGEST:
            return
        cost = straggler_cost(n, m)
        yield setting.seconds(cost), m
