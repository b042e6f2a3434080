"""What ranks remember, summed up: who keeps whom waiting, how operations ran, what was lost.

Of operations over UBT also what they lost: a line per rank, and a line per step over all ranks. A
rank counts the datagrams due on it and those that did not arrive; lines add both up. Times, incast
and rates are the worst of those put together: the smallest incast and pacing rate.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from latecomer.runtime.telemetry.gain import Gain, completion_s, gain_of
from latecomer.runtime.telemetry.lateness import Line, lines_of, quantile
from latecomer.runtime.telemetry.native.by_collective import CollectiveRow, as_table, rows_of
from latecomer.runtime.telemetry.records import Rank, Record, UbtStep

SHOWN = 10  # steps in the printed table of losses
SUMMED = "due", "lost", "complete", "early", "timeout", "skipped"


@dataclass(frozen=True)
class LossLine:
    """Steps over UBT put together, of one rank or of all ranks: see :class:`UbtStep`."""

    number: int  # the rank, or the step
    steps: int
    due: int
    lost: int
    loss: float  # the share of what was due that did not arrive
    worst: float  # the same of the step that lost most
    complete: int
    early: int
    timeout: int
    incast: int
    rate: float
    bound_s: float
    skipped: int

    def __str__(self) -> str:
        ends = f"{self.complete}/{self.early}/{self.timeout}"
        return (
            f"{self.number:>4} {self.loss:>8.3%} {self.worst:>8.3%} {ends:>24} {self.incast:>7} "
            f"{self.rate / 1e6:>7.0f} {self.bound_s * 1e3:>7.1f} ms {self.skipped:>8}"
        )


@dataclass(frozen=True)
class Losses:
    """A line per rank, and a line per step, in order; empty where nothing ran over UBT."""

    ranks: tuple[LossLine, ...] = ()
    steps: tuple[LossLine, ...] = ()

    @classmethod
    def of(cls, ranks: Sequence[Rank]) -> Losses:
        """Put together what the ranks remember."""
        steps_by_rank = {rank.rank: list(rank.steps) for rank in ranks if rank.steps}

        steps_by_number: dict[int, list[UbtStep]] = defaultdict(list)
        for steps in steps_by_rank.values():
            for step in steps:
                steps_by_number[step.step].append(step)

        return cls(ranks=_loss_lines(steps_by_rank), steps=_loss_lines(steps_by_number))

    def __str__(self) -> str:
        head = (
            f"{'loss':>8} {'worst':>8} {'complete/early/time-out':>24} {'incast':>7} {'MB/s':>7} "
            f"{'t_B':>10} {'skipped':>8}"
        )
        rows = [f"rank {head}", *map(str, self.ranks)]

        lossy_steps = [step for step in self.steps if step.lost > 0]
        if lossy_steps:
            lossy_steps.sort(key=lambda step: (-step.loss, step.number))
            rows += ["", f"step {head}", *map(str, lossy_steps[:SHOWN])]

        rows.append(f"{len(lossy_steps)} of {len(self.steps)} steps lost something")
        return "\n".join(rows)


@dataclass(frozen=True)
class Summary:
    """A table of arrivals.

    A decision's time is from a rank's arrival to its knowing how to go on; in the modes that decide
    on arrival it includes the wait for who is not there yet. Its latency: from the arrival of the
    last rank that had to be there (for a schedule: of those not taken to be late) until they knew.
    """

    lines: tuple[Line, ...]  # per rank, worst first
    ways: dict[str, int]  # how many operations ran so, as rank 0 (or the first present) saw it
    reasons: dict[str, int]
    decision_p50_s: float
    decision_p99_s: float
    latency_p50_s: float
    latency_p99_s: float
    completion_s: float  # median time from the last arrival to the last result
    messages: float  # sent for control per operation, by all ranks together
    missing: tuple[int, ...] = ()  # ranks that sent nothing
    losses: Losses = field(default_factory=Losses)
    gain: Gain = field(default_factory=Gain)
    collectives: tuple[CollectiveRow, ...] = ()  # of torch's own groups, what wastes most first
    disagreements: tuple[str, ...] = ()  # where their ranks entered different collectives

    def __str__(self) -> str:
        if not self.lines and not self.missing:
            return "nothing was watched"

        head = f"rank {'wait':>10} {'last':>6} {'late p50':>10} {'late p99':>10} {'wasted':>10}"
        rows = [head]
        rows += map(str, self.lines)

        uncertainty_s = max((line.uncertainty_s for line in self.lines), default=math.nan)
        rows += ["", f"clocks are aligned within {uncertainty_s * 1e3:.3f} ms"]

        rows += _count_rows(self.ways, "operations ran")
        rows += _count_rows(self.reasons, "times because")
        if self.messages or self.decision_p99_s > 0:
            rows.append(
                f"decided {self.decision_p50_s * 1e3:.2f} ms after a rank's arrival (p50), "
                f"{self.decision_p99_s * 1e3:.2f} ms (p99); after the last arrival that counts "
                f"{self.latency_p50_s * 1e3:.2f} ms, {self.latency_p99_s * 1e3:.2f} ms"
            )
            rows.append(f"{self.messages:.1f} messages per operation")

        if not math.isnan(self.completion_s):
            rows.append(f"done {self.completion_s * 1e3:.2f} ms after the last arrival (median)")
        rows += str(self.gain).splitlines()
        if self.losses.ranks:
            rows += ["", str(self.losses)]
        if self.collectives:
            rows += ["", as_table(self.collectives)]
        rows += self.disagreements
        if self.missing:
            rows.append(f"nothing was received from rank(s) {', '.join(map(str, self.missing))}")
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

    # by rank, the records of each operation that all ranks have
    operations = [records for records in by_operation.values() if len(records) == len(ranks) > 0]
    lines = lines_of([rank.rank for rank in ranks], operations)

    ways: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    decisions_s: list[float] = []
    latencies_s: list[float] = []
    completions_s: list[float] = []
    for records in operations:
        lowest_rank = min(records)
        ways[records[lowest_rank].description] += 1
        reasons[records[lowest_rank].reason] += 1
        decisions_s += [record.decided_s - record.arrived_s for record in records.values()]
        latencies_s.append(_latency_s(records))
        completions_s.append(completion_s(records))
    completions_s = [each for each in completions_s if not math.isnan(each)]
    decisions_s.sort()
    latencies_s.sort()

    return Summary(
        lines=tuple(lines),
        ways=dict(ways),
        reasons=dict(reasons),
        decision_p50_s=quantile(decisions_s, 0.5),
        decision_p99_s=quantile(decisions_s, 0.99),
        latency_p50_s=quantile(latencies_s, 0.5),
        latency_p99_s=quantile(latencies_s, 0.99),
        completion_s=statistics.median(completions_s) if completions_s else math.nan,
        messages=sum(rank.messages for rank in ranks) / max(1, len(by_operation)),
        missing=tuple(sorted(set(range(size)) - {rank.rank for rank in ranks})),
        losses=Losses.of(ranks),
        gain=Gain() if any(rank.groups for rank in ranks) else gain_of(operations),
        collectives=rows_of(ranks),
        disagreements=tuple(sorted({text for rank in ranks for text in rank.disagreements})),
    )


def _latency_s(records: dict[int, Record]) -> float:
    """From the last arrival that a decision needed to the last rank's knowing it."""
    needed = [record for record in records.values() if record.rank not in record.late]
    last_decided_s = max(record.decided_s for record in needed)
    last_arrived_s = max(record.arrived_s for record in needed)
    return last_decided_s - last_arrived_s


def _count_rows(counts: dict[str, int], meaning: str) -> list[str]:
    """A row per text, the most frequent first."""
    most_frequent_first = sorted(counts.items(), key=lambda item: -item[1])
    return [f"{count:>6} {meaning}: {text}" for text, count in most_frequent_first]


def _loss_lines(steps_by_number: Mapping[int, Sequence[UbtStep]]) -> tuple[LossLine, ...]:
    """A line for each rank's steps, or for all ranks' steps of each number; in order."""
    numbers = sorted(steps_by_number)
    return tuple(_loss_line(number, steps_by_number[number]) for number in numbers)


def _loss_line(number: int, steps: Sequence[UbtStep]) -> LossLine:
    sums = {name: sum(getattr(step, name) for step in steps) for name in SUMMED}
    return LossLine(
        number=number,
        steps=len(steps),
        loss=sums["lost"] / max(1, sums["due"]),
        worst=max(step.lost / max(1, step.due) for step in steps),
        incast=min(step.incast for step in steps),
        rate=min(step.rate for step in steps),
        bound_s=max(step.bound_s for step in steps),
        **sums,
    )
