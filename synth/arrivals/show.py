"""What is shown of a schedule for given arrivals."""

from __future__ import annotations

from typing import Any

from latecomer.synth import show
from latecomer.synth.arrivals.generate import ArrivalsAnswer
from latecomer.synth.cost import Setting
from latecomer.synth.units import format_seconds


def text(path: str, answer: ArrivalsAnswer, setting: Setting | None) -> str:
    """The lines for people."""
    schedule = answer.schedule
    arrival = answer.arrivals.arrival
    late = ", ".join(f"{rank} at round {arrival[rank]}" for rank in schedule.late)
    rows = []
    for candidate in answer.candidates:
        note = f"  ({candidate.note})" if candidate.note else ""
        time = f"  {format_seconds(setting.seconds(candidate.cost))}" if setting else ""
        row = f"{candidate.method:<22}{candidate.arrivals.chunks:>7}{candidate.rounds:>7}"
        rows.append((candidate.method == answer.method, f"{row}  {candidate.cost}{time}{note}"))
    lines = [
        f"late        rank {late}",
        f"rounds      {show.phases(schedule)}",
        f"completion  {answer.value} rounds after the last arrival, lower bound {answer.bound}: "
        f"{answer.claim}",
        f"search      {answer.seconds:.2f} s, seed {schedule.meta['seed']}",
        f"candidates  {'':<22}{'chunks':>7}{'rounds':>7}  after the last arrival",
        *show.marked(rows, 10),
        f"            {show.legend(setting)}",
    ]
    return show.text(path, f"{show.size(schedule)}, {show.ports(schedule)}", lines)


def facts(path: str, answer: ArrivalsAnswer, setting: Setting | None) -> dict[str, Any]:
    """The facts of :func:`text`."""
    schedule = answer.schedule
    return {
        **show.facts(path, answer),
        "arrivals": {rank: answer.arrivals.arrival[rank] for rank in schedule.late},
        "gap": answer.gap,
        "why": answer.claim,
        "method": answer.method,
        "seed": schedule.meta["seed"],
        "search_s": answer.seconds,
        "setting": setting,
        "candidates": [
            {
                "method": candidate.method,
                "chunks": candidate.arrivals.chunks,
                "rounds": candidate.rounds,
                **show.cost_facts(candidate.cost, setting),
                "made": candidate.schedule is not None,
                "note": candidate.note,
            }
            for candidate in answer.candidates
        ],
    }
