"""Who makes the others wait in a job that goes on: ranks that take longer again and again.

An operation ends when its last member has come. So a rank's *own time* runs from the end of the
operation that it was in to its arrival at the next; who comes late since it has waited for another
rank, in another group, has not taken that time. A rank is called slow if its own time

    1. is longer than the median of the other ranks' by :data:`MATTERS` of the time, or more, and by
       at least half as much as the slowest rank's;
    2. is longer in most parts of the time (:data:`USUALLY` of :data:`PARTS`), not in a few alone;
    3. is so by more than the clocks are uncertain.

So nobody is called slow where ranks come last in turn, nor in a moment of a few operations.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latecomer.runtime.explain.verdicts import Verdict
from latecomer.runtime.telemetry.lateness import Arrival, lines_of
from latecomer.runtime.telemetry.rank_names import names

MATTERS = 0.05  # of the time
PARTS = 20  # of the time, with as many operations each
USUALLY = 0.8  # of the parts
FEWEST = 2 * PARTS  # operations, of which anything is said
SHORTEST_S = 1.0  # likewise: for less, a rank may have been kept from a busy processor


@dataclass(frozen=True)
class Came:
    """When a rank came to an operation."""

    arrived_s: float
    uncertainty_s: float


@dataclass(frozen=True)
class Together:
    """One operation to which all members of a group came; ``came``: by rank."""

    group: str
    kind: str
    came: Mapping[int, Arrival]
    description: str = ""  # of the group

    @property
    def ended_s(self) -> float:
        """Not before the last had come."""
        return max(came.arrived_s for came in self.came.values())


@dataclass
class _Own:
    """One rank's own time before its operations: in each part, and how far off that may be."""

    parts_s: list[float]
    uncertainty_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.parts_s)


def slow_verdicts(operations: Sequence[Together]) -> list[Verdict]:
    """Who is slow: one verdict, or none."""
    if len(operations) < FEWEST:
        return []
    ordered = sorted(operations, key=lambda operation: operation.ended_s)
    own = _own_times(ordered)
    first_s = min(came.arrived_s for operation in ordered for came in operation.came.values())
    lasted_s = ordered[-1].ended_s - first_s
    if lasted_s < SHORTEST_S:
        return []

    more_s = {rank: _more(rank, own) for rank in own}
    most_s = max(more_s.values())
    slow = [
        rank
        for rank in sorted(own)
        if more_s[rank] >= max(MATTERS * lasted_s, most_s / 2, own[rank].uncertainty_s)
        and _is_usual(rank, own)
    ]
    if not slow or len(slow) == len(own):
        return []
    return [_verdict(slow, ordered, own, more_s, lasted_s)]


def _own_times(ordered: Sequence[Together]) -> dict[int, _Own]:
    """By rank, its own times; ``ordered`` by their ends."""
    free_s: dict[int, float] = {}
    own: dict[int, _Own] = defaultdict(lambda: _Own([0.0] * PARTS))
    for number, operation in enumerate(ordered):
        part = number * PARTS // len(ordered)
        for rank, came in operation.came.items():
            took_s = came.arrived_s - free_s.get(rank, came.arrived_s)
            if took_s > 0:
                own[rank].parts_s[part] += took_s
                own[rank].uncertainty_s += 2 * came.uncertainty_s
            free_s[rank] = max(operation.ended_s, free_s.get(rank, operation.ended_s))
    return {rank: own[rank] for rank in free_s}


def _more(rank: int, own: dict[int, _Own]) -> float:
    """How much longer than the others a rank takes, in all."""
    others_s = [each.total_s for other, each in own.items() if other != rank]
    return own[rank].total_s - statistics.median(others_s)


def _is_usual(rank: int, own: dict[int, _Own]) -> bool:
    longer = 0
    for part in range(PARTS):
        others_s = [each.parts_s[part] for other, each in own.items() if other != rank]
        longer += own[rank].parts_s[part] > statistics.median(others_s)
    return longer >= USUALLY * PARTS


def _verdict(
    slow: Sequence[int],
    ordered: Sequence[Together],
    own: dict[int, _Own],
    more_s: dict[int, float],
    lasted_s: float,
) -> Verdict:
    witness = [
        f"rank {rank} takes {own[rank].total_s:.3g} s of {lasted_s:.3g} s between operations, "
        f"{more_s[rank]:.3g} s more than the others (median)"
        for rank in slow
    ]
    by_group: dict[tuple[str, tuple[int, ...]], list[Together]] = defaultdict(list)
    for operation in ordered:
        by_group[operation.group, tuple(sorted(operation.came))].append(operation)
    affected = {key: each for key, each in by_group.items() if set(key[1]) & set(slow)}
    lines = {
        key: [
            line
            for line in lines_of(key[1], [operation.came for operation in each])
            if line.rank in slow
        ]
        for key, each in affected.items()
    }
    worst = max(lines, key=lambda key: sum(line.wasted_s for line in lines[key]))
    of_worst = affected[worst]
    called = f"group {worst[0] or '0'}"
    if of_worst[0].description:
        called += f" ({of_worst[0].description})"
    witness += [
        f"rank {line.rank} comes last in {line.last:.0%} of {len(of_worst)} operations of "
        f"{called}, {line.lateness_p50_s * 1e3:.3g} ms after the median rank (p50; p99 "
        f"{line.lateness_p99_s * 1e3:.3g} ms)"
        for line in lines[worst]
    ]
    kinds = Counter(operation.kind for operation in of_worst)
    what = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    waiting = set(itertools.chain.from_iterable(key[1] for key in affected)) - set(slow)
    witness.append(f"{names(waiting)} wait for that")
    return Verdict(
        kind="slow",
        ranks=tuple(slow),
        group=worst[0],
        operation=f"{what} of {called}",
        waiting=len(waiting),
        witness=tuple(witness),
    )
