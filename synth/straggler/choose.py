"""Which number k of chunks is best for a given buffer, latency and bandwidth.

More chunks bring the completion closer to the physical limit S*beta, at one alpha per round more:
at the lower bound it takes (k + L - 1)(alpha + S/k beta) with L = ceil(log2 n), which is convex in
k with its minimum near sqrt((L - 1) S beta / alpha), whatever n is. Numbers of chunks are searched
in order of that time, and the first that could not win even at its lower bound ends the search,
since all others are behind it. With duplex ports the closed form is at the bound, so the first to
be searched wins; with matching ports a few are searched.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from latecomer.synth.cost import MOST_CHUNKS, Setting, best_chunks, completion_cost, straggler_cost
from latecomer.synth.solvers.choice import SolverName, Solving
from latecomer.synth.standard import require_ranks
from latecomer.synth.straggler.generate import MOST_RANKS, StragglerAnswer, search
from latecomer.synth.straggler.instance import Owners, PortModel
from latecomer.synth.straggler.search import Progress
from latecomer.verify.errors import SearchTimeout

LARGEST = 2**21
"""Ranks times chunks of a candidate: larger files gain little and load slowly."""

# For matching ports. With duplex ports the first number is at its bound, and the second ends the
# search.
MOST_SEARCHED = 6
"""Numbers of chunks that are searched at most."""


@dataclass(frozen=True)
class ChunksCandidate:
    """A number of chunks that was considered; ``predicted_s`` at its bound if nothing was found."""

    chunks: int
    predicted_s: float
    note: str
    answer: StragglerAnswer | None = None


def choose(
    n: int,
    setting: Setting | None,
    *,
    late: int | None,
    m: int | None,
    chunks: int | None,
    ports: PortModel,
    owners: Owners,
    seed: int,
    effort: float,
    time_limit_s: float | None,
    solver: SolverName,
    progress: Progress,
) -> tuple[StragglerAnswer, tuple[ChunksCandidate, ...]]:
    """The schedule with the least predicted time, and all candidates in order of their chunks.

    With ``m`` or ``chunks`` given, or no ``setting`` to predict in (then m = 1), there is nothing
    to choose and there are no candidates. The other arguments are those of
    :func:`latecomer.synth.straggler.generate.search`.

    Raises:
        ArgumentError: as ``search``.
        SearchTimeout: no schedule was found for any number of chunks.
    """
    require_ranks(n, MOST_RANKS)
    solving = Solving(solver, seed, effort, time_limit_s)
    search_with = partial(
        search,
        n,
        late=late,
        ports=ports,
        owners=owners,
        seed=seed,
        effort=effort,
        solver=solver,
        progress=progress,
    )

    if setting is None or m is not None or chunks is not None:
        answer = search_with(m=1 if m is None else m, chunks=chunks, time_limit_s=time_limit_s)
        return answer, ()
    return _least_time(n, setting, search_with, solving)


def _least_time(
    n: int,
    setting: Setting,
    search_with: Callable[..., StragglerAnswer],
    solving: Solving,
) -> tuple[StragglerAnswer, tuple[ChunksCandidate, ...]]:
    """The best number of chunks; ``search_with`` searches a given one.

    Raises:
        SearchTimeout: no schedule was found for any number of chunks.
    """
    candidates: list[ChunksCandidate] = []
    best: ChunksCandidate | None = None
    for at_bound_s, chunks in _at_bound(n, setting):
        if best is not None and at_bound_s >= best.predicted_s:
            note = "cannot win, even at its lower bound, nor can those farther from the best"
            candidates.append(ChunksCandidate(chunks, at_bound_s, note))
            break

        # The first is searched in any case, so that a short time limit leaves a schedule.
        if len(candidates) == MOST_SEARCHED or (candidates and solving.over):
            why = "time limit" if solving.over else f"after {MOST_SEARCHED} others"
            candidates.append(ChunksCandidate(chunks, at_bound_s, f"not searched: {why}"))
            break

        try:
            answer = search_with(chunks=chunks, time_limit_s=solving.left_s)
        except SearchTimeout as error:
            candidates.append(ChunksCandidate(chunks, at_bound_s, f"not found: {error}"))
            continue

        cost = completion_cost(answer.schedule)
        candidate = ChunksCandidate(
            chunks=chunks,
            predicted_s=setting.seconds(cost),
            note=f"{cost}, gap {answer.gap}",
            answer=answer,
        )
        candidates.append(candidate)
        if best is None or candidate.predicted_s < best.predicted_s:
            best = candidate

    if best is None:
        raise SearchTimeout(candidates[0].note)
    assert best.answer is not None
    return best.answer, tuple(sorted(candidates, key=lambda candidate: candidate.chunks))


def _at_bound(n: int, setting: Setting) -> Iterator[tuple[float, int]]:
    """Numbers of chunks and their times at the lower bound, in order of these."""
    most = max(1, min(MOST_CHUNKS, LARGEST // n))
    first = best_chunks(n, setting.buffer_bytes, setting.link, most)

    def timed(numbers: range) -> Iterator[tuple[float, int]]:
        return ((setting.seconds(straggler_cost(n, k)), k) for k in numbers)

    return heapq.merge(timed(range(first, 0, -1)), timed(range(first + 1, most + 1)))
