"""What was saved by schedules, against what ran natively in the same job.

An operation by a schedule took c seconds from the last arrival to the last result, whether it began
without a late rank or waited for all. Natively it would have taken N: nothing can be done before
the last rank is there, whoever that is. N is what operations of the same size took that ran
natively while the job was watched. In a mode some always do: to find out which way is the fastest,
and a few to compare (``latecomer.runtime.policy.on_time.is_to_compare``). With
``attachment.mode = "off"`` as many do as one likes. So

    saved = N - c, summed up; N is their median, and what lies between their quartiles may be true

Where fewer than :data:`ENOUGH` of a size ran natively, nothing is said of that size. The first
operation of a watch is no measure of N: it may still be connecting. The limit of the comparison:
operations that are in flight together share links, and each is counted by itself.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from latecomer.runtime.telemetry.records import NATIVE, Record

ENOUGH = 3  # native operations of a size: of two, nobody knows which one was unusual

Operation = Mapping[int, Record]
"""By rank, what each remembers of one operation."""


@dataclass(frozen=True)
class Gain:
    """Seconds saved, all operations together; negative where they were lost."""

    compared: int = 0  # operations by a schedule, of sizes that can be compared
    without_late: int = 0  # of these, began without a late rank
    not_compared: int = 0  # by a schedule, of sizes of which too few ran natively
    saved_s: float = 0.0
    least_s: float = 0.0  # by the first quartile of the native times
    most_s: float = 0.0  # by the third
    watched_s: float = 0.0  # from the first arrival to the last result
    usual_reason: str = ""  # why most operations ran natively, where all did

    def __str__(self) -> str:
        lines = []
        if self.compared:
            what = "saved" if self.saved_s >= 0 else "lost"
            bounds = sorted((abs(self.least_s), abs(self.most_s)))
            span = f"{bounds[0]:.2f} to {bounds[1]:.2f}"
            if self.least_s < 0 < self.most_s:
                span = f"between {-self.least_s:.2f} lost and {self.most_s:.2f} saved"
            lines.append(
                f"{what} {abs(self.saved_s):.2f} s ({span}) of {self.watched_s:.1f} s: "
                f"{self.compared} operations ran by a schedule, {self.without_late} of them "
                "without waiting for a late rank, compared with those of their size that ran "
                "natively"
            )
        if self.not_compared:
            lines.append(
                f"{self.not_compared} operations by a schedule are not compared: of their size "
                f"fewer than {ENOUGH} ran natively"
            )
        if not lines and self.usual_reason:
            lines.append(
                f"nothing was saved: all ran natively, mostly because: {self.usual_reason}"
            )
        return "\n".join(lines)


def gain_of(operations: Sequence[Operation]) -> Gain:
    """The gain over operations of which every rank has a record."""
    if not operations:
        return Gain()

    # by collective and bytes
    natively_s: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    by_schedule_s: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    without_late: Counter[tuple[str, int]] = Counter()
    reasons: Counter[str] = Counter()
    first_number = min(record.operation for records in operations for record in records.values())
    for records in operations:
        first = records[min(records)]
        took_s = completion_s(records)
        if math.isnan(took_s):
            continue  # it has failed
        size = first.collective, first.bytes
        if first.way == NATIVE:
            reasons[first.reason] += 1
            if first.operation != first_number:
                natively_s[size].append(took_s)
        else:
            by_schedule_s[size].append(took_s)
            without_late[size] += bool(first.late)

    compared = 0
    compared_without_late = 0
    not_compared = 0
    saved_s = 0.0
    least_s = 0.0
    most_s = 0.0
    for size, times_s in by_schedule_s.items():
        native_times_s = natively_s[size]
        if len(native_times_s) < ENOUGH:
            not_compared += len(times_s)
            continue
        low_s, median_s, high_s = statistics.quantiles(native_times_s, n=4, method="inclusive")
        compared += len(times_s)
        compared_without_late += without_late[size]
        saved_s += len(times_s) * median_s - sum(times_s)
        least_s += len(times_s) * low_s - sum(times_s)
        most_s += len(times_s) * high_s - sum(times_s)

    all_natively = not by_schedule_s and bool(reasons)
    return Gain(
        compared=compared,
        without_late=compared_without_late,
        not_compared=not_compared,
        saved_s=saved_s,
        least_s=least_s,
        most_s=most_s,
        watched_s=_watched_s(operations),
        usual_reason=reasons.most_common(1)[0][0] if all_natively else "",
    )


def completion_s(records: Operation) -> float:
    """From the last arrival to the last result."""
    last_done_s = max(record.done_s for record in records.values())
    last_arrived_s = max(record.arrived_s for record in records.values())
    return last_done_s - last_arrived_s


def _watched_s(operations: Sequence[Operation]) -> float:
    everything = [record for records in operations for record in records.values()]
    done_s = [record.done_s for record in everything if not math.isnan(record.done_s)]
    first_s = min(record.arrived_s for record in everything)
    return max(done_s, default=first_s) - first_s
