"""What operations over UBT lost: a line per rank, and a line per step over all ranks.

A rank counts the datagrams due on it and those that did not arrive; what all ranks lost in a step
is the sum of both over the ranks. Times, incast and rates are the worst of those put together: the
smallest incast and pacing rate.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.telemetry.records import Rank, Step

SHOWN = 10
"""Steps in the printed table."""
SUMMED = "due", "lost", "complete", "early", "timeout", "skipped"


@dataclass(frozen=True)
class LossLine:
    """Some steps put together: those of one rank, or one step of all ranks.

    ``number`` is the rank, or the step; ``loss`` the share of what was due that did not arrive,
    ``worst`` that of the step that lost most; else see :class:`runtime.telemetry.records.Step`.
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
        by_rank = {rank.rank: rank.steps for rank in ranks if rank.steps}
        by_step: defaultdict[int, list[Step]] = defaultdict(list)
        for step in itertools.chain.from_iterable(by_rank.values()):
            by_step[step.step].append(step)
        return cls(_lines(by_rank), _lines(by_step))

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


def _lines(steps: Mapping[int, Sequence[Step]]) -> tuple[LossLine, ...]:
    return tuple(_line(number, steps[number]) for number in sorted(steps))


def _line(number: int, steps: Sequence[Step]) -> LossLine:
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
