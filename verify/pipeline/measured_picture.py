"""A step as it was, in the form in which plans are drawn: bars on one clock, in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from latecomer.verify.pipeline.measured import (
    StepRecord,
    clock_offsets,
    links,
    measured_instance,
    predicted,
)
from latecomer.verify.pipeline.picture import Sheet
from latecomer.verify.pipeline.schedule import (
    COMPUTE,
    Instance,
    PipelineSchedule,
    parse_action,
    send_of,
)
from latecomer.verify.pipeline.verdict import Bar

MS = 1e3
"""Milliseconds in a second, and microseconds in a millisecond."""


def bars(records: Mapping[int, StepRecord]) -> list[Bar]:
    """All actions and messages of one step; ranks' clocks are aligned by their messages."""
    reports = {rank: record.report() for rank, record in records.items()}
    offset_s = clock_offsets(links(reports), len(records))
    zero_s = min(did.began_s - offset_s[r] for r, of in records.items() for did in of.spans)

    def ms(seconds: float, rank: int) -> float:
        return (seconds - offset_s[rank] - zero_s) * MS

    drawn = []
    for rank, record in records.items():
        for did in record.spans:
            drawn.append(Bar(str(did.action), rank, ms(did.began_s, rank), ms(did.ended_s, rank)))
        for came in record.transits:
            ready = ms(came.ready_s, came.sender)
            arrived = ms(came.arrived_s, rank)
            action = str(send_of(came.receive))
            drawn.append(Bar(action, came.sender, ready, max(ready, arrived), rank))
    return drawn


def makespan_ms(drawn: Sequence[Bar]) -> float:
    """From the first start to the last end of a compute action."""
    compute = [bar for bar in drawn if bar.receiver is None]
    return float(max(b.end for b in compute) - min(b.start for b in compute))


def observed(schedule: PipelineSchedule, records: Mapping[int, StepRecord]) -> Instance:
    """The instance that the ranks measured in a step of ``schedule``, in microseconds."""
    reports = {rank: record.report() for rank, record in records.items()}
    return measured_instance(schedule, reports)


def planned(schedule: PipelineSchedule, measured: Instance) -> list[Bar]:
    """The bars of a schedule as the model has them in an instance in microseconds."""
    drawn = predicted(schedule, measured)
    return [msgspec.structs.replace(bar, start=bar.start / MS, end=bar.end / MS) for bar in drawn]


def side_by_side(
    title: str, schedule: PipelineSchedule, records: Mapping[int, StepRecord]
) -> list[Sheet]:
    """Two sheets: what the model says for the durations and delays of a step, and the step."""
    plan = planned(schedule, observed(schedule, records))
    measured = bars(records)
    return [
        Sheet(f"{title}: planned for what was measured, {makespan_ms(plan):.4g} ms", plan),
        Sheet(f"{title}: measured, {makespan_ms(measured):.4g} ms", measured),
    ]


def text(drawn: Sequence[Bar], width: int, end_ms: float) -> list[str]:
    """A line per rank: the kind of action that fills most of each of ``width`` slots."""
    slot = end_ms / width
    most = [[(slot / 4, ".")] * width for _ in range(1 + max(bar.rank for bar in drawn))]
    for bar in drawn:
        if (kind := parse_action(bar.action).kind) not in COMPUTE:
            continue
        for i in range(max(0, int(bar.start / slot)), min(width, int(bar.end / slot) + 1)):
            covered = min(bar.end, (i + 1) * slot) - max(bar.start, i * slot)
            most[bar.rank][i] = max(most[bar.rank][i], (covered, kind))
    return ["".join(kind for _, kind in row) for row in most]
