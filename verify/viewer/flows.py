"""The model of a TE-CCL solution: its flows by epoch, drawn like the transfers of a collective."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from latecomer.verify.asynchronous.teccl import Flow, FlowReport, Solution
from latecomer.verify.core.verdict import Counterexample
from latecomer.verify.errors import ArgumentError
from latecomer.verify.viewer.evidence import counterexamples, fault, head

MOST_FLOWS = 60_000
MOST_VALUES = 2**23
"""Ranks times columns times epochs, each a number in the page."""

_NAMED = re.compile(r"chunk (\d+) of (\d+)(?:, (\d+) -> (\d+))?")
_EPOCH = re.compile(r"epoch (\d+):")


def model(name: str, solution: Solution, report: FlowReport) -> dict[str, Any]:
    """What the page shows of a solution.

    Raises:
        ArgumentError: more flows than a page can show.
    """
    collective = solution.collective
    flows = solution.flows
    names = solution.ranks
    columns = sorted({(flow.owner, flow.chunk) for flow in flows})
    rank = {name: i for i, name in enumerate(names)}
    column = {key: i for i, key in enumerate(columns)}
    if len(flows) > MOST_FLOWS or len(names) * len(columns) * report.epochs > MOST_VALUES:
        requirement = f"has {len(flows):,} flows of {len(columns):,} chunks: too many for a page"
        raise ArgumentError("--html", name, requirement)
    rounds: list[list[float]] = [[] for _ in range(report.epochs)]
    for epoch, group in groupby(flows, lambda flow: flow.epoch):
        for flow in group:
            ends = rank[flow.src], rank[flow.dst], column[flow.owner, flow.chunk]
            rounds[epoch] += [*ends, float(flow.volume)]
    text = f"{collective} of {report.ranks} ranks, {report.flows} flows in {report.epochs} epochs"
    page = head(name, "flows", report.verdict, f"{text} (TE-CCL)", report.results)
    moves = collective == "alltoall"
    wanted = [(chunk if chunk < len(names) else -2) if moves else -1 for _, chunk in columns]
    return page | {
        "ranks": len(names),
        "names": [str(name) for name in names],
        "late": [],
        "ports": None,
        "phases": [{"name": "epochs", "absent": [], "rounds": report.epochs}],
        "columns": [{"name": f"{owner}.{chunk}", "owner": rank[owner]} for owner, chunk in columns],
        "rounds": rounds,
        "moves": moves,
        "wanted": wanted,
        "meaningful": True,
        "faults": [
            fault(c, **_places(c, flows, rank, column))
            for c in counterexamples(report.results.values())
        ],
    }


def _places(
    counterexample: Counterexample,
    flows: list[Flow],
    rank: dict[int, int],
    column: dict[tuple[int, int], int],
) -> dict[str, object]:
    """The flow that a counterexample names, or the last ones into where something lacks."""
    named = _NAMED.search(counterexample.found)
    epoch = _EPOCH.search(counterexample.found)
    ways = []
    if named:
        chunk, owner, src, dst = (None if part is None else int(part) for part in named.groups())
        for flow in flows:
            at = (flow.epoch, flow.src, flow.dst)
            if (flow.owner, flow.chunk) == (owner, chunk) and (
                at == (int(epoch[1]), src, dst) if epoch else flow.dst == counterexample.rank
            ):
                place = rank[flow.src], rank[flow.dst], column[flow.owner, flow.chunk]
                ways.append([flow.epoch, *place])
    return {"transfers": ways, "faulty": ways[-1:]}
