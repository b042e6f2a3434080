"""Ranks' clocks, aligned by what has to be simultaneous.

No rank leaves a synchronous collective before the last one has entered it. So on one clock every
member's end comes after every member's start. What has to be added to rank j's times to have them
on rank i's clock so lies, for each collective of both, between

    start_i - end_j    and    end_i - start_j

The middle of what all of them leave is taken, and half its width is the uncertainty. Ranks that
have no collective in common are compared through others, by the way with the least uncertainty.

Source: Cristian's probabilistic clock synchronization (1989), with collectives in place of
messages. Limit: clocks that drift apart while they are recorded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

Spans = Mapping[int, tuple[float, float]]
"""By rank, when it began and ended a collective, in seconds of its own clock."""


@dataclass(frozen=True)
class Clocks:
    """By rank, what to add to its times, and how far off that may be."""

    shifts_s: dict[int, float]
    uncertainty_s: float

    @property
    def text(self) -> str:
        """For people."""
        if math.isinf(self.uncertainty_s):
            return "as they were: nothing is known of their differences"
        largest_s = max(map(abs, self.shifts_s.values()), default=0.0)
        return (
            f"differed by up to {largest_s * 1e3:.3g} ms, aligned within "
            f"{self.uncertainty_s * 1e3:.2g} ms"
        )


def align(collectives: Iterable[Spans], ranks: Iterable[int]) -> Clocks:
    """The clocks of these ranks, as the lowest of them has it."""
    bounds_s: dict[tuple[int, int], tuple[float, float]] = {}
    for spans in collectives:
        first = min(spans)
        start_s, end_s = spans[first]
        for rank, (its_start_s, its_end_s) in spans.items():
            if rank != first:
                least_s, most_s = bounds_s.get((first, rank), (-math.inf, math.inf))
                least_s = max(least_s, start_s - its_end_s)
                most_s = min(most_s, end_s - its_start_s)
                bounds_s[first, rank] = least_s, most_s

    graph = nx.Graph()
    graph.add_nodes_from(ranks)
    for (first, rank), (least_s, most_s) in bounds_s.items():
        width_s = abs(most_s - least_s) / 2  # where they contradict each other: that far
        graph.add_edge(first, rank, weight=width_s, middle=(least_s + most_s) / 2)
    lowest = min(graph)
    ways = nx.single_source_dijkstra_path(graph, lowest)
    shifts_s = dict.fromkeys(graph, 0.0)
    uncertainty_s = 0.0 if len(ways) == len(graph) else math.inf
    for rank, way in ways.items():
        width_s = 0.0
        for one, other in itertools.pairwise(way):
            edge = graph.edges[one, other]
            shifts_s[rank] += edge["middle"] if one < other else -edge["middle"]
            width_s += edge["weight"]
        uncertainty_s = max(uncertainty_s, width_s)
    return Clocks(shifts_s, uncertainty_s)
