"""What a recording tells about its job: who waits, what would help, what an all-reduce gains."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        f"{recording.steps} {unit}s of {ranks} ranks, {_time(recording.step_s)} each; "
        f"arrival: {recording.event}; clocks: {recording.clocks}",
        "",
        f"A rank waits {_time(recording.wait_s)} {an_unit} for the last one, "
        f"{_percent(recording.wait_s, recording.step_s)} of it, on average over the ranks.",
        f"The last one comes {_time(gap_s)} after the last but one (median). Of {last_ranks} "
        f"that are last at some time, rank {rank} is in {share:.0%} of {len(operations)}.",
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
    whose = "latecomer does it" if remedy.by_latecomer else "not by latecomer"
    saves = f"{_time(remedy.saves_s)} {an_unit}, {_percent(remedy.saves_s, step_s)} of it"
    return f"At most {saves}: {remedy.text} ({whose})."


def _table(answer: Answer, an_unit: str) -> list[str]:
    step_s = answer.recording.step_s
    lines = [
        f"What an all-reduce of these ranks could save of {an_unit}:",
        "",
        "buffer and link             native    ceiling  |  now               overlapped  limit",
    ]
    for row in answer.rows:
        lines.append(
            f"{_case(row.case):26}  {_time(row.native_s):>8}  {_time(row.ceiling_s):>8}  |  "
            f"{_time(row.now_s):>8} {_percent(row.now_s, step_s):>7}  "
            f"{_time(row.overlapped_s):>10}  {_time(row.limit_s):>8}"
        )
    return lines


def _case(case: Case) -> str:
    size = "as recorded" if case.nbytes is None else f"{case.nbytes / 2**20:g} MiB"
    return f"{size} at {case.link.bandwidth * 8 / 1e9:g} Gbit/s"


def _time(seconds: float) -> str:
    if seconds == 0:
        return "0"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.1%}"
