"""What the stages of a recorded pipeline take, and what its order takes by these times.

Times are medians over microbatches and steps. A message takes what lies between the end of an
action and the begin of the one that needs it on the next stage, where that one's rank was idle
before; the median of these.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from latecomer.runtime.whatif.pipeline_spans import Kind, PipelineSpans, PipelineStep, Span

Key = tuple[int, Kind, int]
"""Stage, kind and microbatch of an action."""
IDLE_S = 1e-3  # so long a rank has been idle before an action that waited for a message


@dataclass(frozen=True)
class StageTimes:
    """Seconds, per stage.

    Attributes:
        forward_s, backward_s: the latter is that for input and weights together.
        weight_share: of ``backward_s``, what is for the weights; None where that was not recorded.
        message_s: by boundary, from a stage to the next or back; 0 where that was not seen.
        traced_s: from the first forward to the last backward.
        orders: by rank, the actions of a usual step, as (stage, kind, microbatch).
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_share: float | None
    message_s: tuple[float, ...]
    traced_s: float
    orders: tuple[tuple[Key, ...], ...]


def stage_times(recorded: PipelineSpans) -> StageTimes:
    """The times of a recording."""
    durations_s: dict[tuple[int, Kind], list[float]] = defaultdict(list)
    for step in recorded.steps:
        for span in step.spans:
            durations_s[span.stage, span.kind].append(span.duration_s)
    typical_s = {key: statistics.median(each) for key, each in durations_s.items()}

    stages = range(recorded.stages)
    forward_s = tuple(typical_s[stage, "F"] for stage in stages)
    backward_s = []
    shares = []
    for stage in stages:
        if (stage, "B") in typical_s:
            backward_s.append(typical_s[stage, "B"])
        else:
            both_s = typical_s[stage, "I"] + typical_s[stage, "W"]
            backward_s.append(both_s)
            shares.append(typical_s[stage, "W"] / both_s)

    by_length = sorted(recorded.steps, key=lambda step: step.lasted_s)
    usual = by_length[len(by_length) // 2]
    return StageTimes(
        forward_s=forward_s,
        backward_s=tuple(backward_s),
        weight_share=statistics.fmean(shares) if shares else None,
        message_s=_messages(recorded),
        traced_s=statistics.median(step.lasted_s for step in recorded.steps),
        orders=_orders(usual, recorded.rank_of),
    )


def _orders(step: PipelineStep, rank_of: tuple[int, ...]) -> tuple[tuple[Key, ...], ...]:
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in step.spans:
        by_rank[rank_of[span.stage]].append(span)
    orders = []
    for rank in range(1 + max(rank_of)):
        in_order = sorted(by_rank[rank], key=lambda span: span.start_s)
        orders.append(tuple((span.stage, span.kind, span.microbatch) for span in in_order))
    return tuple(orders)


def _messages(recorded: PipelineSpans) -> tuple[float, ...]:
    took_s: dict[int, list[float]] = defaultdict(list)
    for step in recorded.steps:
        spans = {(span.stage, span.kind, span.microbatch): span for span in step.spans}
        free_s = _free(step, recorded.rank_of)
        for span in step.spans:
            earlier = _needs(span, spans)
            if earlier is None or recorded.rank_of[earlier.stage] == recorded.rank_of[span.stage]:
                continue
            key = (span.stage, span.kind, span.microbatch)
            if earlier.end_s - free_s[key] > IDLE_S:  # it was idle, and waited for this message
                boundary = min(earlier.stage, span.stage)
                took_s[boundary].append(span.start_s - earlier.end_s)
    seen = recorded.has_links
    return tuple(
        max(0.0, statistics.median(took_s[boundary])) if seen and took_s[boundary] else 0.0
        for boundary in range(recorded.stages - 1)
    )


def _needs(span: Span, spans: dict[Key, Span]) -> Span | None:
    """What on another stage has to be over before."""
    if span.kind == "F":
        return spans.get((span.stage - 1, "F", span.microbatch))
    if span.kind in ("B", "I"):
        after = span.stage + 1
        return spans.get((after, "B", span.microbatch)) or spans.get((after, "I", span.microbatch))
    return None


def _free(step: PipelineStep, rank_of: tuple[int, ...]) -> dict[Key, float]:
    """By action, since when its rank had nothing to compute."""
    since_s: dict[int, float] = {}
    free_s = {}
    for span in sorted(step.spans, key=lambda each: each.start_s):
        rank = rank_of[span.stage]
        free_s[span.stage, span.kind, span.microbatch] = since_s.get(rank, span.start_s)
        since_s[rank] = span.end_s
    return free_s
