"""All properties of a pipeline schedule, in order, and what it takes, as one report."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from latecomer.verify.core.verdict import PROVED, Counterexample, Result, Verdict, refuted, unknown
from latecomer.verify.pipeline.bounds import lower_bound
from latecomer.verify.pipeline.costs import Costs, exact, told_apart, written
from latecomer.verify.pipeline.graph import Graph, build
from latecomer.verify.pipeline.lower import lowered
from latecomer.verify.pipeline.messages import communication, message_order, reduce_grad
from latecomer.verify.pipeline.schedule import PipelineSchedule
from latecomer.verify.pipeline.sensitivity import growth
from latecomer.verify.pipeline.structure import (
    dependencies,
    exactly_once,
    loss_order,
    memory,
    peak_memory,
    sharding,
    well_formed,
)
from latecomer.verify.pipeline.verdict import Bar, Exact, LinkSlack, Measures, PipelineReport
from latecomer.verify.pipeline.waits import waits

COMPLETE: tuple[str, ...] = ("exactly_once", "dependencies", "communication", "waits")
"""Properties without which nothing can be said about a run."""

BY_PROGRAM: dict[str, Callable[[PipelineSchedule], Result]] = {
    "exactly_once": exactly_once,
    "dependencies": dependencies,
    "loss_order": loss_order,
    "communication": communication,
    "message_order": message_order,
    "reduce_grad": reduce_grad,
    "waits": waits,
    "sharding": sharding,
}
"""Properties of a well formed schedule, by name; some need those above them."""

NEEDS = {
    "dependencies": ("exactly_once",),
    "communication": ("exactly_once",),
    "message_order": ("exactly_once", "communication"),
    "reduce_grad": ("exactly_once",),
    "waits": ("exactly_once", "communication"),
}


CLAIMS = ("makespan", "lower_bound", "optimal")
"""What ``meta`` may claim; other keys claim nothing that can be recomputed here."""


def check(schedule: PipelineSchedule) -> PipelineReport:
    r"""Decide every property and measure the schedule; never raises for a bad one.

    Nothing in ``meta`` is believed. A schedule that can't run to its end has no measures.

    Examples:
        Rank 0 waits for the backward of microbatch 0, rank 1 does that of microbatch 1 first, for
        which rank 0 would have to go on:

        >>> from latecomer.verify.pipeline import check, decode_csv
        >>> report = check(decode_csv(b"0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n"))
        >>> report.verdict, report.counterexample.property
        (<Verdict.REFUTED: 'refuted'>, 'deadlock_free')
        >>> for reason in report.counterexample.actions[:2]:
        ...     print(reason)
        rank 0: 0B0 waits for rank 1 to 0: 1SEND_B0 (needs its data)
        rank 1 to 0: 1SEND_B0 waits for rank 1: 1B0 (it computes what is sent)
    """
    results = {"well_formed": well_formed(schedule)}
    measures = None
    if results["well_formed"].verdict is Verdict.PROVED:
        for name, decide in BY_PROGRAM.items():
            results[name] = _lacking(results, NEEDS.get(name, ())) or decide(schedule)
        costs = Costs.of(schedule.instance)
        incomplete = _lacking(results, COMPLETE)
        if incomplete is not None:
            results["deadlock_free"] = incomplete
        else:
            results["deadlock_free"], measures = _run(schedule, costs)
        results["memory"] = memory(schedule, costs)
        results["claims"] = claims(schedule, measures)
    else:
        meaningless = unknown("the schedule is not well formed")
        results |= dict.fromkeys([*BY_PROGRAM, "deadlock_free", "memory", "claims"], meaningless)
    return PipelineReport(
        ranks=schedule.ranks,
        stages=schedule.stages,
        microbatches=schedule.microbatches,
        form="compute_comms" if schedule.has_messages else "compute_only",
        results=results,
        measures=measures,
    )


def _lacking(results: dict[str, Result], names: tuple[str, ...]) -> Result | None:
    """Unknown, because one of the properties does not hold; None if all do."""
    missing = next((name for name in names if results[name].verdict is not Verdict.PROVED), None)
    return unknown(f"{missing} does not hold") if missing else None


def _run(schedule: PipelineSchedule, costs: Costs) -> tuple[Result, Measures | None]:
    """Property 10, and the measures where it holds."""
    # First without any messages added: lowering needs compute actions that run to their end.
    graph = build(schedule, costs)
    if graph.cyclic:
        return _deadlock(graph, "even if sends are buffered"), None

    complete = lowered(schedule, costs)
    graph = build(complete, costs)
    in_order = build(complete, costs, rendezvous=True)
    note = ""
    if in_order.cyclic:
        if schedule.instance.sends == "rendezvous":
            problem = "sends are rendezvous, on one in-order stream per rank"
            return _deadlock(in_order, problem), None
        note = "only because sends are buffered: as rendezvous in order they wait in a cycle"
    return Result(Verdict.PROVED, note=note), _measures(complete, costs, graph, in_order)


def _deadlock(graph: Graph, circumstances: str) -> Result:
    cycle = graph.cycle()
    waits = []
    for (node, why), (next_node, _) in pairwise([*cycle, cycle[0]]):
        waits.append(f"{graph.nodes[node]} waits for {graph.nodes[next_node]} ({why})")

    first = graph.nodes[cycle[0][0]]
    return refuted(
        Counterexample(
            property="deadlock_free",
            rank=first.rank,
            action=str(first.action),
            expected="every rank's program to run to its end",
            found=f"{len(cycle)} actions wait for each other in a cycle ({circumstances})",
            actions=tuple(waits),
        )
    )


def _measures(schedule: PipelineSchedule, costs: Costs, graph: Graph, in_order: Graph) -> Measures:
    finish = graph.finishes()
    links = sorted({node.link for node in graph.nodes if node.link is not None})
    numbers = Exact(
        ticks=costs.ticks,
        makespan=max(finish),
        makespan_in_order=None if in_order.cyclic else max(in_order.finishes()),
        lower_bound=lower_bound(schedule, costs),
        peak_memory=peak_memory(schedule),
    )
    makespan_in_order = None
    if numbers.makespan_in_order is not None:
        makespan_in_order = costs.shown(numbers.makespan_in_order)
    return Measures(
        exact=numbers,
        makespan=costs.shown(numbers.makespan),
        makespan_in_order=makespan_in_order,
        peak_memory=tuple(
            halves // 2 if halves % 2 == 0 else halves / 2 for halves in numbers.peak_memory
        ),
        lower_bound=costs.shown(numbers.lower_bound),
        critical_path=tuple(_bar(graph, costs, finish, node) for node in graph.critical(finish)),
        links=tuple(_slack(graph, costs, link) for link in links),
    )


def _bar(graph: Graph, costs: Costs, finish: list[int], number: int) -> Bar:
    """When a node starts and ends; a message ends when it is there."""
    node = graph.nodes[number]
    end = finish[number]
    return Bar(
        action=str(node.action),
        rank=node.rank,
        start=costs.shown(end - node.length),
        end=costs.shown(end + node.lag),
        receiver=node.receiver,
    )


def timeline(schedule: PipelineSchedule, *, in_order: bool = False) -> list[Bar]:
    r"""Every compute action and message of a schedule that is proved, with its times.

    Args:
        schedule: a right schedule.
        in_order: whether messages are rendezvous on one in-order stream per rank.

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, timeline
        >>> for bar in timeline(decode_csv(b"0F0,0B0\n1F0,1B0\n")):  # each a Bar
        ...     print(bar.start, bar.end, f"rank {bar.rank}: {bar.action}")
        0 1 rank 0: 0F0
        4 6 rank 0: 0B0
        1 2 rank 1: 1F0
        2 4 rank 1: 1B0
        1 1 rank 0: 0SEND_F0
        4 4 rank 1: 1SEND_B0
    """
    costs = Costs.of(schedule.instance)
    graph = build(lowered(schedule, costs), costs, rendezvous=in_order)
    finish = graph.finishes()
    return [_bar(graph, costs, finish, node) for node in range(len(graph.nodes))]


def _slack(graph: Graph, costs: Costs, link: tuple[int, int]) -> LinkSlack:
    corners, final_slope = growth(graph, link)
    corners_shown = tuple(
        (costs.shown(latency), costs.shown(makespan)) for latency, makespan in corners
    )
    slack = None
    if corners_shown:
        slack, _ = corners_shown[0]
    return LinkSlack(
        between=link,
        messages=sum(node.link == link for node in graph.nodes),
        slack=slack,
        growth=corners_shown,
        final_slope=final_slope,
    )


def claims(schedule: PipelineSchedule, measures: Measures | None) -> Result:
    """Property 12: what ``meta`` claims of the makespan and its bound agrees with what is found."""
    claimed = {name: schedule.meta[name] for name in CLAIMS if name in schedule.meta}
    if claimed and measures is None:
        return unknown("the schedule can't be measured")

    for name, value in claimed.items():
        assert measures is not None
        measured = measures.exact
        if name == "optimal":
            if value is True and measured.makespan != measured.lower_bound:
                makespan, bound = told_apart(
                    measured.time(measured.makespan), measured.time(measured.lower_bound)
                )
                return unknown(
                    f"meta claims optimal; {makespan} against the bound {bound} decides nothing"
                )
            continue

        recomputed = measured.time(getattr(measured, name))
        if isinstance(value, bool | str | None) or exact(value) != recomputed:
            expected = f"{name} = {written(recomputed)} (recomputed)"
            claim = f"meta claims {name} = {value!r}"
            return refuted(Counterexample(property="claims", expected=expected, found=claim))
    return PROVED
