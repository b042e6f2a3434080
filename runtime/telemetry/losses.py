"""What operations over UBT lost: a line per rank, and a line per step over all ranks.

A rank counts the datagrams due on it and those that did not arrive; what all ranks lost in a step
is the sum of both over the ranks. Times, incast and rates are the worst of those put together: the
smallest incast and pacing rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runtime.telemetry.records import Rank, Step

SHOWN = 10
"""Steps in the printed table."""
Samples = list[tuple[dict[str, str], float]]


@dataclass(frozen=True)
class Line:
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
    """The tables; empty where nothing ran over UBT.

    Attributes:
        ranks: a line per rank.
        steps: a line per step, in order.
    """

    ranks: tuple[Line, ...] = ()
    steps: tuple[Line, ...] = ()

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

    def metrics(self) -> Iterator[tuple[str, str, str, Samples]]:
        """(name, meaning, kind, samples) for Prometheus."""
        if not self.ranks:
            return
        one = [({"rank": str(line.number)}, line) for line in self.ranks]
        yield (
            "loss_ratio",
            "Share of the datagrams due on the rank that did not arrive.",
            "gauge",
            [(labels, line.loss) for labels, line in one],
        )
        yield (
            "worst_step_loss_ratio",
            "The same of the step that lost most.",
            "gauge",
            [(labels, line.worst) for labels, line in one],
        )
        yield (
            "stages_total",
            "Receive stages, by how they ended.",
            "counter",
            [
                (labels | {"end": end}, float(count))
                for labels, line in one
                for end, count in (
                    ("complete", line.complete),
                    ("early", line.early),
                    ("timeout", line.timeout),
                )
            ],
        )
        yield (
            "steps_skipped_total",
            "Steps that lost too much to be applied.",
            "counter",
            [(labels, float(line.skipped)) for labels, line in one],
        )
        yield (
            "incast_senders",
            "Smallest number of senders that the rank took at once.",
            "gauge",
            [(labels, float(line.incast)) for labels, line in one],
        )
        yield (
            "pacing_rate_bytes",
            "Lowest pacing rate to a peer, bytes per second.",
            "gauge",
            [(labels, line.rate) for labels, line in one],
        )
        yield (
            "bound_seconds",
            "Hard bound of a receive stage.",
            "gauge",
            [(labels, line.bound_s) for labels, line in one],
        )


def _line(number: int, steps: Sequence[Step]) -> Line:
    due, lost = sum(step.due for step in steps), sum(step.lost for step in steps)
    return Line(
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
