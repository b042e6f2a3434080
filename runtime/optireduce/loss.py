"""The ledger: what each step lost, how its stages ended, and what follows from that.

A step's loss is the share of the datagrams due on this rank, in both stages, that did not arrive;
what an owner did not get of others for its shard is in the owner's ledger.
A step above ``skip_loss`` should not be applied; when the mean of the last steps is above
``stop_loss`` training stops with :class:`LossExceeded`.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import to_builtins

from runtime.optireduce.options import Options
from runtime.optireduce.udp.exchange import Exchange
from runtime.optireduce.udp.protocol import Protocol
from runtime.optireduce.udp.reassembly import End
from runtime.selftest.missing import Missing, missing
from verify.errors import LossExceeded

KEPT_STEPS = 10_000


@dataclass
class StepRecord:
    """One step on this rank.

    Attributes:
        submitted, operations: how many operations it has so far, and how many are over.
        sealed: no more will be submitted.
        due, lost: datagrams, by stage.
        ends: how many stages were ``complete``, ``early``, ``timeout``.
        by_rank: datagrams lost, by the rank that sent them.
        seconds: of each operation, from its entry to its end.
        ended_s: ``time.monotonic()`` at the end of the last one so far.
        bound_s, expected_s, grace_percent: t_B, t_C of both stages, x of the first, at its end.
        incast: announced by this rank, allowed by the others.
        rate, rtt_s: lowest pacing rate (bytes/s) and highest round trip over the peers.
        hadamard: the transform was on.
    """

    step: int
    submitted: int = 0
    operations: int = 0
    sealed: bool = False
    due: list[int] = field(default_factory=lambda: [0, 0])
    lost: list[int] = field(default_factory=lambda: [0, 0])
    ends: Counter[str] = field(default_factory=Counter)
    by_rank: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    bound_s: float = 0.0
    expected_s: tuple[float, float] = (0.0, 0.0)
    grace_percent: float = 0.0
    incast: tuple[int, int] = (1, 1)
    rate: float = 0.0
    rtt_s: float = 0.0
    hadamard: bool = False
    skipped: bool = False

    @property
    def complete(self) -> bool:
        """All its operations are over."""
        return self.sealed and self.operations == self.submitted

    @property
    def loss(self) -> float:
        """Share of the datagrams due that did not arrive."""
        return sum(self.lost) / max(1, sum(self.due))

    def add(self, exchange: Exchange, node: Protocol, seconds: float, hadamard: bool) -> None:
        """Enter an operation that is over."""
        self.operations += 1
        for number, stage in enumerate(exchange.stages):
            self.due[number] += stage.due
            self.lost[number] += stage.lost
            self.ends[(stage.end or End.TIMEOUT).value] += 1
            for rank, sender in stage.senders.items():
                if not sender.complete:
                    self.by_rank[rank] += sender.count - sender.seen
        self.seconds.append(seconds)
        self.ended_s = time.monotonic()
        self.bound_s, self.hadamard = node.bound_s, hadamard
        self.expected_s = node.expected[0].expected_s, node.expected[1].expected_s
        self.grace_percent = node.expected[0].percent
        self.incast = node.incast.announced, node.incast.allowed
        pacers = node.sender.pacers.values()
        self.rate, self.rtt_s = min(p.rate for p in pacers), max(p.rtt_s for p in pacers)


class LossStats:
    """All steps of one rank.

    Attributes:
        steps: the latest records, oldest first.
        dropped, dropped_from: datagrams dropped since the start, by kind, and (those that could be
            told) by sender and kind.
        reliable: operations that ran over TCP (warm-up).
        missing: of each operation over UBT, in order, what did not arrive; ``None``, as to begin
            with: not recorded.
    """

    def __init__(self, options: Options, rank: int) -> None:
        self._options, self.rank = options, rank
        self.steps: deque[StepRecord] = deque(maxlen=KEPT_STEPS)
        self.totals: Counter[str] = Counter()
        self.dropped: Mapping[str, int] = {}
        self.dropped_from: Mapping[tuple[int, str], int] = {}
        self.reliable = 0
        self.missing: list[Missing] | None = None

    @property
    def skip(self) -> bool:
        """The last step lost too much to be applied."""
        return bool(self.steps) and self.steps[-1].skipped

    def loss(self, last: int) -> float:
        """Mean loss of so many last steps (of fewer, if there are no more)."""
        records = list(self.steps)[-last:]
        return sum(record.loss for record in records) / max(1, len(records))

    def end(self, exchange: Exchange) -> None:
        """An operation over UBT is over: record what is missing, if that is wanted."""
        if self.missing is not None:
            self.missing.append(missing(exchange))

    def close_step(self, record: StepRecord) -> LossExceeded | None:
        """Enter a step that is over; the error, if it is time to stop."""
        options = self._options
        record.skipped = record.loss > options.skip_loss
        self.steps.append(record)
        self.totals.update(steps=1, due=sum(record.due), lost=sum(record.lost))
        self.totals.update(skipped=record.skipped, operations=record.operations)
        self.totals.update({f"end {kind}": count for kind, count in record.ends.items()})
        window = list(self.steps)[-options.stop_window :]
        if len(window) < options.stop_window or self.loss(len(window)) <= options.stop_loss:
            return None
        lost: Counter[int] = Counter()
        for one in window:
            lost.update(one.by_rank)
        noted = [f"{count} {kind}" for kind, count in sorted(self.dropped.items()) if count]
        noted += [f"{count} of them from rank {r}" for r, count in self._loudest()]
        return LossExceeded(
            self.loss(len(window)),
            options.stop_loss,
            len(window),
            [r for r, _ in lost.most_common()],
            ", ".join(noted),
        )

    def _loudest(self) -> list[tuple[int, int]]:
        """The rank of which most datagrams were dropped, with their number."""
        by_rank: Counter[int] = Counter()
        for (rank, _), count in self.dropped_from.items():
            by_rank[rank] += count
        return by_rank.most_common(1)

    def table(self, last: int = 10) -> str:
        """The last steps, one line each."""
        lines = [
            "  step    loss  stage 1  stage 2  complete/early/timeout  slowest  t_B ms  t_C ms"
            "   x  incast  MB/s  HT  skipped"
        ]
        for r in list(self.steps)[-last:]:
            shares = [lost / max(1, due) for lost, due in zip(r.lost, r.due, strict=True)]
            ends = "/".join(str(r.ends[kind.value]) for kind in End)
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
        steps = [
            {**to_builtins(record, str_keys=True), "loss": record.loss} for record in self.steps
        ]
        about = {"rank": self.rank, "reliable": self.reliable, "totals": self.totals}
        return json.dumps({**about, "dropped": dict(self.dropped), "steps": steps})

    def prometheus(self) -> str:
        """The state as a Prometheus text file."""
        label = f'{{rank="{self.rank}"}}'
        lines = []

        def put(name: str, kind: str, value: float, labels: str = label) -> None:
            full = f"latecomer_optireduce_{name}"
            if f"# TYPE {full} {kind}" not in lines:
                lines.append(f"# TYPE {full} {kind}")
            lines.append(f"{full}{labels} {value:g}")

        for name in ("steps", "operations", "due", "lost", "skipped"):
            put(f"{name}_total", "counter", self.totals[name])
        for end in End:
            labels = f'{{rank="{self.rank}",end="{end.value}"}}'
            put("stages_total", "counter", self.totals[f"end {end.value}"], labels)
        for reason, count in sorted(self.dropped.items()):
            labels = f'{{rank="{self.rank}",kind="{reason}"}}'
            put("dropped_datagrams_total", "counter", count, labels)
        if self.steps:
            record = self.steps[-1]
            put("loss", "gauge", record.loss)
            put("bound_seconds", "gauge", record.bound_s)
            put("expected_seconds", "gauge", max(record.expected_s))
            put("incast_announced", "gauge", record.incast[0])
            put("pacing_rate_bytes", "gauge", record.rate)
            put("hadamard", "gauge", float(record.hadamard))
        return "\n".join(lines) + "\n"
