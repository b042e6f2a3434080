"""From what ranks recorded in a step to a situation in microseconds: durations and links.

Clocks need not agree. A message from a to b is handed over at ``ready`` on a's clock and is there
at ``arrived`` on b's; the difference is its time on the way plus the offset of the two clocks. In
the other direction the offset has the other sign, so half the sum of both directions is the mean
time on the way, free of any clock, and half their difference is the offset.

A link is fitted per direction: a message holds the link for the occupancy, others wait in line,
and it is there a latency later. For each candidate occupancy the line is simulated; what remains
(``arrived`` less the end of the holding) is the latency plus a clock offset, and should be the same
for all messages. The occupancy with the smallest median deviation from the median is taken, and
none at all unless that explains clearly more. Medians: a late thread or two do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec

from runtime.pipeline.recorder import StepRecord
from verify.pipeline import Link, PipelineSchedule, Situation

CANDIDATES = 16
CLEARLY = 0.5
"""An occupancy must bring the deviation below this share of that without any."""
NOTICEABLE_S = 200e-6
"""Deviations below this are no evidence for an occupancy."""
US = 1e6


class Report(msgspec.Struct, frozen=True):
    """What a rank tells of one step.

    Attributes:
        digest: of the schedule it ran.
        seconds: of the whole step.
        durations: action kind -> stage -> median seconds.
        arrivals: sender -> (ready by its clock, arrived by ours), in the order of arrival.
    """

    rank: int
    step: int
    digest: str
    seconds: float
    durations: dict[str, dict[int, float]]
    arrivals: dict[int, list[tuple[float, float]]]


class Fit(NamedTuple):
    """A direction of a link: seconds; the latency includes an unknown clock offset."""

    latency_s: float
    occupancy_s: float
    noise_s: float


class LinkTimes(NamedTuple):
    """A link, free of clocks.

    Attributes:
        latency_s: the mean of both directions.
        occupancy_s: the larger of both directions.
        noise_s: median deviation of single messages.
        offset_s: the higher rank's clock less the lower rank's.
    """

    latency_s: float
    occupancy_s: float
    noise_s: float
    offset_s: float

    @property
    def total_s(self) -> float:
        """What a single message takes."""
        return self.latency_s + self.occupancy_s


def report(record: StepRecord, rank: int) -> Report:
    """Sum up a step."""
    durations: dict[str, dict[int, list[float]]] = {}
    for span in record.spans:
        of_kind = durations.setdefault(span.action.kind, {})
        of_kind.setdefault(span.action.stage, []).append(span.ended_s - span.began_s)
    arrivals: dict[int, list[tuple[float, float]]] = {}
    for transit in record.transits:
        arrivals.setdefault(transit.sender, []).append((transit.ready_s, transit.arrived_s))
    return Report(
        rank,
        record.step,
        record.digest,
        record.ended_s - record.began_s,
        {kind: {s: median(values) for s, values in of.items()} for kind, of in durations.items()},
        {sender: sorted(pairs) for sender, pairs in arrivals.items()},
    )


def fit(pairs: Sequence[tuple[float, float]]) -> Fit:
    """One direction of a link from (ready, arrived) of its messages, in order; at least one."""
    arrived = [there for _, there in pairs]
    gaps = sorted(max(0.0, b - a) for a, b in pairwise(arrived))
    most_s = gaps[len(gaps) // 10] if gaps else 0.0
    plain = _with_occupancy(pairs, 0.0)
    best = min(
        (_with_occupancy(pairs, most_s * i / CANDIDATES) for i in range(1, CANDIDATES + 1)),
        key=lambda found: found.noise_s,
    )
    if plain.noise_s > NOTICEABLE_S and best.noise_s < CLEARLY * plain.noise_s:
        return best
    return plain


def _with_occupancy(pairs: Sequence[tuple[float, float]], occupancy_s: float) -> Fit:
    free_s, left = float("-inf"), []
    for ready_s, arrived_s in pairs:
        free_s = max(free_s, ready_s) + occupancy_s
        left.append(arrived_s - free_s)
    middle = median(left)
    return Fit(middle, occupancy_s, median(abs(value - middle) for value in left))


def links(reports: Mapping[int, Report]) -> dict[tuple[int, int], LinkTimes]:
    """Every link over which messages went both ways in the step; lower rank first."""
    found = {}
    for high, told in reports.items():
        for low, there in told.arrivals.items():
            back = reports[low].arrivals.get(high) if low < high and low in reports else None
            if not back:
                continue
            up, down = fit(there), fit(back)
            found[low, high] = LinkTimes(
                max(0.0, (up.latency_s + down.latency_s) / 2),
                max(up.occupancy_s, down.occupancy_s),
                max(up.noise_s, down.noise_s),
                (up.latency_s - down.latency_s) / 2,
            )
    return found


def situation(
    schedule: PipelineSchedule,
    reports: Mapping[int, Report],
    times: Mapping[tuple[int, int], LinkTimes],
) -> Situation:
    """The schedule's situation with everything that was measured, in microseconds.

    Where the backward ran fused its time is divided as in the schedule's own situation. Links
    without a measurement are taken to cost nothing. Memory limits stay.
    """
    seconds: dict[tuple[str, int], float] = {}
    for told in reports.values():
        for kind, of in told.durations.items():
            seconds |= {(kind, stage): value for stage, value in of.items()}
    forward, backward, weight = [], [], []
    for stage in range(schedule.stages):
        forward.append(_us(seconds[("F", stage)]))
        planned_i, planned_w = schedule.situation.backward[stage], schedule.situation.weight[stage]
        whole = planned_i + planned_w
        fused_s = seconds.get(("B", stage), 0.0)
        share = planned_i / whole if whole else 0.5
        backward.append(_us(seconds.get(("I", stage), fused_s * share)))
        weight.append(_us(seconds.get(("W", stage), fused_s * (1 - share))))
    return Situation(
        forward=tuple(forward),
        backward=tuple(backward),
        weight=tuple(weight),
        links=tuple(
            Link((low, high), _us(link.latency_s), _us(link.occupancy_s))
            for (low, high), link in sorted(times.items())
        ),
        memory=schedule.situation.memory,
        sends="buffered",
    )


def _us(seconds: float) -> int:
    return max(0, round(seconds * US))


def clock_offsets(times: Mapping[tuple[int, int], LinkTimes], ranks: int) -> dict[int, float]:
    """rank -> its clock less rank 0's, along the links; 0 for ranks that none leads to."""
    offsets = {0: 0.0}
    for _ in range(ranks):
        for (low, high), link in times.items():
            if low in offsets:
                offsets.setdefault(high, offsets[low] + link.offset_s)
            elif high in offsets:
                offsets.setdefault(low, offsets[high] - link.offset_s)
    return {rank: offsets.get(rank, 0.0) for rank in range(ranks)}
