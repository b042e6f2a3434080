"""The modes that decide without waiting: static and predict; and who had better coordinate.

A forecast is made from the history by the coordinator alone. What follows from it for an operation
is a function of the plan that all ranks have agreed on (``agreement``) and of what all share.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from runtime.policy.cost_model import LEAST_GAIN, times
from runtime.policy.decision import NATIVE, Decision, Epoch
from runtime.policy.history import LATELY
from runtime.policy.options import Options, PolicyInputs
from runtime.policy.thresholds import learned

RECENT = 16
"""Operations that a forecast looks at."""
LEAST = 6
"""Operations without which there is none."""
MOSTLY = 0.75
"""The share of them in which all that are called late must have come after all others."""
OFTEN = 0.5
"""A coordinator that is the last one more often hands over."""
SHORTEST_S = 1e-9
"""What counts as a gap at all: two ranks may come at the very same time."""
NOBODY = "nobody is late in most of the last operations"


@dataclass(frozen=True)
class Forecast:
    """Who is expected to be late (in the order of arrival), and by how much."""

    late: tuple[int, ...] = ()
    delay_s: float = 0.0
    reason: str = NOBODY


def forecast(size: int, knowledge: PolicyInputs, options: Options) -> Forecast:
    """Who will be late at operations of ``size`` bytes, by the last ``RECENT`` operations.

    Of all sets of ranks that mostly come after all others, the one whose schedule gains most.
    """
    history, native_s = knowledge.history, knowledge.native_s(size)
    factor = knowledge.experience.factor(False)
    best, best_gain_s = Forecast(), LEAST_GAIN * native_s
    if len(history) < LEAST:
        return Forecast(reason=f"fewer than {LEAST} operations have been seen")
    order = history.usual_order()
    for count in range(1, options.at_most_late(knowledge.size) + 1):
        late = tuple(order[-count:])
        apart = history.separation(late, RECENT)
        delay_s = statistics.median(history.lateness(late, RECENT))
        found = times(knowledge.candidates, knowledge.profile, count, size, factor)
        if not found or sum(gap > 0 for gap in apart) < MOSTLY * len(apart):
            continue
        gain_s = delay_s + native_s - min(each.total_s(delay_s) for each in found)
        if gain_s > best_gain_s:
            reason = "late in most of the last operations"
            best, best_gain_s = Forecast(late, delay_s, reason), gain_s
    return best


def quiet(size: int, knowledge: PolicyInputs, options: Options, *, now: bool) -> bool:
    """Mode auto: whether all ranks had better run natively, without asking.

    Asking costs a decision's latency per operation. It pays where the best wait would have gained
    more than that, on average over the last ``LATELY`` operations. Once they ask, half of it will
    do to go on: near the limit, changing over and back would cost more than either.

    Args:
        now: whether they do at present.
    """
    history, native_s = knowledge.history, knowledge.native_s(size)
    if len(history) < LEAST:
        return now
    factor, gain_s = knowledge.experience.factor(False), 0.0
    for late in range(1, options.at_most_late(knowledge.size) + 1):
        found = times(knowledge.candidates, knowledge.profile, late, size, factor)
        gaps = [max(gap, SHORTEST_S) for gap in history.gaps(late, LATELY)]
        wait = learned(gaps, 0.0, native_s, found)
        gain_s = max(gain_s, wait.native_s - wait.mean_s)
    limit_s = LEAST_GAIN * native_s + knowledge.experience.latency_s
    return gain_s < (limit_s if now else limit_s / 2)


def better_coordinator(current: int, size: int, knowledge: PolicyInputs) -> int:
    """The rank that should coordinate: the current one, unless it is often the last.

    By so much that it counts: ``LEAST_GAIN`` of an operation of ``size`` bytes.
    """
    history, counts_s = knowledge.history, LEAST_GAIN * knowledge.native_s(size)
    behind = history.lateness((current,), RECENT)
    if len(behind) < LEAST or sum(gap > counts_s for gap in behind) <= OFTEN * len(behind):
        return current
    return history.usual_order()[0]


def predicted(size: int, plan: Epoch, knowledge: PolicyInputs) -> Decision:
    """Mode predict: how an operation of ``size`` bytes runs under ``plan``."""
    return _for_late(size, plan.late, plan.delay_s, plan.reason or NOBODY, knowledge)


def static(size: int, knowledge: PolicyInputs, options: Options) -> Decision:
    """Modes static (the named ranks come when the others have done their part) and native."""
    if options.mode == "native":
        return Decision(NATIVE, (), "mode native")
    return _for_late(size, options.late, float("inf"), "named by the user", knowledge)


def _for_late(
    size: int, late: tuple[int, ...], delay_s: float, reason: str, knowledge: PolicyInputs
) -> Decision:
    if not late:
        return Decision(NATIVE, (), reason)
    native_s = knowledge.profile.native_s(size)

    def beyond_s(waiting_s: float, completion_s: float) -> float:
        """From the late rank's arrival to the end."""
        return max(0.0, waiting_s - delay_s) + completion_s

    found = times(knowledge.candidates, knowledge.profile, len(late), size)
    best = min(found, key=lambda t: beyond_s(t.waiting_s, t.completion_s), default=None)
    if best is None:
        return Decision(NATIVE, (), f"there is no schedule for {len(late)} late ranks")
    if beyond_s(best.waiting_s, best.completion_s) >= (1 - LEAST_GAIN) * native_s:
        return Decision(NATIVE, (), "small, or hardly late: no schedule would be faster")
    return Decision(best.candidate, late, reason)
