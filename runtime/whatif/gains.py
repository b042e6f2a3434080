"""What an all-reduce could gain from late ranks: now, with overlap, and at the limit.

Legend: n ranks, S bytes, beta seconds a byte of a rank's link.

    native   2 (n-1)/n S beta     after the last arrival: a ring, the best if all come together
    now      the schedule that is best for the k ranks that come last, by the cost model of the
             runtime (``latecomer.runtime.policy.cost_model``): W while it waits, C after the last
    limit    no all-reduce ends earlier: see :func:`least_s`
    ceiling  (1 - 2/n) S beta     the limit, however late the last rank is

So two ranks gain nothing, whoever is late: a ring takes S beta already.

With overlap a part of the buffer is summed while the last rank still computes; only the rest is
left when it comes, and only that can gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from latecomer.runtime.policy.candidates import costs_of_candidates, costs_of_closed_forms
from latecomer.runtime.policy.cost_model import (
    LEAST_GAIN,
    AlphaBeta,
    Profile,
    ScheduleCandidate,
    times,
)
from latecomer.runtime.whatif.operations import ALL_REDUCE, Operation

SEARCHED = 5
"""Ranks up to which schedules for several late ranks are counted. Beyond, only the closed form for
one is: the others are searched for, which takes seconds that a question should not."""
MOST_LATE = 3

Reason = Literal["", "two ranks", "not an all-reduce", "too close", "too small"]
REASONS: dict[Reason, str] = {
    "two ranks": "of two ranks one alone has nothing to sum up while it waits for the other",
    "not an all-reduce": "only all-reduces are made to wait for late ranks",
    "too close": "the last ranks come too close together: there is no time to sum up without them",
    "too small": "of so small a buffer it is messages that take the time, not bytes",
}


@dataclass(frozen=True)
class Link:
    """Of each rank."""

    latency_s: float  # of a message
    bandwidth: float  # bytes a second, each way

    @property
    def cost(self) -> AlphaBeta:
        """As the cost model takes it."""
        return AlphaBeta(self.latency_s, 1.0 / self.bandwidth)


@dataclass(frozen=True)
class Gain:
    """Seconds, of one operation.

    Attributes:
        native_s: what the library's all-reduce takes after the last arrival.
        now_s: what the best schedule saves of that; 0 where native is as good.
        limit_s: what no all-reduce can save more than, with these arrivals.
        reason: why nothing is saved now.
    """

    native_s: float
    now_s: float
    limit_s: float
    reason: Reason = ""


def gain_of(operation: Operation, nbytes: int, link: Link) -> Gain:
    """What an operation would gain with a buffer of ``nbytes`` on such links."""
    size = operation.size
    if not nbytes:
        return Gain(0.0, 0.0, 0.0)
    profile = Profile(size, native=link.cost, schedule=link.cost)
    native_s = profile.native_s(nbytes)
    if operation.kind != ALL_REDUCE:
        return Gain(native_s, 0.0, 0.0, "not an all-reduce")
    if size < 3:
        return Gain(native_s, 0.0, 0.0, "two ranks")

    ring_s = 2 * (size - 1) / size * nbytes / link.bandwidth
    limit_s = max(0.0, ring_s - least_s(operation.arrivals_s, nbytes, link))
    now_s, would_s = _now_s(operation.arrivals_s, nbytes, profile, native_s)
    # Fewer messages than a ring has are no matter of late ranks: bytes are what is counted.
    now_s = min(now_s, limit_s)
    would_s = min(would_s, ceiling_s(size, nbytes, link))
    reason: Reason = ""
    if now_s < LEAST_GAIN * native_s:
        now_s = 0.0
        reason = "too close" if would_s >= LEAST_GAIN * native_s else "too small"
    return Gain(native_s, now_s, limit_s, reason)


def exposed_bytes(nbytes: int, bucket: int, overlap_s: float, link: Link, size: int) -> int:
    """What is left to reduce when the last rank has all of its gradients.

    Its buckets become ready over ``overlap_s`` before that, and each is reduced at once; the last
    one is always left.
    """
    per_byte_s = 2 * (size - 1) / size / link.bandwidth
    return max(min(bucket, nbytes), int(nbytes - overlap_s / per_byte_s))


def least_s(arrivals_s: Sequence[float], nbytes: int, link: Link) -> float:
    """From the last arrival on, no all-reduce of these ranks takes less.

    Each part of the buffer has to be sent 2 (n-1) times in all: n-1 times until it is summed, and
    n-1 times until all have the sum. Before the last rank is there only the others' parts can be
    added up, which takes n-2 of them; each rank sends one byte in beta seconds, from its arrival
    on. So what is left takes n ranks at least (2 (n-1) - what was sent) / n. And the last rank
    receives the whole sum, S bytes, of which nothing was there before it came.

    Messages' latency is not counted, here or in the ring that it is compared with.
    """
    size = len(arrivals_s)
    last_s = max(arrivals_s)
    sent_before = sum(last_s - arrived_s for arrived_s in arrivals_s) * link.bandwidth
    sent_before = min(sent_before, (size - 2) * nbytes)
    left = 2 * (size - 1) * nbytes - sent_before
    return max(nbytes, left / size) / link.bandwidth


def ceiling_s(size: int, nbytes: int, link: Link) -> float:
    """(1 - 2/n) S beta: what no all-reduce can save more than, however late a rank is."""
    return (1 - 2 / size) * nbytes / link.bandwidth


def _now_s(
    arrivals_s: Sequence[float], nbytes: int, profile: Profile, native_s: float
) -> tuple[float, float]:
    """What the best schedule saves; and what it would if the last ranks came late enough."""
    ordered = sorted(arrivals_s)
    candidates = _candidates(len(ordered))
    saved_s = []
    would_s = []
    for late in range(1, min(MOST_LATE, len(ordered) - 2) + 1):
        lateness_s = ordered[-1] - ordered[-1 - late]
        for each in times(candidates, profile, late, nbytes):
            saved_s.append(lateness_s + native_s - each.total_s(lateness_s))
            would_s.append(native_s - each.completion_s)
    return max(saved_s), max(would_s)


def _candidates(size: int) -> tuple[ScheduleCandidate, ...]:
    if size <= SEARCHED:
        return costs_of_candidates(size, min(MOST_LATE, size - 2))
    return costs_of_closed_forms(size)
