"""What a disturbed training has come to, by what its replicas have told of their steps.

Work is counted in microbatches. A step counts once, when the first replica tells of it: what is
done again after a restart is no work, and a step that waits for a late replica is done already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.elastic.fleet import Failed, Replica, StepTold


@dataclass(frozen=True)
class Span:
    """A stretch of time, by the clock of this machine."""

    begins_s: float
    ends_s: float

    def __contains__(self, at_s: float) -> bool:
        return self.begins_s <= at_s < self.ends_s

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.ends_s - self.begins_s


def first_told(replicas: Iterable[Replica]) -> list[StepTold]:
    """Every step once, as the first replica has told of it, in the order of time."""
    first: dict[int, StepTold] = {}
    for replica in replicas:
        for step in replica.steps:
            if step.number not in first or step.at_s < first[step.number].at_s:
                first[step.number] = step
    return sorted(first.values(), key=lambda step: step.at_s)


def work(steps: Iterable[StepTold], span: Span, worth: Callable[[StepTold], int]) -> int:
    """Microbatches of the steps that were done within a span; ``worth``: of one step."""
    return sum(worth(step) for step in steps if step.at_s in span)


def rate(steps: Iterable[StepTold], span: Span, worth: Callable[[StepTold], int]) -> float:
    """Microbatches per second, from the first step within a span to the last one.

    So whole steps are measured, whenever the span begins. Raises Failed: fewer than two steps.
    """
    inside = [step for step in steps if step.at_s in span]
    if len(inside) < 2:
        raise Failed(f"{len(inside)} step(s) within {span.seconds:g} s: no rate")
    done = sum(worth(step) for step in inside[1:])
    return done / (inside[-1].at_s - inside[0].at_s)


def went_on_s(survivors: Iterable[Sequence[StepTold]], killed_s: float) -> float:
    """Seconds from a death until each survivor has done a step in a view (run, quorum) after it.

    A step that was summed before the death, and ended after it, is none of these. Raises Failed:
    one of them has done none.
    """
    ends_s = []
    for steps in survivors:
        before = max((step.view for step in steps if step.at_s <= killed_s), default=-1)
        later = [step.at_s for step in steps if step.at_s > killed_s and step.view > before]
        if not later:
            raise Failed("a survivor has done no step after a death")
        ends_s.append(later[0])
    return max(ends_s) - killed_s


def require_equal(replicas: Iterable[Replica], *, within_views: bool) -> int:
    """After each step all that have done it have the same parameters; how many steps there were.

    ``within_views``: only in the same view, where steps are done again after a restart. Raises
    Failed.
    """
    hashes: dict[tuple[int, int], set[str]] = defaultdict(set)
    for replica in replicas:
        for step in replica.steps:
            hashes[step.view if within_views else 0, step.number].add(step.hash)
    for (_, number), found in hashes.items():
        if len(found) > 1:
            raise Failed(f"step {number} has ended with parameters {sorted(found)}")
    return len({number for _, number in hashes})


def require_same_end(current: Iterable[Replica]) -> str:
    """The hash with which the last step that all have done has ended on every one of them.

    Raises Failed: they differ, or there is no such step.
    """
    by_replica = [{step.number: step.hash for step in list(each.steps)} for each in current]
    common = set.intersection(*(set(by_step) for by_step in by_replica))
    if not common:
        raise Failed("there is no step that all replicas have done")
    found = {by_step[max(common)] for by_step in by_replica}
    if len(found) > 1:
        raise Failed(f"after step {max(common)} replicas have parameters {sorted(found)}")
    return found.pop()
