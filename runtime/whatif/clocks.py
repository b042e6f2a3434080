"""Ranks' clocks, aligned by what has to be simultaneous.

No rank leaves a synchronous collective before the last one has entered it. So on one clock every
member's end comes after every member's start. What has to be added to rank j's times to have them
on the clock of rank i so lies, for each collective of both, between

    start_i - end_j    and    end_i - start_j

The middle of what all of them leave is taken, and half its width is the uncertainty. All ranks of a
host have one clock. Hosts that have no collective in common are compared through others, by the way
with the least uncertainty.

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
        if not self.uncertainty_s:
            return "one host's"
        largest_s = max(map(abs, self.shifts_s.values()))
        return (
            f"differed by up to {largest_s * 1e3:.3g} ms, aligned within "
            f"{self.uncertainty_s * 1e3:.2g} ms"
        )


def align(collectives: Iterable[Spans], hosts: Mapping[int, str]) -> Clocks:
    """The clocks of ranks, as the lowest of them has it; ``hosts``: on which each rank was."""
    lowest = hosts[min(hosts)]
    bounds_s: dict[tuple[str, str], tuple[float, float]] = {}
    for spans in collectives:
        starts_s: dict[str, float] = {}  # by host, of its last rank
        ends_s: dict[str, float] = {}  # of its first
        for rank, (start_s, end_s) in spans.items():
            host = hosts[rank]
            starts_s[host] = max(start_s, starts_s.get(host, -math.inf))
            ends_s[host] = min(end_s, ends_s.get(host, math.inf))
        first, *others = starts_s
        for host in others:
            least_s, most_s = bounds_s.get((first, host), (-math.inf, math.inf))
            least_s = max(least_s, starts_s[first] - ends_s[host])
            most_s = min(most_s, ends_s[first] - starts_s[host])
            bounds_s[first, host] = least_s, most_s

    graph = nx.DiGraph()
    graph.add_nodes_from(hosts.values())
    for (first, host), (least_s, most_s) in bounds_s.items():
        width_s = abs(most_s - least_s) / 2  # where they contradict each other: that far
        middle_s = (least_s + most_s) / 2
        graph.add_edge(first, host, weight=width_s, shift_s=middle_s)
        graph.add_edge(host, first, weight=width_s, shift_s=-middle_s)
    ways = nx.single_source_dijkstra_path(graph, lowest)
    shifts_s = dict.fromkeys(graph, 0.0)
    uncertainty_s = 0.0 if len(ways) == len(graph) else math.inf
    for host, way in ways.items():
        steps = [graph.edges[step] for step in itertools.pairwise(way)]
        shifts_s[host] = sum(step["shift_s"] for step in steps)
        uncertainty_s = max(uncertainty_s, sum(step["weight"] for step in steps))
    return Clocks({rank: shifts_s[host] for rank, host in hosts.items()}, uncertainty_s)
