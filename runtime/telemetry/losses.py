"""What operations over UBT lost: a line per rank, and a line per step over all ranks.

A rank counts the datagrams due on it and those that did not arrive; what all ranks lost in a step
is the sum of both over the ranks. Times, incast and rates are the worst of those put together: the
smallest incast and pacing rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.telemetry.records import Rank, Step

SHOWN = 10
"""Steps in the printed table."""


@dataclass(frozen=True)
class LossLine:
    """Some steps put together: those of one rank, or one step of all ranks.

    Attributes:
        number: the rank, or the step.
        loss: share of the datagrams due that did not arrive.
        worst: the largest loss of one of the steps put together.
        complete, early, timeout: stages that ended so.
        incast: smallest number of senders taken at once.
        rate: lowest pacing rate, bytes per second.
        bound_s: largest t_B.
        skipped: how many were not applied.
    """

    number: int
    steps: int
    due: int
    lost: int
    loss: float
    worst: float
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
        by_step: defaultdict[int, list[Step]] = defaultdict(list)
        for rank in ranks:
            for step in rank.steps:
                by_step[step.step].append(step)
        lines = (_line(rank.rank, rank.steps) for rank in ranks if rank.steps)
        return cls(
            tuple(sorted(lines, key=lambda line: line.number)),
            tuple(_line(number, steps) for number, steps in sorted(by_step.items())),
        )

    def __str__(self) -> str:
        titles = "loss", "worst", "complete/early/time-out", "incast", "MB/s", "t_B", "skipped"
        head = "{:>8} {:>8} {:>24} {:>7} {:>7} {:>10} {:>8}".format(*titles)
        rows = [f"rank {head}", *map(str, self.ranks)]
        worst = sorted((s for s in self.steps if s.lost), key=lambda s: (-s.loss, s.number))[:SHOWN]
        if worst:
            rows += ["", f"step {head}", *map(str, worst)]
        lossy = sum(step.lost > 0 for step in self.steps)
        rows.append(f"{lossy} of {len(self.steps)} steps lost something")
        return "\n".join(rows)


def _line(number: int, steps: Sequence[Step]) -> LossLine:
    due, lost = sum(step.due for step in steps), sum(step.lost for step in steps)
    return LossLine(
        number=number,
        steps=len(steps),
        due=due,
        lost=lost,
        loss=lost / max(1, due),
        worst=max(step.lost / max(1, step.due) for step in steps),
        complete=sum(step.complete for step in steps),
        early=sum(step.early for step in steps),
        timeout=sum(step.timeout for step in steps),
        incast=min(step.incast for step in steps),
        rate=min(step.rate for step in steps),
        bound_s=max(step.bound_s for step in steps),
        skipped=sum(step.skipped for step in steps),
    )
