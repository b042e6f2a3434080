"""What the coordinator makes of the history: the next epoch. Pure functions.

Who will be late (mode predict), whether ranks need not ask (mode auto), and who had better
coordinate. What follows for an operation is a function of its epoch and of what all ranks share.
"""

from __future__ import annotations

import statistics

import msgspec

from runtime.policy.cost_model import LEAST_GAIN
from runtime.policy.history import LATELY
from runtime.policy.messages import Epoch
from runtime.policy.options import PolicyInputs
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
NO_STRAGGLER = "no straggler in most of the last operations"


def next_epoch(current: Epoch, nbytes: int, inputs: PolicyInputs) -> Epoch | None:
    """What to propose for operations of ``nbytes``, if anything; version and first are open."""
    if len(inputs.history) < LEAST:
        return None
    found = current
    if inputs.options.mode == "predict":
        late, delay_s, reason = predicted_late(nbytes, inputs)
        found = msgspec.structs.replace(current, late=late, delay_s=delay_s, reason=reason)
    elif inputs.options.mode == "auto":
        found = msgspec.structs.replace(current, quiet=quiet(nbytes, inputs, now=current.quiet))
    coordinator = better_coordinator(current.coordinator, nbytes, inputs)
    found = msgspec.structs.replace(found, coordinator=coordinator)

    def what_counts(epoch: Epoch) -> tuple[set[int], int, bool]:
        return set(epoch.late), epoch.coordinator, epoch.quiet

    return found if what_counts(found) != what_counts(current) else None


def predicted_late(nbytes: int, inputs: PolicyInputs) -> tuple[tuple[int, ...], float, str]:
    """Who will be late (in the order of arrival), by how much, and why.

    Of all sets of ranks that mostly come after all others, the one whose schedule gains most.
    """
    history, native_s = inputs.history, inputs.native_s(nbytes)
    best: tuple[tuple[int, ...], float, str] = (), 0.0, NO_STRAGGLER
    best_gain_s = LEAST_GAIN * native_s
    order = history.usual_order()
    for count in range(1, inputs.most_late + 1):
        late = tuple(order[-count:])
        apart = history.lateness(late, RECENT, first=True)
        delay_s = statistics.median(history.lateness(late, RECENT))
        found = inputs.times(count, nbytes)
        if not found or sum(gap > 0 for gap in apart) < MOSTLY * len(apart):
            continue
        gain_s = delay_s + native_s - min(each.total_s(delay_s) for each in found)
        if gain_s > best_gain_s:
            best, best_gain_s = (late, delay_s, "late in most of the last operations"), gain_s
    return best


def quiet(nbytes: int, inputs: PolicyInputs, *, now: bool) -> bool:
    """Mode auto: whether all ranks had better run natively, without asking, as they may do ``now``.

    Asking costs a decision's latency per operation. It pays where the best wait would have gained
    more than that, on average over the last ``LATELY`` operations. Once they ask, half of it will
    do to go on: near the limit, changing over and back would cost more than either.
    """
    native_s, gain_s = inputs.native_s(nbytes), 0.0
    for late in range(1, inputs.most_late + 1):
        gaps = [max(gap, SHORTEST_S) for gap in inputs.history.gaps(late, LATELY)]
        wait = learned(gaps, 0.0, native_s, inputs.times(late, nbytes))
        gain_s = max(gain_s, wait.native_s - wait.mean_s)
    limit_s = LEAST_GAIN * native_s + inputs.correction.latency_s
    return gain_s < (limit_s if now else limit_s / 2)


def better_coordinator(current: int, nbytes: int, inputs: PolicyInputs) -> int:
    """The current one, unless it is often the last, by ``LEAST_GAIN`` of an operation or more."""
    behind = inputs.history.lateness((current,), RECENT)
    counts_s = LEAST_GAIN * inputs.native_s(nbytes)
    if len(behind) < LEAST or sum(gap > counts_s for gap in behind) <= OFTEN * len(behind):
        return current
    return inputs.history.usual_order()[0]
