"""How long an all-reduce takes from the arrival of the last rank to its end on all ranks.

A repetition, on every rank: a barrier; the late rank's stream is held up (if none is late, all are,
alike, so that no host is behind its device); a mark; the operation; a barrier; a mark. All barriers
are one-element all-reduces of the device's own library. The last mark stands behind the end on all
ranks, and whoever arrives last has the least time between the marks: that is the time wanted, and
what the closing barrier takes by itself is subtracted. So clocks of different GPUs are never
compared. The closing barrier comes when the stream gets to it; or else (``by_host``) when the host
goes on that has waited with a time limit. (Jobs let streams wait.)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from latecomer.runtime.selftest.device import oracle
from latecomer.runtime.selftest.device.methods import Method, ScheduleChoice, WaitForResult
from latecomer.runtime.selftest.device.rank import RankContext

LEAD_S = 0.0005  # by which streams are held up, so that hosts have enqueued all that is timed
LEAST_S = 1e-7  # reported when noise makes the barrier longer than barrier and operation
BARRIERS = 20


def barrier_s(context: RankContext) -> float:
    """What the closing barrier takes by itself, the same number on all ranks (collective)."""
    element = torch.zeros(1, device=context.tensors)
    times_s = [_timed(context, element, lambda: None, LEAD_S) for _ in range(BARRIERS)]
    return statistics.median(_least_of_ranks(context, times_s))


def time_s(
    method: Method,
    context: RankContext,
    tensor: torch.Tensor,
    choice: ScheduleChoice,
    *,
    late_s: float,
    repetitions: int,
    closing_s: float,
    by_host: bool,
) -> tuple[float, int]:
    """Median seconds, and elements that were wrong on any rank (collective).

    ``tensor`` is of ``method.buffer``; ``late_s`` is how long this rank's stream is held up;
    ``closing_s`` is from :func:`barrier_s`. One more repetition than asked for goes before, and is
    checked only.
    """
    element = torch.zeros(1, device=context.tensors)
    times_s = []
    wrong_here = 0
    waits = list[WaitForResult]()

    def reduce() -> None:
        waits.append(method.submit(tensor, average=False, choice=choice))
        context.advance(f"waits for {tensor.nbytes} bytes")
        if by_host:
            waits[0]()
        else:
            context.join()

    for operation in range(repetitions + 1):
        context.advance(f"submits {tensor.nbytes} bytes")
        oracle.fill(tensor, context.rank, context.world_size, operation, average=False)
        context.synchronize()
        waits.clear()
        times_s.append(_timed(context, element, reduce, late_s))
        wrong_here += oracle.wrong_elements(waits[0](), context.world_size, operation)

    wrong = sum(int(message["wrong"]) for message in context.gather({"wrong": str(wrong_here)}))
    median_s = statistics.median(_least_of_ranks(context, times_s[1:]))
    return max(LEAST_S, median_s - closing_s), wrong


def _timed(
    context: RankContext, element: torch.Tensor, operation: Callable[[], None], late_s: float
) -> float:
    """Seconds between the marks of one repetition, on this rank."""
    context.barrier(element)
    if late_s:
        context.delay(late_s)
    first = context.mark()
    operation()
    context.barrier(element)
    last = context.mark()
    context.synchronize()
    return context.between_s(first, last)


def _least_of_ranks(context: RankContext, times_s: list[float]) -> list[float]:
    """For each repetition the least time of all ranks (collective)."""
    messages = context.gather({"times": " ".join(map(repr, times_s))})
    times_by_rank = [list(map(float, message["times"].split())) for message in messages]
    return [min(repetition) for repetition in zip(*times_by_rank, strict=True)]
