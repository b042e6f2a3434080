"""How the makespan answers to more delay on one link, exactly.

With everything else fixed the makespan is the largest of finitely many lines in the extra latency
x of a link: a path that crosses the link k times has length L + k x. So it is convex and piecewise
linear, its *slack* is where it leaves its value at x = 0, and both are found without trying values:
the lines at two points meet at a third, where either the curve has a corner or a new line shows.

Messages keep their order; on half-duplex links that is the order of the programs.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from latecomer.verify.pipeline.graph import Delay, Graph

MOST_CORNERS = 64
"""Of one link's curve: each takes several passes over the whole graph."""


class PathLength(NamedTuple):
    """A longest path at some extra latency: its length there is ``at_zero + slope * x``."""

    at_zero: int
    slope: int

    def at(self, x: Fraction) -> Fraction:
        """The length of this path with ``x`` more latency."""
        return self.at_zero + self.slope * x


Corner = tuple[Fraction, Fraction]
"""(extra latency, makespan), in ticks."""


def growth(graph: Graph, link: tuple[int, int]) -> tuple[list[Corner], int]:
    """What more latency on ``link`` does: the corners of the curve, and its final slope.

    The first corner is at the slack; there is none if no latency ever costs anything. The graph has
    no cycle, and sends are buffered. At most ``MOST_CORNERS`` corners are given; where the curve
    has more, the final slope is that of the line on which it leaves the last one given.
    """
    makespan = _line(graph, link, Fraction(0)).at_zero
    last = _line(graph, link, Fraction(2 * makespan + 1))  # so far out the steepest is the longest
    current = PathLength(makespan, 0)
    corners: list[Corner] = []
    while current.slope < last.slope and len(corners) < MOST_CORNERS:
        corner, following = _next_corner(graph, link, current, last)
        corners.append((corner, current.at(corner)))
        current = following
    return corners, current.slope


def _next_corner(
    graph: Graph, link: tuple[int, int], current: PathLength, last: PathLength
) -> tuple[Fraction, PathLength]:
    """Where the curve leaves ``current``, and the line it follows then (Newton, from the right)."""
    line = last
    while True:
        x = Fraction(current.at_zero - line.at_zero, line.slope - current.slope)
        longest = _line(graph, link, x)
        if longest.at(x) == current.at(x):
            return x, line
        line = longest


def _line(graph: Graph, link: tuple[int, int], x: Fraction) -> PathLength:
    """A longest path with ``x`` more latency on ``link``."""
    delay = Delay(link, x)
    finish = graph.finishes(delay)
    slope = 0
    for node, user in pairwise(graph.critical(finish, delay)):
        # only who waits for the data waits for its latency, not who waits for the link
        if graph.nodes[node].link == link and graph.nodes[user].receiver is None:
            slope += 1
    at_zero = Fraction(max(finish, default=0), x.denominator) - slope * x
    assert at_zero.denominator == 1
    return PathLength(int(at_zero), slope)
