"""Tells the program's own callback about each step, in plain numbers.

A step ends where the program says so (``watched.step()``), or else with the last bucket of a DDP
model's backward pass. Where neither is known, as under the process group backend, what has been
done since the last look counts as one.

The callback has a thread of its own, so that one that is slow, say over a network, keeps neither
the training nor the files from going on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from latecomer.runtime.host import host
from latecomer.runtime.telemetry.recorder import OperationRecorder
from latecomer.runtime.telemetry.records import NATIVE, Record

OnStep = Callable[[dict[str, float]], object]

KEPT = 100_000  # operations that wait for the end of their step


class Steps:
    """Puts the operations of one recorder together to steps, and calls ``on_step`` with each."""

    def __init__(self, recorder: OperationRecorder, on_step: OnStep) -> None:
        self._recorder = recorder
        self._on_step = on_step
        self._feed = recorder.feed()
        self._records: dict[int, Record] = {}  # by operation: done, but their step is not over
        self._seen_before: frozenset[int] = frozenset()  # of these, since an earlier look
        self._first = 0  # operation of the step that is not over
        self._number = 0

    def look(self, is_last: bool) -> None:
        """Call ``on_step`` for each step that is over; the first of its exceptions is raised."""
        events, _ = self._recorder.news(self._feed)
        for event in events:
            if isinstance(event, Record):
                self._records[event.operation] = event

        errors = []
        for step in self._steps_over(is_last):
            try:
                self._on_step(step)
            except Exception as error:
                errors.append(error)
        self._seen_before = frozenset(self._records)

        if is_last:
            self._recorder.unfeed(self._feed)
        if errors:
            raise errors[0]

    def _steps_over(self, is_last: bool) -> Iterable[dict[str, float]]:
        ends = self._recorder.step_ends
        while ends:
            end = ends[0]
            operations = range(self._first, end)
            present = [number for number in operations if number in self._records]
            is_complete = len(present) == len(operations)
            if not (is_complete or is_last or len(self._records) > KEPT):
                return
            ends.popleft()
            self._first = end
            if present:
                yield self._step(present)

        # An operation is held back for one look: what hands buckets over may be about to say so.
        if not self._recorder.knows_steps:
            present = [number for number in sorted(self._records) if number in self._seen_before]
            if is_last:
                present = sorted(self._records)
            if present:
                yield self._step(present)

    def _step(self, operations: Iterable[int]) -> dict[str, float]:
        """The step of these operations, which are not kept any longer."""
        records = [self._records.pop(number) for number in operations]
        number = self._number
        self._number += 1
        return {"step": number, **described(records, self._unix_minus_clock_s())}

    def _unix_minus_clock_s(self) -> float:
        offset_s = self._recorder.alignment().offset_s
        return host.unix_time() - (host.monotonic() + offset_s)


def described(records: list[Record], unix_minus_clock_s: float) -> dict[str, float]:
    """What is told about a step with these operations of one rank; see docs/reference/watch.md."""
    began_s = min(record.arrived_s for record in records)
    done_s = max(record.done_s for record in records)
    decided_s = [record.decided_s - record.arrived_s for record in records]
    native = sum(record.way == NATIVE for record in records)

    times_late = Counter(rank for record in records for rank in record.late)
    latest_rank = min(times_late, key=lambda rank: (-times_late[rank], rank), default=-1)

    return {
        "unix_s": done_s + unix_minus_clock_s,
        "operations": len(records),
        "bytes": sum(record.bytes for record in records),
        "all_reduce_s": done_s - began_s,
        "decision_s": sum(decided_s) / len(decided_s),
        "native": native,
        "without_late": sum(bool(record.late) for record in records),
        "late_rank": latest_rank,
        "uncertainty_s": max(record.uncertainty_s for record in records),
    }
