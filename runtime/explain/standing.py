"""Where all ranks stand, for a picture: ranks in the same place, for the same ranks, are one.

The places are in columns: in the last one those who wait for nobody, or round a circle; to the left
who waits for them, and so on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from latecomer.runtime.explain.job import Job
from latecomer.runtime.explain.verdicts import Verdict
from latecomer.runtime.explain.waits import Waits


@dataclass(frozen=True)
class Place:
    """Ranks that stand in one place.

    Attributes:
        ranks: who.
        text: what they are in.
        waits_for: numbers of the places of those for whom they wait.
        column: how many steps away from who waits for nobody.
        is_blamed: whether a verdict names them.
    """

    ranks: tuple[int, ...]
    text: str
    waits_for: tuple[int, ...]
    column: int
    is_blamed: bool


def places_of(job: Job, found: Sequence[Verdict]) -> list[Place]:
    """All places of a job of which there are dumps."""
    waits = Waits(job)
    blamed = {rank for verdict in found for rank in verdict.ranks}
    by_key: dict[tuple[str, frozenset[int], bool], list[int]] = defaultdict(list)
    for rank in sorted(job.world):
        key = (_text(job, waits, rank), frozenset(waits.edges.get(rank, ())), rank in blamed)
        by_key[key].append(rank)
    keys = list(by_key)
    of_rank = {rank: number for number, key in enumerate(keys) for rank in by_key[key]}

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(keys)))
    for number, (_, awaited, _) in enumerate(keys):
        graph.add_edges_from((number, of_rank[rank]) for rank in awaited if rank in of_rank)
    columns = _columns(graph)
    return [
        Place(
            ranks=tuple(by_key[key]),
            text=key[0],
            waits_for=tuple(sorted(graph.successors(number))),
            column=columns[number],
            is_blamed=key[2],
        )
        for number, key in enumerate(keys)
    ]


def places_of_verdicts(found: Sequence[Verdict]) -> list[Place]:
    """Of a job of which reports or a watch tell no more than the verdicts: who, and who waits."""
    places: list[Place] = []
    for verdict in found:
        if not verdict.ranks:
            continue
        culprits = Place(verdict.ranks, verdict.operation or verdict.kind, (), 0, True)
        places.append(culprits)
        if verdict.waiting:
            text = f"{verdict.waiting} other(s) wait"
            places.append(Place((), text, (len(places) - 1,), 1, False))
    return places


def _text(job: Job, waits: Waits, rank: int) -> str:
    if rank not in job.operations:
        return "no dump"
    wait = waits.of.get(rank)
    if wait is None:
        return "nothing open"
    operation = wait.operation
    return f"{operation.kind} {operation.sequence} of {job.called(operation.group)}"


def _columns(graph: nx.DiGraph) -> dict[int, int]:
    """By place, its longest way to one that waits for nobody; a circle is one place."""
    condensed = nx.condensation(graph)
    column: dict[int, int] = {}
    for component in reversed(list(nx.topological_sort(condensed))):
        after = [column[other] + 1 for other in condensed.successors(component)]
        column[component] = max(after, default=0)
    columns: dict[int, int] = {}
    for component, places in condensed.nodes(data="members"):
        columns |= dict.fromkeys(places, column[component])
    return columns
