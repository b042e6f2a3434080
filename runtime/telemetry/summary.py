"""Who keeps whom waiting: one line per rank, the one that wastes most first.

Per operation that all ranks have entered, with arrivals a_1 <= ... <= a_n:

    wait       of rank r: last arrival - its own
    lateness   of rank r: its arrival - the median arrival, or 0 where it came before
    wasted     by the last rank: (n - 1) * (a_n - a_(n-1)), what all others waited for it alone
    last       rank r was last, by more than the two clocks' uncertainty (else no rank is counted)
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from runtime.telemetry.losses import Losses
from runtime.telemetry.records import Rank, Record


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
        wait, *late = map(_ms, (self.wait_s, self.lateness_p50_s, self.lateness_p99_s))
        return f"{self.rank:>4} {wait} {self.last:>6.0%} {' '.join(late)} {self.wasted_s:>8.2f} s"


@dataclass(frozen=True)
class Summary:
    """A table of arrivals.

    Attributes:
        lines: per rank, worst first.
        ways, reasons: how many operations ran so, as rank 0 (or the first present) saw it.
        decision_p50_s, decision_p99_s: from a rank's arrival to its knowing how to go on; in the
            modes that decide on arrival this includes the wait for who is not there yet.
        latency_p50_s, latency_p99_s: of decisions: from the arrival of the last rank that had to be
            there (for a schedule: of those not taken to be late) until the last of them knew.
        completion_s: median time from the last arrival to the last result.
        messages: control messages sent per operation, by all ranks together.
        missing: ranks that sent nothing.
    """

    lines: tuple[Line, ...]
    ways: dict[str, int]
    reasons: dict[str, int]
    decision_p50_s: float
    decision_p99_s: float
    latency_p50_s: float
    latency_p99_s: float
    completion_s: float
    messages: float
    missing: tuple[int, ...] = ()
    losses: Losses = field(default_factory=Losses)

    def __str__(self) -> str:
        titles = ("wait", "last", "late p50", "late p99", "wasted")
        rows = ["rank {:>10} {:>6} {:>10} {:>10} {:>10}".format(*titles)]
        rows += map(str, self.lines)
        sure = max((line.uncertainty_s for line in self.lines), default=math.nan)
        rows += ["", f"clocks are aligned within {sure * 1e3:.3f} ms"]
        for counts, what in ((self.ways, "operations ran"), (self.reasons, "times because")):
            for text, count in sorted(counts.items(), key=lambda item: -item[1]):
                rows.append(f"{count:>6} {what}: {text}")
        if self.messages or self.decision_p99_s > 0:
            rows.append(
                f"decided {self.decision_p50_s * 1e3:.2f} ms after a rank's arrival (p50), "
                f"{self.decision_p99_s * 1e3:.2f} ms (p99); after the last arrival that counts "
                f"{self.latency_p50_s * 1e3:.2f} ms, {self.latency_p99_s * 1e3:.2f} ms"
            )
            rows.append(f"{self.messages:.1f} messages per operation")
        rows.append(f"done {self.completion_s * 1e3:.2f} ms after the last arrival (median)")
        if self.losses.ranks:
            rows += ["", str(self.losses)]
        if self.missing:
            rows.append(f"no word from rank(s) {', '.join(map(str, self.missing))}")
        return "\n".join(rows)

    def as_json(self) -> str:
        """The same as one JSON object."""
        return json.dumps(asdict(self))


def summarize(ranks: Sequence[Rank], size: int) -> Summary:
    """The summary of what ``ranks`` remember; operations that not all of them have are left out."""
    by_operation: defaultdict[int, dict[int, Record]] = defaultdict(dict)
    for rank in ranks:
        for record in rank.records:
            by_operation[record.operation][rank.rank] = record
    whole = [found for found in by_operation.values() if len(found) == len(ranks) > 0]
    lines = _lines([rank.rank for rank in ranks], whole)
    first = [found[min(found)] for found in whole]
    decided = sorted(r.decided_s - r.arrived_s for found in whole for r in found.values())
    latencies = sorted(_latency_s(found) for found in whole)
    completions = [
        max(r.done_s for r in found.values()) - max(r.arrived_s for r in found.values())
        for found in whole
    ]
    return Summary(
        lines=tuple(sorted(lines, key=lambda line: (-line.wasted_s, line.rank))),
        ways=dict(Counter(record.description for record in first)),
        reasons=dict(Counter(record.reason for record in first)),
        decision_p50_s=quantile(decided, 0.5),
        decision_p99_s=quantile(decided, 0.99),
        latency_p50_s=quantile(latencies, 0.5),
        latency_p99_s=quantile(latencies, 0.99),
        completion_s=statistics.median(completions) if completions else math.nan,
        messages=sum(rank.messages for rank in ranks) / max(1, len(by_operation)),
        missing=tuple(sorted(set(range(size)) - {rank.rank for rank in ranks})),
        losses=Losses.of(ranks),
    )


def _lines(ranks: list[int], whole: list[dict[int, Record]]) -> list[Line]:
    waits: defaultdict[int, list[float]] = defaultdict(list)
    lateness: defaultdict[int, list[float]] = defaultdict(list)
    uncertainty: defaultdict[int, float] = defaultdict(float)
    last: Counter[int] = Counter()
    wasted_s: defaultdict[int, float] = defaultdict(float)
    for found in whole:
        order = sorted(found.values(), key=lambda record: record.arrived_s)
        median_s = statistics.median(record.arrived_s for record in order)
        for record in order:
            waits[record.rank].append(order[-1].arrived_s - record.arrived_s)
            lateness[record.rank].append(max(0.0, record.arrived_s - median_s))
            uncertainty[record.rank] = max(uncertainty[record.rank], record.uncertainty_s)
        if len(order) > 1:
            alone_s = order[-1].arrived_s - order[-2].arrived_s
            wasted_s[order[-1].rank] += alone_s * (len(order) - 1)
            last[order[-1].rank] += alone_s > order[-1].uncertainty_s + order[-2].uncertainty_s
    return [
        Line(
            rank=rank,
            operations=len(whole),
            wait_s=statistics.fmean(waits[rank]) if waits[rank] else math.nan,
            last=last[rank] / len(whole) if whole else math.nan,
            lateness_p50_s=quantile(sorted(lateness[rank]), 0.5),
            lateness_p99_s=quantile(sorted(lateness[rank]), 0.99),
            wasted_s=wasted_s[rank],
            uncertainty_s=uncertainty[rank],
        )
        for rank in ranks
    ]


def _latency_s(found: dict[int, Record]) -> float:
    """From the last arrival that a decision needed to the last rank's knowing it."""
    needed = [record for record in found.values() if record.rank not in record.late]
    return max(r.decided_s for r in needed) - max(r.arrived_s for r in needed)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the sorted values do not exceed (or NaN)."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:>7.1f} ms"
