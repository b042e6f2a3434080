"""One rank's part of the adaptation: measure, judge, plan, and change over together.

After every step a worker thread on each rank sends this rank's report of it to rank 0.
There the worker has the links judged (``detector``) and a schedule planned for those that changed.
Between steps the training thread proposes it, and all ranks change over (``switch``); the worker of
each proves what is proposed. A report that is lost costs a look at the links.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module

import msgspec

from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import SimpleQueue, host
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.pipeline.detector import LinkDetector, Sensitivity
from latecomer.runtime.pipeline.load import VerifiedPipeline, load, require_same_shape
from latecomer.runtime.pipeline.switch import COORDINATOR, Proposal, Switch
from latecomer.verify.errors import ArgumentError, LatecomerError
from latecomer.verify.pipeline import Instance, PipelineSchedule, decode, encode
from latecomer.verify.pipeline.measured import (
    REPORT,
    StepRecord,
    StepReport,
    links,
    measured_instance,
    predicted,
)

CHANNEL = "reports"
KEPT = 4  # steps of which not all ranks have reported are forgotten when so many are newer
AHEAD = 2
"""Steps from a proposal to its first. No rank is a whole step ahead of another, so all see it in
time; where votes come too late nevertheless, the next one is for twice as many steps ahead."""
MOST_AHEAD = 64
POLL_S = 0.002  # between two looks for a decision
END_S = 5.0  # how long closing waits for the worker

logger = logging.getLogger("latecomer")
Planner = Callable[[Instance, PipelineSchedule], PipelineSchedule]
"""(what was measured, in microseconds; the schedule that runs) -> a schedule of the same shape."""


def heuristic(measured: Instance, schedule: PipelineSchedule) -> PipelineSchedule:
    """The planner unless another is given: the best of the quick methods of ``synth``."""
    from latecomer.synth.pipeline.plan import plan
    from latecomer.synth.pipeline.problem import make

    rank_of = [schedule.rank_of[stage] for stage in range(schedule.stages)]
    return plan(make(schedule.microbatches, measured, rank_of), "heuristic").schedule


@dataclass(frozen=True)
class Adaptation:
    """That a pipeline adapts, and how; the same on all ranks. ArgumentError for a senseless gain.

    Examples:
        >>> from latecomer.runtime.pipeline import Adaptation, Sensitivity
        >>> reluctant = Adaptation(sensitivity=Sensitivity(confirm=4), gain=0.1)
    """

    planner: Planner = heuristic  # makes schedules, on rank 0 only
    sensitivity: Sensitivity = field(default_factory=Sensitivity)  # when a link counts as changed
    gain: float = 0.03  # the least share of the makespan that a new schedule must save

    def __post_init__(self) -> None:
        if not 0 <= self.gain < 1:
            raise ArgumentError("gain", self.gain, "must be at least 0 and less than 1")


def replan(
    how: Adaptation, running: VerifiedPipeline, measured: Instance
) -> tuple[PipelineSchedule | None, str]:
    """A schedule that pays in the instance that was measured, if there is one; and the reason."""
    began_s = host.monotonic()
    try:
        new = load(how.planner(measured, running.schedule))
        require_same_shape(new, running)
    except LatecomerError as error:
        return None, f"the planner made none that can run: {error}"
    new_us = float(max(bar.end for bar in predicted(new.schedule, measured)))
    old_us = float(max(bar.end for bar in predicted(running.schedule, measured)))
    took_ms = (host.monotonic() - began_s) * 1e3
    numbers = (
        f"in {took_ms:.1f} ms, predicted step {old_us / 1e3:.4g} ms as it is, "
        f"{new_us / 1e3:.4g} ms planned anew"
    )
    if new_us >= (1 - how.gain) * old_us:
        return None, f"another saves less than {how.gain:.0%} ({numbers})"
    return new.schedule, numbers


@dataclass(frozen=True)
class Event:
    """What was noticed after, or done before, a step, and why; ``at_s`` is ``time.monotonic()``.

    Kinds: ``link``, ``kept``, ``planned``, ``proposed``, ``refused``, ``switched``.
    """

    step: int
    kind: str
    text: str
    at_s: float


class AdaptationAgent:
    """See the module; the watchdog looks after its wait for a decision."""

    def __init__(
        self,
        how: Adaptation,
        ranks: StoreExchange,
        channel: ControlChannel,
        running: VerifiedPipeline,
        watchdog: Watchdog,
    ) -> None:
        self.events: list[Event] = []
        self.moved_s = host.monotonic()
        self._how = how
        self._ranks = ranks
        self._channel = channel
        self._watchdog = watchdog
        self._wait: tuple[WaitFor, float] | None = None
        self._switch = Switch(ranks)
        self._running = self._proved = running  # proved: what was proposed last
        # from here on rank 0 only; the worker's while nothing is wanted, else the training thread's
        self._detector = LinkDetector(how.sensitivity)
        self._reports: dict[int, dict[int, StepReport]] = {}  # step -> rank -> report
        self._wanted: tuple[PipelineSchedule, dict[tuple[int, int], float]] | None = None
        """The schedule to change to, and the link times it was planned for."""
        self._ahead = AHEAD
        self._proposed = False
        self._jobs: SimpleQueue[Callable[[], None] | None] = host.SimpleQueue()
        if ranks.rank == COORDINATOR:
            if how.planner is heuristic:  # takes a second: now, not when a link turns slow
                import_module("latecomer.synth.pipeline.plan")
            channel.listen(CHANNEL, self._queue_report)
        watchdog.add(self)
        self._thread = host.Thread(target=self._work, name="latecomer-adapt", daemon=True)
        self._thread.start()

    def before(self, step: int) -> VerifiedPipeline | None:
        """Before a step begins, on the training thread: the schedule to change to, if any."""
        if self._wanted is not None:
            self._coordinate(self._wanted[0], step)
        if proposal := self._switch.notice(step):
            self._jobs.put(partial(self._prove, proposal))
        changed = self._switch.change(step, self._pause)
        self._wait = None
        if changed is None:
            return None
        self._running = self._proved
        self._note(step, "switched", f"all ranks run {self._running.name} from step {step} on")
        if self._wanted is not None:  # links are judged by what it was planned for
            self._detector.accept(self._wanted[1])
            self._wanted = None
        return self._running

    def after(self, record: StepRecord) -> None:
        """A step is over."""

        def send() -> None:
            report = msgspec.msgpack.encode(record.report())
            self._channel.send(COORDINATOR, CHANNEL, report)

        self._jobs.put(send)

    def close(self) -> None:
        """End the worker."""
        self._jobs.put(None)
        self._thread.join(timeout=END_S)

    def waiting(self) -> tuple[WaitFor, float] | None:
        """The decision that the training thread waits for, and since when."""
        return self._wait

    def _pause(self, proposal: Proposal) -> None:
        if self._wait is None:
            wait = WaitFor(proposal.first_step, "the decision on proposal", proposal.number, 0)
            self._wait = wait, host.monotonic()
        if self._watchdog.failure is not None:
            raise self._watchdog.failure
        host.sleep(POLL_S)

    def _coordinate(self, wanted: PipelineSchedule, step: int) -> None:
        if not self._proposed:
            proposal = self._switch.propose(step + self._ahead, encode(wanted).decode())
            self._proposed = True
            text = f"proposal {proposal.number}, for step {proposal.first_step}"
            self._note(step, "proposed", text)
        elif reason := self._switch.decide(step):
            self._note(step, "refused", reason)
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
            self._wanted = None

    def _note(self, step: int, kind: str, text: str) -> None:
        self.events.append(Event(step, kind, text, host.monotonic()))
        logger.info("rank %d, step %d: %s: %s", self._ranks.rank, step, kind, text)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:  # adaptation is a service: training goes on without it
                if self._watchdog.failure is None:
                    self._note(-1, "refused", f"adaptation failed: {error!r}")
                    logger.exception("rank %d: adaptation", self._ranks.rank)

    def _prove(self, proposal: Proposal) -> None:
        """Vote on a proposal, after proving it here."""
        problem = ""
        name = f"proposal {proposal.number}"
        try:
            verified = load(decode(proposal.schedule.encode(), name))
            require_same_shape(verified, self._running)
            self._proved = replace(verified, name=name)
            _ = self._proved.csv  # lowered and proved here, not between steps
        except LatecomerError as error:
            problem = str(error)
        self._switch.vote(proposal, problem)

    def _queue_report(self, rank: int, payload: bytes) -> None:
        """On the control loop, which must not be held up by planning."""
        self._jobs.put(partial(self._collect, rank, payload))

    def _collect(self, rank: int, payload: bytes) -> None:
        """One more report; the links are judged when all ranks have reported of a step."""
        report = REPORT.decode(payload)
        of_step = self._reports.setdefault(report.step, {})
        of_step[rank] = report
        if len(of_step) == self._ranks.world_size:
            newer = [step for step in self._reports if step > report.step]
            self._reports = {step: self._reports[step] for step in newer}
            self._look(report.step, of_step)
        elif len(self._reports) > KEPT:
            del self._reports[min(self._reports)]

    def _look(self, step: int, reports: dict[int, StepReport]) -> None:
        """Judge the links by a step of this schedule, if none is proposed; plan if they changed."""
        running = self._running
        if self._wanted or {report.digest for report in reports.values()} != {running.digest}:
            return
        times = links(reports)
        measured = measured_instance(running.schedule, reports)
        changes = self._detector.look(times, min(measured.forward) / 1e6)
        for change in changes:
            self._note(step, "link", change)
        if not changes:
            return
        new, reason = replan(self._how, running, measured)
        times_s = {link: link_times.total_s for link, link_times in times.items()}
        self._note(step, "planned" if new else "kept", reason)
        if new is None:  # so that nothing is planned anew for the same
            self._detector.accept(times_s)
        else:
            self._proposed = False
            self._wanted = (new, times_s)
