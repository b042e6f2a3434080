"""What was recorded of a job: when its ranks came to each operation, and what that was."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from latecomer.runtime.simulation.arrivals import Trace

ALL_REDUCE = "all-reduce"
ALL_REDUCES = re.compile(r"^_?all_?reduce(?!.*sparse)", re.IGNORECASE)
"""What libraries and recorders call them."""
BYTES_OF = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Of an element, by torch's name of its type."""


def kind_of(name: str) -> str:
    """:data:`ALL_REDUCE`, or the name that a collective has where it was recorded."""
    return ALL_REDUCE if ALL_REDUCES.match(name) else name


@dataclass(frozen=True)
class Operation:
    """One collective, or the reduction at the end of a step.

    Attributes:
        arrivals_s: by rank, after the first of them.
        kind: :data:`ALL_REDUCE`, or what it was instead.
        nbytes: of the buffer; 0 where that was not recorded.
        took_s: from the last arrival to the last end; 0 where that was not recorded.
        ranks: its ranks in the job, in the order of ``arrivals_s``; (): they are all.
        first_s: when the first of them came, from some moment on.
        ends_step: whether it is the last of its step, behind which no compute hides it.
    """

    arrivals_s: tuple[float, ...]
    kind: str = ALL_REDUCE
    nbytes: int = 0
    took_s: float = 0.0
    ranks: tuple[int, ...] = ()
    first_s: float = 0.0
    ends_step: bool = True

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return len(self.arrivals_s)

    @property
    def last_s(self) -> float:
        """From the first arrival to the last."""
        return max(self.arrivals_s)

    @property
    def ended_s(self) -> float:
        """When the last rank had the result, from the same moment on as ``first_s``."""
        return self.first_s + self.last_s + self.took_s

    @property
    def gap_s(self) -> float:
        """From the last arrival but one to the last."""
        *_, before, last = sorted(self.arrivals_s)
        return last - before

    @property
    def members(self) -> tuple[int, ...]:
        """Its ranks in the job."""
        return self.ranks or tuple(range(self.size))

    @property
    def last_rank(self) -> int:
        """The rank, in the job, that comes last."""
        place = max(range(self.size), key=self.arrivals_s.__getitem__)
        return self.members[place]


@dataclass(frozen=True)
class Recording:
    """The operations of a job that were recorded.

    Attributes:
        source: where they are from.
        event: what was taken for an arrival.
        steps: of training, in which they were.
        lasted_s: these steps together.
        clocks: what is known of the ranks' clocks.
        unit: what a step is; "operation" where steps were not recorded.
    """

    source: str
    event: str
    operations: tuple[Operation, ...]
    steps: int
    lasted_s: float
    clocks: str = ""
    unit: str = "step"

    @property
    def step_s(self) -> float:
        """The average step."""
        return self.lasted_s / self.steps

    @property
    def wait_s(self) -> float:
        """How long a rank has operations that wait for another one, in a step, on average.

        Where several wait at a time, that time counts once.
        """
        intervals: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for operation in self.operations:
            last_s = operation.first_s + operation.last_s
            for rank, arrived_s in zip(operation.members, operation.arrivals_s, strict=True):
                intervals[rank].append((operation.first_s + arrived_s, last_s))
        waits_s = [covered_s(of_rank) for of_rank in intervals.values()]
        return statistics.fmean(waits_s) / self.steps

    @property
    def often_last(self) -> tuple[int, float]:
        """Who is last most often, and in which share of the operations."""
        last = Counter(operation.last_rank for operation in self.operations)
        rank, count = last.most_common(1)[0]
        return rank, count / len(self.operations)


def of_arrivals(trace: Trace) -> Recording:
    """A file of arrivals: a reduction at the end of each step, of which it has no size."""
    operations = []
    began_s = 0.0
    for step in trace.steps:
        operations.append(
            Operation(
                arrivals_s=step.offsets_s,
                took_s=trace.reduce_own_s,
                first_s=began_s + step.first_s,
            )
        )
        began_s += step.duration_s
    return Recording(
        source=f"{trace.source} ({trace.license})",
        event=trace.event,
        operations=tuple(operations),
        steps=len(operations),
        lasted_s=began_s,
        clocks="as the file has them",
    )


def covered_s(intervals: Sequence[tuple[float, float]]) -> float:
    """How long at least one of the intervals lasts."""
    covered = 0.0
    end_s = -math.inf
    for begins_s, ends_s in sorted(intervals):
        covered += max(0.0, ends_s - max(begins_s, end_s))
        end_s = max(end_s, ends_s)
    return covered
