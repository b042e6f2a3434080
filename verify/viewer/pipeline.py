"""The model of a pipeline: when each pass and message happens, their slack, and memory.

Slack of a pass: how much later it may end at the same makespan, everything else as early as it can.
A schedule that can't run to its end is shown as its programs, action by action.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from latecomer.verify.core.verdict import Counterexample
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.costs import HALVES, Costs
from latecomer.verify.pipeline.graph import Graph, build
from latecomer.verify.pipeline.lower import lowered
from latecomer.verify.pipeline.render import (
    against_bound,
    headline,
    makespan_in_order,
    makespan_in_words,
)
from latecomer.verify.pipeline.schedule import COMPUTE, PipelineSchedule
from latecomer.verify.pipeline.verdict import Measures, PipelineReport
from latecomer.verify.viewer.evidence import counterexamples, fault, head
from latecomer.verify.viewer.part import Part

# Of more, the first ranks are shown.
MOST_ACTIONS = 60_000
MOST_RANKS = 1024


def model(
    name: str, schedule: PipelineSchedule, report: PipelineReport, part: Part | None
) -> dict[str, Any]:
    """What the page shows of a pipeline; ``part``: the ranks to show, None: as many as it can.

    Raises:
        ArgumentError: more than a page can show, or no such ranks.
    """
    low, high = _ranks(schedule, part)
    page = head(name, "pipeline", report.verdict, headline(schedule, report), report.results)
    page |= {
        "ranks": [low, high],
        "faults": [
            fault(c, **_places(schedule, c)) for c in counterexamples(report.results.values())
        ],
        "limits": schedule.instance.memory and list(schedule.instance.memory[low:high]),
    }
    if (low, high) != (0, schedule.ranks):
        page["cut"] = (
            f"Shown are ranks {low} to {high - 1} of {schedule.ranks}, with the messages among "
            f"them; the verdict and all figures are the whole schedule's. Others: "
            f"--html-part FROM-TO."
        )
    if report.measures is None:
        return page | {"programs": [list(map(str, p)) for p in schedule.programs[low:high]]}
    return page | _measured(schedule, report, report.measures, low, high)


def _ranks(schedule: PipelineSchedule, part: Part | None) -> tuple[int, int]:
    sizes = [len(program) for program in schedule.programs]
    low, high = part.within(schedule.ranks, "ranks") if part else (0, min(len(sizes), MOST_RANKS))
    if part is None:
        while high > 1 and sum(sizes[low:high]) > MOST_ACTIONS:
            high -= 1
    if sum(sizes[low:high]) > MOST_ACTIONS or high - low > MOST_RANKS:
        requirement = f"{sum(sizes[low:high]):,} actions; a page shows at most {MOST_ACTIONS:,}"
        raise ArgumentError("--html-part" if part else "--html", part and part.text, requirement)
    return low, high


def _measured(
    schedule: PipelineSchedule, report: PipelineReport, measures: Measures, low: int, high: int
) -> dict[str, Any]:
    costs = Costs.of(schedule.instance)
    graph = build(lowered(schedule, costs), costs)
    finish = graph.finishes()
    in_order = makespan_in_order(measures)
    path = set(graph.critical(finish))
    may = slacks(graph, finish)
    passes = []
    messages = []
    for number, node in enumerate(graph.nodes):
        begin = costs.shown(finish[number] - node.length)
        end = costs.shown(finish[number])
        if node.receiver is None:
            if low <= node.rank < high:
                action = node.action
                slack = costs.shown(may[number])
                place = [node.rank, COMPUTE.index(action.kind), action.stage, action.microbatch]
                passes.append([*place, begin, end, int(number in path), slack])
        elif low <= min(node.rank, node.receiver) and max(node.rank, node.receiver) < high:
            there = costs.shown(finish[number] + node.lag)
            kind = int(node.action.kind == "SEND_B")
            messages.append([node.rank, node.receiver, begin, there, kind, int(number in path)])
    return {
        "passes": passes,
        "messages": messages,
        "makespan": measures.makespan,
        "halves": [HALVES[kind] for kind in COMPUTE],
        "bound": {
            "of": "makespan",
            "value": measures.makespan,
            "bound": measures.lower_bound,
            "texts": against_bound(measures),
            "text": makespan_in_words(report, measures),
            "terms": [],
        },
        "facts": [["two makespans", two_makespans(measures, in_order)]] if in_order else [],
        "links": [
            {
                "name": link.name,
                "messages": link.messages,
                "slack": link.slack,
                "growth": [list(corner) for corner in link.growth],
                "final_slope": link.final_slope,
            }
            for link in measures.links
        ],
    }


def two_makespans(measures: Measures, in_order: str) -> str:
    """Why a schedule has two makespans: what each of the two models assumes."""
    makespan = against_bound(measures)[0]
    return (
        f"{makespan} assumes that sends hold up nobody (a message leaves as soon as its pass is "
        f"over and its link is free), and {in_order} assumes rendezvous sends (a rank's sends and "
        f"receives go one at a time in the order of its program, each when both of its ranks have "
        f"come to it). The lower bound and the timeline are about {makespan}."
    )


def slacks(graph: Graph, finish: list[int]) -> list[int]:
    """By how many ticks each node may end later without a later last end."""
    latest = [max(finish, default=0)] * len(finish)
    for number in reversed(graph.order):
        start = latest[number] - graph.nodes[number].length
        for before, _, data in graph.nodes[number].waits:
            lag = graph.nodes[before].lag if data else 0
            latest[before] = min(latest[before], start - lag)
    return [late - end for late, end in zip(latest, finish, strict=True)]


_WAIT = re.compile(r"rank (\d+)(?: to \d+)?: (\S+) waits for rank (\d+)(?: to \d+)?: (\S+) ")


def _places(schedule: PipelineSchedule, counterexample: Counterexample) -> dict[str, object]:
    """Where to look, as [rank, position], and who waits for whom, as pairs of these."""
    waits: list[list[list[int]] | None] = []
    for line in counterexample.actions:
        if match := _WAIT.match(line):
            found_at = [_position(schedule, int(match[i]), match[i + 1]) for i in (1, 3)]
            ends = [place for place in found_at if place is not None]
            waits.append(ends if len(ends) == 2 else None)
    faulty = [end for pair in waits if pair for end in pair]
    rank = counterexample.rank
    if not faulty and rank is not None and 0 <= rank < schedule.ranks:
        at = counterexample.position
        if at is None:
            at = _at(schedule, counterexample)
        faulty = [[rank, at]] if at is not None else []
    return {"faulty": _once(faulty), "waits": waits}


def _at(schedule: PipelineSchedule, counterexample: Counterexample) -> int | None:
    assert counterexample.rank is not None
    place = _position(schedule, counterexample.rank, counterexample.action or "")
    return place[1] if place else None


def _position(schedule: PipelineSchedule, rank: int, action: str) -> list[int] | None:
    texts = (str(each) for each in schedule.programs[rank])
    return next(([rank, i] for i, text in enumerate(texts) if text == action), None)


def _once(places: Iterable[list[int]]) -> list[list[int]]:
    return [list(place) for place in dict.fromkeys(map(tuple, places))]
