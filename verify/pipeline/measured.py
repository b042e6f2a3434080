"""A step as its ranks measured it: what the links took, and the instance that there was.

Clocks need not agree. From ``ready`` on the sender's clock to ``arrived`` on the receiver's is the
time on the way plus the offset of the clocks. In the other direction the offset has the other sign,
so half the sum of both is the mean time on the way, and half their difference is the offset.

A link is fitted per direction: for each candidate occupancy the line of messages is simulated; what
remains is the latency plus the offset, and should be the same for all. The occupancy with the
smallest median deviation from the median is taken, and none at all unless that explains clearly
more. Medians: a late thread or two do no harm.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from latecomer.verify.pipeline.check import timeline
from latecomer.verify.pipeline.schedule import Action, Instance, Link, PipelineSchedule
from latecomer.verify.pipeline.verdict import Bar

CANDIDATES = 16  # occupancies that are tried
CLEARLY = 0.5  # an occupancy must bring the deviation below this share of that without any
NOTICEABLE_S = 200e-6  # deviations below this are no evidence for an occupancy


@dataclass(frozen=True)
class Span:
    """A compute action on this rank; seconds of ``time.monotonic()``."""

    action: Action
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Transit:
    """A message that came to this rank, and the RECV that it answers."""

    receive: Action
    sender: int
    ready_s: float  # when it was handed over, by the sender's clock
    arrived_s: float  # when it was there, by ours


@dataclass
class StepRecord:
    """One step, numbered from 0, on one rank; ``digest`` is that of the schedule it ran."""

    step: int
    digest: str
    began_s: float
    ended_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    transits: list[Transit] = field(default_factory=list)

    def report(self) -> StepReport:
        """What the other ranks need to know of it."""
        took_s = defaultdict[tuple[str, int], list[float]](list)
        for span in self.spans:
            took_s[span.action.kind, span.action.stage].append(span.ended_s - span.began_s)
        came = defaultdict[int, list[tuple[float, float]]](list)
        for transit in self.transits:
            came[transit.sender].append((transit.ready_s, transit.arrived_s))
        durations = {action: median(each) for action, each in took_s.items()}
        links = {sender: fit(sorted(pairs)) for sender, pairs in came.items()}
        return StepReport(self.step, self.digest, durations, links)


class LinkTimes(NamedTuple):
    """A link: its latency, for how long a message holds it, and by how much single ones differ."""

    latency_s: float
    occupancy_s: float
    noise_s: float
    offset_s: float = 0.0  # the higher rank's clock less the lower rank's

    @property
    def total_s(self) -> float:
        """What a single message takes."""
        return self.latency_s + self.occupancy_s


class StepReport(msgspec.Struct, frozen=True):
    """What a rank reports of one step."""

    step: int
    digest: str
    took_s: dict[tuple[str, int], float]  # (kind of action, stage) -> median
    came: dict[int, LinkTimes]  # by sender, one direction; latency with the offset of the clocks


REPORT = msgspec.msgpack.Decoder(StepReport)  # with the module: see latecomer.verify.core.format


def fit(pairs: Sequence[tuple[float, float]]) -> LinkTimes:
    """One direction of a link from (ready, arrived) of its messages, in order; at least one."""
    gaps = sorted(max(0.0, b - a) for (_, a), (_, b) in pairwise(pairs))
    # Messages that stand in line come an occupancy apart, and no two come closer. A tenth of the
    # gaps may be smaller: threads are late now and then.
    most_s = gaps[len(gaps) // 10] if gaps else 0.0
    plain, *others = (_fit(pairs, most_s * i / CANDIDATES) for i in range(CANDIDATES + 1))
    best = min(others, key=lambda found: found.noise_s)
    explains = plain.noise_s > NOTICEABLE_S and best.noise_s < CLEARLY * plain.noise_s
    return best if explains else plain


def _fit(pairs: Sequence[tuple[float, float]], occupancy_s: float) -> LinkTimes:
    free_s = float("-inf")
    left = []
    for ready_s, arrived_s in pairs:
        free_s = max(free_s, ready_s) + occupancy_s
        left.append(arrived_s - free_s)
    middle = median(left)
    return LinkTimes(middle, occupancy_s, median(abs(value - middle) for value in left))


def links(reports: Mapping[int, StepReport]) -> dict[tuple[int, int], LinkTimes]:
    """Every link over which messages went both ways in the step; lower rank first."""
    return {
        (low, high): LinkTimes(
            max(0.0, (up.latency_s + down.latency_s) / 2),
            max(up.occupancy_s, down.occupancy_s),
            max(up.noise_s, down.noise_s),
            (up.latency_s - down.latency_s) / 2,
        )
        for high, report in reports.items()
        for low, up in report.came.items()
        if low < high and low in reports and (down := reports[low].came.get(high))
    }


def measured_instance(schedule: PipelineSchedule, reports: Mapping[int, StepReport]) -> Instance:
    """The schedule's instance with everything that was measured, in microseconds.

    The time of a fused backward is divided as in the schedule's own; other links cost nothing.
    """
    took_s = dict(ChainMap(*(report.took_s for report in reports.values())))
    before = schedule.instance
    stages = range(schedule.stages)
    backward = []
    weight = []
    for stage in stages:
        whole = before.backward[stage] + before.weight[stage]
        share = before.backward[stage] / whole if whole else 0.5
        fused_s = took_s.get(("B", stage), 0.0)
        backward.append(_us(took_s.get(("I", stage), fused_s * share)))
        weight.append(_us(took_s.get(("W", stage), fused_s * (1 - share))))
    measured_links = sorted(links(reports).items())
    return Instance(
        forward=tuple(_us(took_s["F", stage]) for stage in stages),
        backward=tuple(backward),
        weight=tuple(weight),
        links=tuple(
            Link(ends, _us(link.latency_s), _us(link.occupancy_s)) for ends, link in measured_links
        ),
        memory=before.memory,
        sends="buffered",
    )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


def predicted(schedule: PipelineSchedule, measured: Instance) -> list[Bar]:
    """The bars of a schedule as the model has them in another instance, in its time unit."""
    return timeline(msgspec.structs.replace(schedule, instance=measured, meta={}))


def clock_offsets(times: Mapping[tuple[int, int], LinkTimes], ranks: int) -> dict[int, float]:
    """rank -> its clock less rank 0's, along the links; 0 for ranks that none leads to."""
    offsets = {0: 0.0}
    # Links are in no order: each pass leads at least one link farther.
    for _ in range(ranks):
        for (low, high), link in times.items():
            if low in offsets:
                offsets.setdefault(high, offsets[low] + link.offset_s)
            elif high in offsets:
                offsets.setdefault(low, offsets[high] - link.offset_s)
    return {rank: offsets.get(rank, 0.0) for rank in range(ranks)}
