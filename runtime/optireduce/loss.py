"""Statistics of loss: what each step lost, how its stages ended, and what follows from that.

A step's loss is the share of the datagrams due on this rank, in both stages, that did not arrive;
what an owner did not get of others for its shard is in the owner's statistics.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import to_builtins

from latecomer.runtime.host import host
from latecomer.runtime.optireduce.missing import Missing, missing
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.bucket import Bucket
from latecomer.runtime.optireduce.udp.protocol import UdpProtocol
from latecomer.runtime.optireduce.udp.reassembly import End
from latecomer.verify.errors import LossExceeded

logger = logging.getLogger("latecomer")
KEPT_STEPS = 10_000  # for tables and reports; what is decided looks at the last few only
STAGE_TITLES = "  step    loss  stage 1  stage 2  complete/early/timeout  slowest  t_B ms  t_C ms"
TITLES = f"{STAGE_TITLES}   x  incast  MB/s  HT  skipped"


@dataclass
class StepRecord:
    """One step on this rank; bounds, incast and rates are those at its end."""

    step: int
    submitted: int = 0  # operations so far, and how many of them are over
    operations: int = 0
    sealed: bool = False  # no more will be submitted
    due: list[int] = field(default_factory=lambda: [0, 0])  # datagrams, by stage
    lost: list[int] = field(default_factory=lambda: [0, 0])
    ends: Counter[str] = field(default_factory=Counter)  # stages: complete, early, timeout
    by_rank: Counter[int] = field(default_factory=Counter)  # those lost, by who sent them
    seconds: list[float] = field(default_factory=list)  # each operation, from entry to end
    ended_s: float = 0.0  # when the last one ended
    bound_s: float = 0.0  # t_B
    expected_s: tuple[float, float] = (0.0, 0.0)  # t_C of both stages
    grace_percent: float = 0.0  # x of the first
    incast: tuple[int, int] = (1, 1)  # announced by this rank, allowed by the others
    rate: float = 0.0  # lowest pacing rate to a peer, bytes/s
    rtt_s: float = 0.0  # highest round trip
    hadamard: bool = False
    skipped: bool = False

    @property
    def loss(self) -> float:
        """Share of the datagrams due that did not arrive."""
        return sum(self.lost) / max(1, sum(self.due))

    def add(self, bucket: Bucket, protocol: UdpProtocol, seconds: float) -> None:
        """Enter an operation that is over."""
        self.operations += 1
        for number, stage in enumerate(bucket.stages):
            self.due[number] += stage.due
            self.lost[number] += stage.lost
            self.ends[stage.end or End.TIMEOUT] += 1
            for rank, progress in stage.senders.items():
                if not progress.complete:
                    self.by_rank[rank] += progress.count - progress.seen
        self.seconds.append(seconds)
        self.ended_s = host.monotonic()
        self.bound_s = protocol.bound_s
        self.hadamard = bucket.seed is not None
        first, second = protocol.estimators
        self.expected_s = (first.expected_s, second.expected_s)
        self.grace_percent = first.percent
        self.incast = protocol.incast.own, protocol.incast.allowed
        pacers = protocol.sender.pacers.values()
        self.rate = min(pacer.rate for pacer in pacers)
        self.rtt_s = max(pacer.rtt_s for pacer in pacers)


class LossStats:
    """All steps of one rank."""

    def __init__(self, options: Options, rank: int) -> None:
        self._options = options
        self.rank = rank
        self.steps: deque[StepRecord] = deque(maxlen=KEPT_STEPS)  # the latest, oldest first
        self.totals: Counter[str] = Counter()
        self.dropped: Mapping[str, int] = {}  # datagrams, by kind
        self.dropped_from: Mapping[tuple[int, str], int] = {}  # where it is known, by sender, too
        self.reliable = 0  # operations submitted over TCP, in the warm-up,
        self.entered = 0  # and over UBT
        self.missing: list[Missing] | None = None  # of each operation over UBT, if it is recorded
        self._open: dict[int, StepRecord] = {}

    @property
    def skip(self) -> bool:
        """The last step lost too much to be applied."""
        return bool(self.steps) and self.steps[-1].skipped

    def loss(self, last: int) -> float:
        """Mean loss of so many last steps (of fewer, if there are no more)."""
        records = list(self.steps)[-last:]
        return sum(record.loss for record in records) / max(1, len(records))

    def submitted(self, step: int, index: int, last: bool) -> None:
        """A bucket is on its way over UBT; ``last``: of its step."""
        self.entered += 1
        record = self._open.setdefault(step, StepRecord(step))
        record.submitted = index + 1
        record.sealed = last

    def ended(self, bucket: Bucket, protocol: UdpProtocol, seconds: float) -> LossExceeded | None:
        """It is over, after so long; the error, if it is time to stop."""
        record = self._open[bucket.step]
        record.add(bucket, protocol, seconds)
        if self.missing is not None:
            self.missing.append(missing(bucket))
        if not record.sealed or record.operations < record.submitted:
            return None
        del self._open[bucket.step]
        return self.close_step(record)

    def close_step(self, record: StepRecord) -> LossExceeded | None:
        """Enter a step that is over; the error, if the last ones lost more than ``stop_loss``."""
        options = self._options
        record.skipped = record.loss > options.skip_loss
        if record.skipped:
            percent = 100 * record.loss
            text = "rank %d: step %d lost %.1f%%, above skip_loss"
            logger.warning(text, self.rank, record.step, percent)
        self.steps.append(record)
        self.totals.update(steps=1, due=sum(record.due), lost=sum(record.lost))
        self.totals.update(skipped=record.skipped, operations=record.operations)
        self.totals.update({f"end {kind}": count for kind, count in record.ends.items()})
        window = list(self.steps)[-options.stop_window :]
        loss = self.loss(len(window))
        if len(window) < options.stop_window or loss <= options.stop_loss:
            return None
        lost = sum((step.by_rank for step in window), Counter[int]())
        dropped = Counter[int]()
        for (rank, _), count in self.dropped_from.items():
            dropped[rank] += count
        noted = [f"{count} {kind}" for kind, count in sorted(self.dropped.items()) if count]
        noted += [f"{count} of them from rank {rank}" for rank, count in dropped.most_common(1)]
        ranks = [rank for rank, _ in lost.most_common()]
        return LossExceeded(loss, options.stop_loss, len(window), ranks, ", ".join(noted))

    def table(self, last: int = 10) -> str:
        """The last steps, one line each."""
        lines = [TITLES]
        for r in list(self.steps)[-last:]:
            shares = [lost / max(1, due) for lost, due in zip(r.lost, r.due, strict=True)]
            ends = "/".join(str(r.ends[kind]) for kind in End)
            lines.append(
                f"{r.step:>6} {r.loss:>7.2%} {shares[0]:>8.2%} {shares[1]:>8.2%} {ends:>23} "
                f"{max(r.seconds, default=0) * 1e3:>5.0f} ms {r.bound_s * 1e3:>7.1f} "
                f"{max(r.expected_s) * 1e3:>7.1f} {r.grace_percent:>3.0f} {r.incast[0]:>3}/"
                f"{r.incast[1]:<3} {r.rate / 1e6:>5.0f} {'on' if r.hadamard else 'off':>4} "
                f"{'yes' if r.skipped else 'no':>7}"
            )
        return "\n".join(lines)

    def json(self) -> str:
        """Everything, for programs."""
        steps = [{**to_builtins(step, str_keys=True), "loss": step.loss} for step in self.steps]
        document = {
            "rank": self.rank,
            "reliable": self.reliable,
            "totals": self.totals,
            "dropped": dict(self.dropped),
            "steps": steps,
        }
        return json.dumps(document)
