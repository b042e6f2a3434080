"""What a recording tells about its job: who waits, what would help, what an all-reduce gains."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from latecomer.runtime.simulation.report import in_columns
from latecomer.runtime.whatif.gains import (
    REASONS,
    Link,
    Reason,
    ceiling_s,
    exposed_bytes,
    gain_of,
)
from latecomer.runtime.whatif.operations import Operation, Recording
from latecomer.runtime.whatif.remedies import Remedy, remedies
from latecomer.synth.units import format_bandwidth, format_bytes, format_seconds

HEADER = ("buffer and link", "native", "ceiling", "now", "of it", "overlapped", "limit")


@dataclass(frozen=True)
class Case:
    """One size and link that the question is about.

    Attributes:
        nbytes: of the buffer; None: as recorded.
        bucket: bytes that are always left when the last rank is there.
        overlap_s: over which the last rank's gradients become ready; None: all but one bucket have
            been reduced by then. Where sizes are as recorded, only the last operation of a step is
            left.
    """

    link: Link
    nbytes: int | None = None
    bucket: int = 25 * 2**20
    overlap_s: float | None = None

    def size_of(self, operation: Operation) -> int:
        """The buffer's bytes."""
        return operation.nbytes if self.nbytes is None else self.nbytes

    def exposed(self, operation: Operation) -> int:
        """The bytes that are left when the last rank is there."""
        nbytes = self.size_of(operation)
        if not operation.ends_step:
            return 0
        if self.nbytes is None:
            return nbytes
        if self.overlap_s is None:
            return min(self.bucket, nbytes)
        return exposed_bytes(nbytes, self.bucket, self.overlap_s, self.link, operation.size)


@dataclass(frozen=True)
class Row:
    """A case's figures, in seconds a step."""

    case: Case
    native_s: float
    ceiling_s: float
    now_s: float
    overlapped_s: float
    limit_s: float
    reasons: Counter[Reason]  # why operations gain nothing

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "bytes": self.case.nbytes,
            "bandwidth_bytes_per_s": self.case.link.bandwidth,
            "latency_s": self.case.link.latency_s,
            "native_s": self.native_s,
            "ceiling_s": self.ceiling_s,
            "gain_now_s": self.now_s,
            "gain_overlapped_s": self.overlapped_s,
            "gain_limit_s": self.limit_s,
            "nothing_gained_by": dict(self.reasons),
        }


@dataclass(frozen=True)
class Answer:
    """All that is said of a recording."""

    recording: Recording
    remedies: list[Remedy]
    rows: list[Row]

    def as_json(self) -> dict[str, Any]:
        """For machines; seconds a step."""
        recording = self.recording
        rank, share = recording.often_last
        return {
            "source": recording.source,
            "event": recording.event,
            "clocks": recording.clocks,
            "steps": recording.steps,
            "step_is": recording.unit,
            "operations": len(recording.operations),
            "ranks": max(operation.size for operation in recording.operations),
            "step_s": recording.step_s,
            "wait_s": recording.wait_s,
            "often_last": {"rank": rank, "share": share},
            "remedies": [
                {"text": each.text, "saves_at_most_s": each.saves_s, "by_latecomer": False}
                for each in self.remedies
            ],
            "all_reduce": [row.as_json() for row in self.rows],
        }


def answer(recording: Recording, cases: Sequence[Case]) -> Answer:
    """The figures of every case."""
    rows = [_row(recording, case) for case in cases]
    return Answer(recording, remedies(recording), rows)


def _row(recording: Recording, case: Case) -> Row:
    operations = recording.operations
    gains = [gain_of(each, case.size_of(each), case.link) for each in operations]
    overlapped = [gain_of(each, case.exposed(each), case.link) for each in operations]
    ceilings_s = [ceiling_s(each.size, case.size_of(each), case.link) for each in operations]
    steps = recording.steps
    return Row(
        case=case,
        native_s=sum(gain.native_s for gain in gains) / steps,
        ceiling_s=sum(ceilings_s) / steps,
        now_s=sum(gain.now_s for gain in gains) / steps,
        overlapped_s=sum(gain.now_s for gain in overlapped) / steps,
        limit_s=sum(gain.limit_s for gain in gains) / steps,
        reasons=Counter(gain.reason for gain in gains if gain.reason),
    )


def as_text(answer: Answer) -> str:
    """For people: the wait first, then what would help most, then what an all-reduce returns."""
    recording = answer.recording
    operations = recording.operations
    ranks = max(operation.size for operation in operations)
    rank, share = recording.often_last
    last_ranks = len({operation.last_rank for operation in operations})
    gap_s = statistics.median(operation.gap_s for operation in operations)
    unit = recording.unit
    an_unit = "an operation" if unit == "operation" else "a step"
    lines = [
        f"{recording.source}",
        f"{recording.steps} {unit}s of {ranks} ranks, {format_seconds(recording.step_s)} each; "
        f"arrival: {recording.event}; clocks: {recording.clocks}",
        "",
        f"A rank waits {format_seconds(recording.wait_s)} {an_unit} for the last one, "
        f"{_percent(recording.wait_s, recording.step_s)} of it, on average over the ranks.",
        f"The last one comes {format_seconds(gap_s)} after the last but one (median). "
        f"Of {last_ranks} that are last at some time, rank {rank} is in {share:.0%} "
        f"of {len(operations)}.",
        "",
    ]
    lines += [_remedy(each, recording.step_s, an_unit) for each in answer.remedies]
    if not answer.remedies:
        lines.append(f"Who is late costs less than a hundredth of {an_unit}.")
    lines += ["", *_table(answer, an_unit)]
    for reason, count in answer.rows[-1].reasons.most_common():
        where = f"Nothing in {count} of {len(operations)} at {_case(answer.rows[-1].case)}"
        lines.append(f"{where}: {REASONS[reason]}.")
    return "\n".join(lines)


def _remedy(remedy: Remedy, step_s: float, an_unit: str) -> str:
    saves = f"{format_seconds(remedy.saves_s)} {an_unit}, {_percent(remedy.saves_s, step_s)} of it"
    return f"At most {saves}: {remedy.text} (not by latecomer)."


def _table(answer: Answer, an_unit: str) -> list[str]:
    step_s = answer.recording.step_s
    rows: list[tuple[str, ...]] = [HEADER]
    for row in answer.rows:
        cells = [
            _case(row.case),
            format_seconds(row.native_s),
            format_seconds(row.ceiling_s),
            format_seconds(row.now_s),
            _percent(row.now_s, step_s),
            format_seconds(row.overlapped_s),
            format_seconds(row.limit_s),
        ]
        rows.append(tuple(cells))
    return [f"What an all-reduce of these ranks could save of {an_unit}:", "", *in_columns(rows)]


def _case(case: Case) -> str:
    size = "as recorded" if case.nbytes is None else format_bytes(case.nbytes)
    return f"{size} at {format_bandwidth(case.link.bandwidth)}"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}"
