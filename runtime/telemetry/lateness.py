"""Who keeps whom waiting: one line per rank.

Per operation that all ranks have entered, with arrivals a_1 <= ... <= a_n:

    wait       of rank r: last arrival - its own, whether or not the operation waited so long
    lateness   of rank r: its arrival - the median arrival, or 0 where it came before
    wasted     by the last rank: (n - 1) * (a_n - a_(n-1)), what all others together would have
               waited for it alone, had the operation waited for all ranks
    last       rank r was last, by more than the two clocks' uncertainty (else no rank is counted)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Arrival(Protocol):
    """Of a rank at an operation, in seconds of the clock that all have."""

    @property
    def arrived_s(self) -> float:
        """When."""

    @property
    def uncertainty_s(self) -> float:
        """Of the rank's clock against the reference's."""


@dataclass(frozen=True)
class Line:
    """One rank; seconds, and ``last`` as a share of the operations."""

    rank: int
    operations: int
    wait_s: float
    last: float
    lateness_p50_s: float
    lateness_p99_s: float
    wasted_s: float
    uncertainty_s: float

    def __str__(self) -> str:
        wait = _ms(self.wait_s)
        late = f"{_ms(self.lateness_p50_s)} {_ms(self.lateness_p99_s)}"
        return f"{self.rank:>4} {wait} {self.last:>6.0%} {late} {self.wasted_s:>8.2f} s"


def lines_of(ranks: Iterable[int], operations: Sequence[Mapping[int, Arrival]]) -> list[Line]:
    """A line per rank, the one that wastes most first.

    Args:
        operations: of each, by rank, its arrival; of all ``ranks``.
    """
    waits_s: dict[int, list[float]] = {rank: [] for rank in ranks}
    lateness_s: dict[int, list[float]] = {rank: [] for rank in waits_s}
    times_last = dict.fromkeys(waits_s, 0)
    wasted_s = dict.fromkeys(waits_s, 0.0)
    uncertainty_s = dict.fromkeys(waits_s, 0.0)

    for arrivals in operations:
        by_arrival = sorted(arrivals.items(), key=lambda item: item[1].arrived_s)
        last_rank, last = by_arrival[-1]
        median_s = statistics.median(arrival.arrived_s for _, arrival in by_arrival)
        for rank, arrival in by_arrival:
            waits_s[rank].append(last.arrived_s - arrival.arrived_s)
            lateness_s[rank].append(max(0.0, arrival.arrived_s - median_s))
            uncertainty_s[rank] = max(uncertainty_s[rank], arrival.uncertainty_s)

        if len(by_arrival) > 1:
            _, last_but_one = by_arrival[-2]
            alone_s = last.arrived_s - last_but_one.arrived_s
            wasted_s[last_rank] += alone_s * (len(by_arrival) - 1)
            if alone_s > last.uncertainty_s + last_but_one.uncertainty_s:
                times_last[last_rank] += 1

    lines = [
        Line(
            rank=rank,
            operations=len(operations),
            wait_s=statistics.fmean(waits_s[rank]) if waits_s[rank] else math.nan,
            last=times_last[rank] / len(operations) if operations else math.nan,
            lateness_p50_s=quantile(sorted(lateness_s[rank]), 0.5),
            lateness_p99_s=quantile(sorted(lateness_s[rank]), 0.99),
            wasted_s=wasted_s[rank],
            uncertainty_s=uncertainty_s[rank],
        )
        for rank in waits_s
    ]
    return sorted(lines, key=lambda line: (-line.wasted_s, line.rank))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the sorted values do not exceed (or NaN)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:>7.1f} ms"
