"""What an engine tells to ``latecomer.watch``: its operations, their stages, and the steps' losses.

Nothing is remembered, and no ping sent, while nobody watches. Operations are counted as they are
submitted, those of the warm-up (over TCP) first, so all ranks count alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from latecomer.runtime.host import host
from latecomer.runtime.network.aligned_clock import AlignedClock
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce.loss import LossStats, StepRecord
from latecomer.runtime.optireduce.udp.reassembly import End, StageReceiver
from latecomer.runtime.telemetry.recorder import Event, Feed, OperationRecorder
from latecomer.runtime.telemetry.records import Rank, Stage, UbtStep
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import LatecomerError

KEPT = 40_000  # stages that are remembered
ALIGN_S = 2.0  # how long the beginning waits for an aligned clock
REASONS = {
    End.COMPLETE: "everything arrived",
    End.EARLY: "a stage ended early",
    End.TIMEOUT: "a stage timed out",
}


class EngineRecorder(OperationRecorder):
    """An engine's: with stages and steps; ``channel`` carries the pings that align the clock."""

    def __init__(self, group: StoreExchange, channel: ControlChannel, losses: LossStats) -> None:
        self._clock = AlignedClock(channel, asks=False)
        self._losses = losses
        self._began_s = 0.0
        self._watched = False
        self._stages: deque[Stage] = deque(maxlen=KEPT)
        super().__init__(group, self._clock.alignment, lambda: losses.reliable + losses.entered)

    def close(self) -> None:
        """As for all recorders; pings are answered no more."""
        super().close()
        self._clock.close()

    def begin(self, rounds: range) -> None:
        """As for all recorders; there are no rounds, and stages are always remembered."""
        self._clock.ask(True)
        self._clock.wait(ALIGN_S)
        super().begin(rounds)
        self._stages.clear()
        self._began_s = host.monotonic()
        self._watched = True

    def end(self) -> Rank:
        """As for all recorders, with stages and steps."""
        self._watched = False
        self._clock.ask(False)
        offset_s = self.alignment().offset_s
        steps = [step for step in list(self._losses.steps) if step.ended_s >= self._began_s]
        return msgspec.structs.replace(
            super().end(),
            stages=tuple(self._since(self._stages)),
            steps=tuple(_step(step, offset_s) for step in steps),
        )

    def news(self, feed: Feed) -> tuple[list[Event], list[UbtStep]]:
        """As for all recorders, with the steps that are over."""
        events, _ = super().news(feed)
        offset_s = self.alignment().offset_s
        newest_first = []
        for step in reversed(list(self._losses.steps)):
            if step.step <= feed.last_step or step.ended_s < self._began_s:
                break
            newest_first.append(step)
        if newest_first:
            feed.last_step = newest_first[0].step
        return events, [_step(step, offset_s) for step in reversed(newest_first)]

    def reliable(self, work: CollectiveWork) -> CollectiveWork:
        """The operation that was just submitted runs over TCP."""
        number = self.count() - 1

        def done(error: LatecomerError | None) -> None:
            if error is None and self._watched:
                self.record(work, number, "TAR over TCP", "warm-up")

        work.then(done)
        return work

    def ended(self, work: CollectiveWork, stages: Sequence[StageReceiver], done_s: float) -> None:
        """An operation over UBT is over."""
        if not self._watched:
            return
        number = self._losses.reliable + work.number
        ends = [stage.end or End.TIMEOUT for stage in stages]
        reason = REASONS[max(ends, key=list(End).index)]  # the worse of the two
        self.record(work, number, "TAR over UBT", reason, done_s=done_s)
        offset_s = self.alignment().offset_s
        for which, (stage, end) in enumerate(zip(stages, ends, strict=True), start=1):
            ended_stage = Stage(
                operation=number,
                stage=which,
                began_s=stage.began_s + offset_s,
                ended_s=stage.ended_s + offset_s,
                end=end.value,
                due=stage.due,
                lost=stage.lost,
            )
            self._stages.append(ended_stage)
            self._tell(ended_stage)


def _step(step: StepRecord, offset_s: float) -> UbtStep:
    return UbtStep(
        step=step.step,
        ended_s=step.ended_s + offset_s,
        due=sum(step.due),
        lost=sum(step.lost),
        complete=step.ends[End.COMPLETE],
        early=step.ends[End.EARLY],
        timeout=step.ends[End.TIMEOUT],
        incast=step.incast[0],
        rate=step.rate,
        bound_s=step.bound_s,
        hadamard=step.hadamard,
        skipped=step.skipped,
    )
