"""What an engine tells to ``runtime.watch``: its operations, their stages, and the steps' losses.

Nothing is remembered, and no ping sent, while nobody watches. Operations are counted as they are
submitted, those of the warm-up (over TCP) first, so all ranks count alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.optireduce.clocks import Clocks
from runtime.optireduce.loss import LossStats, StepRecord
from runtime.optireduce.udp.reassembly import End, StageReceiver
from runtime.telemetry.records import Rank, Record, Stage, Step
from runtime.telemetry.source import LIVE
from runtime.torch_versions import Store

if TYPE_CHECKING:
    from runtime.network.control_channel import ControlChannel
    from runtime.work import AllReduceWork

KEPT = 20_000
"""Operations that are remembered."""
OVER_TCP, OVER_UBT = "TAR over TCP", "TAR over UBT"
WARM_UP = "warm-up"
REASONS = {
    End.COMPLETE: "everything arrived",
    End.EARLY: "a stage ended early",
    End.TIMEOUT: "a stage timed out",
}


class EngineSource:
    """An engine as a source; see :class:`runtime.telemetry.source.Source`.

    Args:
        store: for telling the others.
        datagrams: for the clocks.
        ledger: of the engine.
    """

    def __init__(
        self, store: Store, rank: int, size: int, datagrams: ControlChannel, ledger: LossStats
    ) -> None:
        self.store, self.rank, self.size = store, rank, size
        self._ledger = ledger
        self._clocks = Clocks(datagrams)
        self._watched = False
        self._next = self._first = self._closed = 0
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._stages: deque[Stage] = deque(maxlen=2 * KEPT)
        LIVE.append(self)

    def close(self) -> None:
        """It is no longer there to be watched."""
        self._clocks.end()
        if self in LIVE:
            LIVE.remove(self)

    def begin(self, rounds: range) -> None:
        """Remember from now on; there are no rounds, and stages are always remembered."""
        self._clocks.begin()
        self._records.clear()
        self._stages.clear()
        self._first = self._next
        self._closed = self._ledger.totals["steps"]
        self._watched = True

    def end(self) -> Rank:
        """Everything since then."""
        self._watched = False
        self._clocks.end()
        first = self._first
        records = sorted(
            (r for r in list(self._records) if r.operation >= 0), key=lambda r: r.operation
        )
        closed = self._ledger.totals["steps"] - self._closed
        steps = list(self._ledger.steps)[-closed:] if closed else []
        offset_s = self._clocks.alignment().offset_s
        return Rank(
            rank=self.rank,
            records=tuple(records),
            stages=tuple(s for s in list(self._stages) if s.operation >= 0),
            steps=tuple(_told(step, offset_s) for step in steps),
            dropped=self._next - first - len(records),
        )

    def entered(self) -> None:
        """An operation was submitted."""
        self._next += 1

    def reliable(self, operation: AllReduceWork) -> AllReduceWork:
        """The operation that was just entered runs over TCP."""
        number = self._next - 1

        def done(_: object) -> None:
            if operation.error is None:
                self._record(operation, number, operation.done_s, OVER_TCP, WARM_UP)

        operation.future().add_done_callback(done)
        return operation

    def ended(
        self, operation: AllReduceWork, stages: Sequence[StageReceiver], done_s: float
    ) -> None:
        """An operation over UBT is over."""
        if not self._watched:
            return
        number = self._ledger.reliable + operation.number
        ends = [stage.end or End.TIMEOUT for stage in stages]
        worst = max(ends, key=list(End).index)
        self._record(operation, number, done_s, OVER_UBT, REASONS[worst])
        offset_s = self._clocks.alignment().offset_s
        for which, (stage, end) in enumerate(zip(stages, ends, strict=True), start=1):
            self._stages.append(
                Stage(
                    operation=number - self._first,
                    rank=self.rank,
                    stage=which,
                    began_s=stage.began_s + offset_s,
                    ended_s=stage.ended_s + offset_s,
                    end=end.value,
                    due=stage.due,
                    lost=stage.lost,
                )
            )

    def _record(
        self, operation: AllReduceWork, number: int, done_s: float, way: str, reason: str
    ) -> None:
        if not self._watched:
            return
        alignment = self._clocks.alignment()
        arrived_s = operation.arrived_s + alignment.offset_s
        self._records.append(
            Record(
                operation=number - self._first,
                rank=self.rank,
                arrived_s=arrived_s,
                decided_s=arrived_s,
                done_s=done_s + alignment.offset_s,
                uncertainty_s=alignment.uncertainty_s,
                bytes=operation.flat.numel() * operation.flat.element_size(),
                way=way,
                late=(),
                reason=reason,
            )
        )


def _told(step: StepRecord, offset_s: float) -> Step:
    return Step(
        step=step.step,
        ended_s=step.ended_s + offset_s,
        due=sum(step.due),
        lost=sum(step.lost),
        complete=step.ends[End.COMPLETE.value],
        early=step.ends[End.EARLY.value],
        timeout=step.ends[End.TIMEOUT.value],
        incast=step.incast[0],
        rate=step.rate,
        bound_s=step.bound_s,
        hadamard=step.hadamard,
        skipped=step.skipped,
    )
