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

from runtime.selftest.device import oracle
from runtime.selftest.device.methods import Method, Wait, What
from runtime.selftest.device.place import Place

LEAD_S = 0.0005  # by which streams are held up, so that hosts have enqueued all that is timed
LEAST_S = 1e-7  # what is left when noise makes the barrier longer than barrier and operation
BARRIERS = 20


def barrier_s(place: Place) -> float:
    """What the closing barrier takes by itself, the same number on all ranks (collective)."""
    one = torch.zeros(1, device=place.tensors)
    times = [_timed(place, one, lambda: None, LEAD_S) for _ in range(BARRIERS)]
    return statistics.median(_least(place, times))


def time_s(
    method: Method,
    place: Place,
    tensor: torch.Tensor,
    what: What,
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
    one = torch.zeros(1, device=place.tensors)
    times = []
    wrong = 0
    waits = list[Wait]()
    for operation in range(repetitions + 1):
        place.advance(f"submits {tensor.nbytes} bytes")
        oracle.fill(tensor, place.rank, place.size, operation, average=False)
        place.synchronize()
        waits.clear()

        def reduce() -> None:
            waits.append(method.submit(tensor, average=False, what=what))
            place.advance(f"waits for {tensor.nbytes} bytes")
            if by_host:
                waits[0]()
            else:
                place.join()

        times.append(_timed(place, one, reduce, late_s))
        wrong += oracle.wrong(waits[0](), place.size, operation)
    total = sum(int(said["wrong"]) for said in place.gather({"wrong": str(wrong)}))
    took = statistics.median(_least(place, times[1:]))
    return max(LEAST_S, took - closing_s), total


def _timed(place: Place, one: torch.Tensor, operation: Callable[[], None], late_s: float) -> float:
    place.barrier(one)
    if late_s:
        place.delay(late_s)
    first = place.mark()
    operation()
    place.barrier(one)
    last = place.mark()
    place.synchronize()
    return place.between_s(first, last)


def _least(place: Place, times: list[float]) -> list[float]:
    """For each repetition the least time of all ranks (collective)."""
    said = place.gather({"times": " ".join(map(repr, times))})
    ranks = [list(map(float, one["times"].split())) for one in said]
    return [min(each) for each in zip(*ranks, strict=True)]
