"""Judging links, planning and proposing: what rank 0 does with the reports of all ranks.

Two threads work here, never on the same state: while links are watched it belongs to the worker;
from a wish for another schedule until that holds or falls, to the training thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from importlib import import_module

import msgspec

from runtime.pipeline import timing as measure
from runtime.pipeline.adaptation import HEURISTIC, Adaptation, heuristic
from runtime.pipeline.detector import Change, Watched, judge
from runtime.pipeline.load import VerifiedPipeline, load, require_same_shape
from runtime.pipeline.switch import Keys, SwitchCoordinator
from verify.errors import LatecomerError
from verify.pipeline import PipelineSchedule, Situation, encode, timeline

AHEAD = 2
MOST_AHEAD = 64
"""Steps from a proposal to the step it is for; doubled when votes come too late."""


class _Phase(Enum):
    """Who may touch the coordinator's state: in IDLE the worker, else the training thread."""

    IDLE = "links are watched"
    WANTED = "a schedule is to be proposed"
    PROPOSED = "it is being voted on, or waits for its step"


class Replanner:
    """What only the coordinator does.

    Args:
        how: the options.
        keys: of the switch protocol.
        size: number of ranks.
        running: the schedule that runs.
        tell: takes an event: step, kind, text.
    """

    def __init__(
        self,
        how: Adaptation,
        keys: Keys,
        size: int,
        running: Callable[[], VerifiedPipeline],
        tell: Callable[[int, str, str], None],
    ) -> None:
        self._how, self._running, self._tell = how, running, tell
        self._coordinator = SwitchCoordinator(keys, size)
        self._watched: dict[tuple[int, int], Watched] = {}
        self._wanted: tuple[PipelineSchedule, dict[tuple[int, int], float]] | None = None
        self._phase = _Phase.IDLE
        self._looked = 0
        self._ahead = AHEAD
        if how.planner is heuristic:
            import_module(HEURISTIC)  # takes a second: now, not when a link turns slow

    def boundary(self, step: int) -> None:
        """Training thread: decide what is open, propose what is wanted."""
        if self._phase is _Phase.PROPOSED:
            reason = self._coordinator.decide(step)
            if reason:
                self._tell(step, "refused", reason)
                self._ahead = min(2 * self._ahead, MOST_AHEAD)
                self._phase = _Phase.IDLE
        elif self._phase is _Phase.WANTED:
            assert self._wanted is not None
            proposal = self._coordinator.propose(step + self._ahead, encode(self._wanted[0]))
            text = f"proposal {proposal.number}, for step {proposal.first_step}"
            self._tell(step, "proposed", text)
            self._phase = _Phase.PROPOSED

    def switched(self) -> None:
        """Training thread: the proposal holds; links are judged by what it was planned for."""
        assert self._wanted is not None
        self._watched |= {link: Watched(time_s) for link, time_s in self._wanted[1].items()}
        self._phase = _Phase.IDLE

    def look(self, step: int, digest: str, reports: dict[int, measure.Report]) -> None:
        """Worker: one more step. Nothing while a proposal is under way.

        Args:
            step: its number.
            digest: of the schedule that runs; reports on others are of no use.
            reports: of all ranks.
        """
        how = self._how.sensitivity
        self._looked += 1
        if self._looked <= how.settle or self._phase is not _Phase.IDLE:
            return
        if {told.digest for told in reports.values()} != {digest}:
            return
        times = measure.links(reports)
        forward_s = min(v for told in reports.values() for v in told.durations["F"].values())
        changed = False
        for link, found in times.items():
            tolerance_s = how.tolerance_s(forward_s, found.noise_s)
            before = self._watched.get(link, Watched())
            now, change, reason = judge(before, found.total_s, tolerance_s, how.confirm)
            self._watched[link] = now
            if change is not Change.NONE:
                changed = True
                text = f"{link[0]}-{link[1]} {change.value}: {reason}"
                self._tell(step, "link", text)
        if changed:
            self._plan(step, reports, times)

    def _plan(
        self,
        step: int,
        reports: dict[int, measure.Report],
        times: dict[tuple[int, int], measure.LinkTimes],
    ) -> None:
        began_s, running = time.monotonic(), self._running()
        current = running.schedule
        measured = measure.situation(current, reports, times)
        accepted = {link: found.total_s for link, found in times.items()}
        try:
            new = load(self._how.planner(measured, current))
            require_same_shape(new, running)
        except LatecomerError as error:
            self._keep(step, accepted, f"the planner made none that can run: {error}")
            return
        new_us, old_us = _makespan(new.schedule, measured), _makespan(current, measured)
        numbers = (
            f"in {(time.monotonic() - began_s) * 1e3:.1f} ms, predicted step "
            f"{old_us / 1e3:.4g} ms as it is, {new_us / 1e3:.4g} ms planned anew"
        )
        if new_us >= (1 - self._how.gain) * old_us:
            reason = f"another saves less than {self._how.gain:.0%} ({numbers})"
            self._keep(step, accepted, reason)
            return
        self._tell(step, "planned", numbers)
        self._wanted = new.schedule, accepted
        self._phase = _Phase.WANTED

    def _keep(self, step: int, accepted: dict[tuple[int, int], float], reason: str) -> None:
        """Links are judged by what they take now, so that nothing is planned anew for the same."""
        self._watched |= {link: Watched(time_s) for link, time_s in accepted.items()}
        self._tell(step, "kept", reason)


def _makespan(schedule: PipelineSchedule, measured: Situation) -> float:
    """What the verifier says that a step takes, in microseconds; the schedule is proved."""
    bars = timeline(msgspec.structs.replace(schedule, situation=measured, meta={}))
    return float(max(bar.end for bar in bars))
