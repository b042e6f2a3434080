"""What is shown of a schedule with one late rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latecomer.synth import show
from latecomer.synth.cost import (
    Cost,
    Setting,
    completion_cost,
    direct_cost,
    doubling_cost,
    rhd_cost,
    ring_cost,
    straggler_cost,
    tree_cost,
    waiting_cost,
)
from latecomer.synth.straggler.choose import ChunksCandidate
from latecomer.synth.straggler.generate import StragglerAnswer
from latecomer.synth.units import format_seconds

LABELS = {
    "completion": "this, once the late rank is there",
    "reduce_scatter": "  the wait that hides its ReduceScatter",
    "ring": "ring",
    "rhd": "recursive halving-doubling",
    "tree": "binomial tree",
    "doubling": "recursive doubling",
    "direct": "direct (incast)",
    "published": "StragglAR: n - 1 chunks, at the bound",
}


def text(
    path: str,
    answer: StragglerAnswer,
    setting: Setting | None,
    candidates: Sequence[ChunksCandidate],
) -> str:
    """The lines for people."""
    schedule = answer.schedule
    late = "".join(f", rank {rank} late" for rank in schedule.late)
    lines = [
        f"rounds      {show.phases(schedule, absent=True)}",
        f"completion  {answer.value} rounds, lower bound {answer.bound}: {answer.claim}",
        f"found by    {answer.method}; {answer.winner.owners} owners; "
        f"{answer.seconds:.2f} s, seed {schedule.meta['seed']}",
        *_choice(candidates),
        *show.costs({LABELS[name]: cost for name, cost in _costs(answer).items()}, setting),
        f"            {show.legend(setting)}",
    ]
    return show.text(path, f"{show.size(schedule)}{late}, {show.ports(schedule)}", lines)


def facts(
    path: str,
    answer: StragglerAnswer,
    setting: Setting | None,
    candidates: Sequence[ChunksCandidate],
) -> dict[str, Any]:
    """The facts of :func:`text`."""
    return {
        **show.facts(path, answer),
        "gap": answer.gap,
        "why": answer.claim,
        "solver": answer.solver,
        "method": answer.winner.method,
        "owners": answer.winner.owners,
        "seed": answer.schedule.meta["seed"],
        "search_s": answer.seconds,
        "attempts": answer.attempts,
        "setting": setting,
        "predicted": {
            name: show.cost_facts(cost, setting) for name, cost in _costs(answer).items()
        },
        "candidates": [
            {"chunks": c.chunks, "predicted_s": c.predicted_s, "note": c.note} for c in candidates
        ],
    }


def _choice(candidates: Sequence[ChunksCandidate]) -> list[str]:
    """Which numbers of chunks were considered, and the winner."""
    if not candidates:
        return []
    winner = min((c for c in candidates if c.answer is not None), key=lambda c: c.predicted_s)
    rows = [
        (c is winner, f"{show.chunks(c.chunks)}: {format_seconds(c.predicted_s)} ({c.note})")
        for c in candidates
    ]
    return [
        f"chosen      {show.chunks(winner.chunks)}, the least predicted time of those found",
        *show.marked(rows, 10),
    ]


def _costs(answer: StragglerAnswer) -> dict[str, Cost]:
    schedule = answer.schedule
    n = schedule.ranks
    return {
        "completion": completion_cost(schedule),
        "reduce_scatter": waiting_cost(schedule),
        "ring": ring_cost(n),
        "rhd": rhd_cost(n),
        "tree": tree_cost(n),
        "doubling": doubling_cost(n),
        "direct": direct_cost(n),
        "published": straggler_cost(n, n - 1),
    }
