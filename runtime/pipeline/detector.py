"""Whether a link has become slow or has recovered, from its time per step.

A link is judged against the time for which the present schedule was accepted. One slow step means
nothing: the time must be off by more than the tolerance, in the same direction, in ``confirm``
steps, and a step within half the tolerance in between starts the count again (between half and the
whole, the count stands).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.measured import LinkTimes


@dataclass(frozen=True)
class Sensitivity:
    """When a deviation counts: by more than the largest of three tolerances, and how often."""

    share: float = 0.25  # of the shortest forward of any stage
    noises: float = 6.0  # multiples of the noise of single messages
    least_s: float = 0.5e-3
    confirm: int = 2  # steps that must agree
    settle: int = 1  # first steps that are not looked at (allocation, first kernels)

    def __post_init__(self) -> None:
        for name in ("share", "noises", "least_s"):
            if not getattr(self, name) > 0:
                raise ArgumentError(name, getattr(self, name), "must be positive")
        counts = self.confirm, self.settle
        if self.confirm < 1 or self.settle < 0:
            raise ArgumentError("confirm, settle", counts, "must be at least 1 and 0")

    def tolerance_s(self, forward_s: float, noise_s: float) -> float:
        """By how much a link may differ."""
        return max(self.share * forward_s, self.noises * noise_s, self.least_s)


@dataclass(frozen=True)
class Watched:
    """What is known of one link, with a deviation to be confirmed."""

    accepted_s: float | None = None  # its time for which the present schedule was accepted
    direction: int = 0  # +1 slower, -1 faster
    count: int = 0


class LinkDetector:
    """Judges all links of a pipeline, step after step."""

    def __init__(self, how: Sensitivity) -> None:
        self._how = how
        self._steps = 0
        self._watched: dict[tuple[int, int], Watched] = {}

    def look(self, times: Mapping[tuple[int, int], LinkTimes], forward_s: float) -> list[str]:
        """The links that have changed by this step, and why; ``forward_s``: the shortest one."""
        self._steps += 1
        if self._steps <= self._how.settle:
            return []
        changes = {}
        for link, link_times in times.items():
            tolerance_s = self._how.tolerance_s(forward_s, link_times.noise_s)
            before = self._watched.get(link, Watched())
            self._watched[link], changes[link] = judge(
                before, link_times.total_s, tolerance_s, self._how.confirm
            )
        return [f"{low}-{high} {change}" for (low, high), change in changes.items() if change]

    def accept(self, times_s: Mapping[tuple[int, int], float]) -> None:
        """The schedule that runs is accepted for these times of the links."""
        self._watched |= {link: Watched(time_s) for link, time_s in times_s.items()}


def judge(before: Watched, time_s: float, tolerance_s: float, confirm: int) -> tuple[Watched, str]:
    """One more step of a link, which took ``time_s``: what is known now, and what has changed."""
    if (accepted_s := before.accepted_s) is None:
        return Watched(time_s), ""
    off_s = time_s - accepted_s
    direction = 1 if off_s > 0 else -1
    count = before.count if direction == before.direction else 0
    if abs(off_s) <= tolerance_s / (2 if count else 1):
        return Watched(accepted_s), ""
    if abs(off_s) <= tolerance_s:
        return before, ""
    off = Watched(accepted_s, direction, count + 1)
    if off.count < confirm:
        return off, ""
    return off, (
        f"{'became slow' if direction > 0 else 'recovered'}: {time_s * 1e3:.3g} ms instead of "
        f"{accepted_s * 1e3:.3g} ms (tolerance {tolerance_s * 1e3:.3g} ms), "
        f"{off.count} steps in a row"
    )
