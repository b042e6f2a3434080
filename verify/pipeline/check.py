"""All properties of a pipeline schedule, in order, and what it takes, as one report."""

from __future__ import annotations

from collections.abc import Callable

from verify.core.schedule import Scalar
from verify.core.verdict import Verdict
from verify.pipeline.bounds import lower_bound
from verify.pipeline.costs import Costs
from verify.pipeline.graph import Graph, build
from verify.pipeline.lower import lowered
from verify.pipeline.messages import communication, message_order, reduce_grad
from verify.pipeline.schedule import Number, PipelineSchedule
from verify.pipeline.sensitivity import growth
from verify.pipeline.structure import (
    dependencies,
    exactly_once,
    loss_order,
    memory,
    peak_memory,
    sharding,
    well_formed,
)
from verify.pipeline.verdict import (
    PROVED,
    Bar,
    Fault,
    Finding,
    LinkSlack,
    Measures,
    PipelineReport,
    refuted,
    unknown,
)

COMPLETE: tuple[str, ...] = ("exactly_once", "dependencies", "communication")
"""Properties without which nothing can be said about a run."""

BY_PROGRAM: dict[str, Callable[[PipelineSchedule], Finding]] = {
    "exactly_once": exactly_once,
    "dependencies": dependencies,
    "loss_order": loss_order,
    "communication": communication,
    "message_order": message_order,
    "reduce_grad": reduce_grad,
    "sharding": sharding,
}
"""Properties of a well formed schedule, by name; some need those above them."""

NEEDS = {
    "dependencies": ("exactly_once",),
    "communication": ("exactly_once",),
    "message_order": ("exactly_once", "communication"),
    "reduce_grad": ("exactly_once",),
}


def check(schedule: PipelineSchedule) -> PipelineReport:
    """Decide every property and measure the schedule; never raises for a bad one.

    Nothing in ``meta`` is believed. A schedule that can't run to its end has no measures.
    """
    results = {"well_formed": well_formed(schedule)}
    measures = None
    if results["well_formed"].verdict is Verdict.PROVED:
        for name, decide in BY_PROGRAM.items():
            missing = _not_proved(results, NEEDS.get(name, ()))
            results[name] = unknown(f"{missing} does not hold") if missing else decide(schedule)
        costs = Costs.of(schedule.situation)
        missing = _not_proved(results, COMPLETE)
        if missing:
            results["deadlock_free"] = unknown(f"{missing} does not hold")
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


def _not_proved(results: dict[str, Finding], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if results[name].verdict is not Verdict.PROVED), None)


def _run(schedule: PipelineSchedule, costs: Costs) -> tuple[Finding, Measures | None]:
    """Property 9, and the measures where it holds."""
    graph = build(schedule, costs)
    if graph.cyclic:
        return _deadlock(graph, "even if sends are buffered"), None
    complete = lowered(schedule, costs)
    graph = build(complete, costs)
    in_order = build(complete, costs, rendezvous=True)
    if not in_order.cyclic:
        note = ""
    elif schedule.situation.sends == "rendezvous":
        return _deadlock(in_order, "sends are rendezvous, on one in-order stream per rank"), None
    else:
        note = "only because sends are buffered: as rendezvous in order they wait in a cycle"
    return Finding(Verdict.PROVED, note=note), _measures(complete, costs, graph, in_order)


def _deadlock(graph: Graph, circumstances: str) -> Finding:
    cycle = graph.cycle()
    first = graph.nodes[cycle[0][0]]
    return refuted(
        Fault(
            property="deadlock_free",
            rank=first.rank,
            action=str(first.action),
            expected="every rank's program to run to its end",
            found=f"{len(cycle)} actions wait for each other in a cycle ({circumstances})",
            actions=tuple(
                f"{graph.nodes[node]} waits for {graph.nodes[other]} ({why})"
                for (node, why), (other, _) in zip(cycle, cycle[1:] + cycle[:1], strict=True)
            ),
        )
    )


def _measures(schedule: PipelineSchedule, costs: Costs, graph: Graph, in_order: Graph) -> Measures:
    finish = graph.finishes()
    links = sorted({node.link for node in graph.nodes if node.link is not None})
    return Measures(
        makespan=costs.shown(max(finish)),
        makespan_in_order=None if in_order.cyclic else costs.shown(max(in_order.finishes())),
        peak_memory=tuple(
            peak // 2 if peak % 2 == 0 else peak / 2 for peak in peak_memory(schedule)
        ),
        lower_bound=costs.shown(lower_bound(schedule, costs)),
        critical_path=tuple(bar(graph, costs, finish, node) for node in graph.critical(finish)),
        links=tuple(_slack(graph, costs, link) for link in links),
    )


def bar(graph: Graph, costs: Costs, finish: list[int], node: int) -> Bar:
    """When a node starts and ends; a message ends when it is there."""
    what = graph.nodes[node]
    return Bar(
        action=str(what.action),
        rank=what.rank,
        start=costs.shown(finish[node] - graph.length[node]),
        end=costs.shown(finish[node] + graph.lag[node]),
        receiver=what.receiver,
    )


def timeline(schedule: PipelineSchedule, *, in_order: bool = False) -> list[Bar]:
    """Every compute action and message of a schedule that is proved, with its times.

    Args:
        schedule: a right schedule.
        in_order: whether messages are rendezvous on one in-order stream per rank.
    """
    costs = Costs.of(schedule.situation)
    graph = build(lowered(schedule, costs), costs, rendezvous=in_order)
    finish = graph.finishes()
    return [bar(graph, costs, finish, node) for node in range(len(graph.nodes))]


def _slack(graph: Graph, costs: Costs, link: tuple[int, int]) -> LinkSlack:
    found = growth(graph, link)
    corners = tuple((costs.shown(x), costs.shown(y)) for x, y in found.corners)
    return LinkSlack(
        between=link,
        messages=sum(node.link == link for node in graph.nodes),
        slack=None if found.slack is None else costs.shown(found.slack),
        growth=corners,
        final_slope=found.final_slope,
    )


def claims(schedule: PipelineSchedule, measures: Measures | None) -> Finding:
    """Property 11: what ``meta`` claims of the makespan and its bound agrees with what is found.

    Checked keys: ``makespan``, ``lower_bound`` and ``optimal``; other keys claim nothing that can
    be recomputed here (a solver's bound, say).
    """
    claimed = {
        name: schedule.meta[name]
        for name in ("makespan", "lower_bound", "optimal")
        if name in schedule.meta
    }
    if not claimed:
        return PROVED
    if measures is None:
        return unknown("the schedule can't be measured")
    recomputed: dict[str, Number] = {
        "makespan": measures.makespan,
        "lower_bound": measures.lower_bound,
    }
    at_bound = measures.makespan == measures.lower_bound
    for name, value in claimed.items():
        if name == "optimal":
            if value is not True or at_bound:
                continue
            return unknown(
                f"meta claims optimal; {measures.makespan} against the bound "
                f"{measures.lower_bound} decides nothing"
            )
        if not _same(value, recomputed[name]):
            return refuted(
                Fault(
                    property="claims",
                    expected=f"{name} = {recomputed[name]!r} (recomputed)",
                    found=f"meta claims {name} = {value!r}",
                )
            )
    return PROVED


def _same(claimed: Scalar, value: Number) -> bool:
    return not isinstance(claimed, bool | str | None) and claimed == value
