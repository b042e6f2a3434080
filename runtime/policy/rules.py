"""How an operation runs, in every mode, and what the next epoch is. Pure functions.

Native, static and predict decide from what all ranks share. In eager and auto the coordinator asks
at each arrival, and when a wait is over; what counts is who is there, and since when, on the
coordinator's own clock (no alignment enters). The history gives the next epoch: who will be late
(mode predict), whether ranks need not ask (mode auto), and who had better coordinate; what follows
for an operation depends on its epoch and on what all ranks share.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from latecomer.runtime.policy.arrivals import ArrivalState, BufferSignature
from latecomer.runtime.policy.cost_model import (
    LEAST_GAIN,
    Times,
    Wait,
    break_even,
    learned,
    worth_s,
)
from latecomer.runtime.policy.history import LATELY
from latecomer.runtime.policy.messages import NATIVE, Decision, Epoch
from latecomer.runtime.policy.on_time import TO_COMPARE, are_tried, is_to_compare, way_on_time
from latecomer.runtime.policy.options import PolicyInputs

PATIENCE = "missing for longer than a needless start would cost"
ENOUGH = 4  # of them those in which a rank was as late as now, before lateness is learned from
RECENT = 16  # operations that a forecast looks at
LEAST = 6  # operations without which there is none
MOSTLY = 0.75  # the share of them in which all that are called late must have come after all others
OFTEN = 0.5  # a coordinator that is the last one more often hands over
HARDLY = 0.25
"""Of the native all-reduce's time: who is late by less is waited for while ways on time are tried.

Else a start without them may gain something on the native all-reduce, nothing is ever found out of
the ways on time, and these may gain much more."""
SHORTEST_S = 1e-9  # what counts as a gap at all: two ranks may come at the very same time
FIRST = Epoch(version=0, first=0, coordinator=0)
QUIET = "little to gain from a start lately: no rank asks"
NO_STRAGGLER = "no straggler in most of the last operations"
ALL_HERE = "all ranks have arrived"


@dataclass(frozen=True)
class Later:
    """No decision yet: ask again at ``at_s``, or when something has changed."""

    at_s: float


@dataclass
class OperationState(ArrivalState):
    """What the coordinator knows of one operation."""

    done_s: dict[int, float] = field(default_factory=dict)  # by sender, result: reference clock
    asking: set[int] = field(default_factory=set)  # who is told the decision, besides heads
    decision: Decision | None = None
    free_s: float = -math.inf  # when the links will have done those before, by prediction
    started: int = 0  # how many of those before run by a schedule and still miss a rank
    ready_s: float = -math.inf  # when a schedule's waiting phases end, by prediction
    unready_s: float = 0.0  # what of them the profile left to do when the last rank came
    epoch: Epoch = FIRST  # the operation's, once it is to be decided


Ranks = tuple[int, ...]
Rule = Callable[[float, OperationState, PolicyInputs], Decision | Later]


def useless(buffer: BufferSignature, inputs: PolicyInputs) -> str:
    """Why nothing can be gained by a start without a late rank; empty if something can.

    Alike on all ranks.
    """
    if not buffer.can_be_begun:
        return f"no rank can be left out of {buffer.collective}"
    nbytes = buffer.nbytes
    native_s = inputs.native_s(nbytes, corrected=False)
    best_s = math.inf
    for late in range(1, inputs.most_late + 1):
        schedules = inputs.times(late, nbytes, corrected=False)
        if worth_s(native_s, schedules):
            return ""
        best_s = min([best_s, *(schedule.completion_s for schedule in schedules)])
    if inputs.world_size < 3:
        return "nothing to gain: one rank alone has nothing to sum up while it waits for the other"
    if math.isinf(best_s):
        return "nothing to gain: no schedule begins without so many ranks"
    return (
        f"nothing to gain: from the last arrival {native_s * 1e3:.3g} ms natively, "
        f"{best_s * 1e3:.3g} ms by the best schedule, as predicted"
    )


def waited_for(
    operation: int, buffer: BufferSignature, epoch: Epoch, why: str, inputs: PolicyInputs
) -> Decision:
    """How an operation runs for which all ranks are waited for; ``why`` they are."""
    if not inputs.has_ways_on_time:
        return Decision(NATIVE, (), why)
    ways = inputs.ways_on_time(buffer.of_class)
    way, reason = way_on_time(epoch, operation, buffer.of_class, ways)
    return Decision(way, (), reason if reason == TO_COMPARE else f"{why}; {reason}")


def static(buffer: BufferSignature, inputs: PolicyInputs) -> Decision:
    """Modes static (the named ranks come when the others have done their part) and native."""
    if inputs.options.mode == "native":
        return Decision(NATIVE, (), "mode native")
    if not buffer.can_be_begun:
        return Decision(NATIVE, (), useless(buffer, inputs))
    always = Epoch(0, 0, 0, inputs.options.late, math.inf)
    return _for_late(buffer.nbytes, always, "named by the user", inputs)


def predicted(
    operation: int, buffer: BufferSignature, epoch: Epoch, inputs: PolicyInputs
) -> Decision:
    """Mode predict: how an all-reduce of this buffer runs in ``epoch``."""
    if epoch.late and is_to_compare(operation):
        return Decision(NATIVE, (), TO_COMPARE)
    reason = epoch.reason or NO_STRAGGLER
    decision = _for_late(buffer.nbytes, epoch, reason, inputs)
    if decision.late:
        return decision
    return waited_for(operation, buffer, epoch, decision.reason, inputs)


def eager(now_s: float, state: OperationState, inputs: PolicyInputs) -> Decision | Later:
    """Start without missing ranks when no other came for the threshold, once links are free."""
    threshold_s = inputs.options.threshold_s

    def wait(missing: Ranks, passed_s: float, free_s: float) -> tuple[Wait, str]:
        nbytes = state.buffer.nbytes
        schedules = inputs.times(len(missing), nbytes, made=inputs.made)
        patient = break_even(inputs.together_s(nbytes), schedules)
        if threshold_s is None or patient.candidate == NATIVE:
            return _patient(patient, state, free_s), PATIENCE
        tau_s = free_s + threshold_s
        if state.started:  # they have been missing for those before, too
            tau_s = max(free_s, threshold_s)
        return Wait(tau_s, patient.candidate), f"missing for more than {threshold_s * 1e3:g} ms"

    return _decide(now_s, state, inputs, wait)


def auto(now_s: float, state: OperationState, inputs: PolicyInputs) -> Decision | Later:
    """Start without who is missing when that is faster on average, by the delays seen lately."""

    def wait(missing: Ranks, passed_s: float, free_s: float) -> tuple[Wait, str]:
        nbytes = state.buffer.nbytes
        together_s = inputs.together_s(nbytes)
        schedules = inputs.times(len(missing), nbytes, made=inputs.made)
        hardly_s = HARDLY * inputs.native_s(nbytes) if _are_ways_tried(state, inputs) else 0.0
        # to the next arrival, not the last: who is about to come is not left out with who is late
        its_own = inputs.history.lateness(missing, LATELY, first=True)
        anybodys = inputs.history.gaps(len(missing), LATELY)
        for delays_s, whose in ((its_own, "its own"), (anybodys, "anybody's")):
            possible_s = [delay_s for delay_s in delays_s if delay_s > passed_s]
            if len(possible_s) >= ENOUGH:
                chosen = learned(delays_s, passed_s, together_s, schedules, free_s)
                if statistics.median(possible_s) < hardly_s:
                    chosen = _not_before(free_s + hardly_s, chosen)
                return chosen, f"missing, and likely to come much later by {whose} recent delays"

        patient = _patient(break_even(together_s, schedules), state, free_s)
        return _not_before(free_s + hardly_s, patient), f"{PATIENCE}, delays unknown"

    return _decide(now_s, state, inputs, wait)


def _not_before(least_s: float, wait: Wait) -> Wait:
    """The same, but it lasts so long at least."""
    return Wait(max(wait.tau_s, least_s), wait.candidate)


def _are_ways_tried(state: OperationState, inputs: PolicyInputs) -> bool:
    """Whether it is being found out how an operation like this one is fastest on time."""
    of_class = state.buffer.of_class
    return inputs.has_ways_on_time and are_tried(state.epoch, state.operation, of_class)


RULES: dict[str, Rule] = {"eager": eager, "auto": auto}  # where a coordinator decides


def _patient(wait: Wait, state: OperationState, free_s: float) -> Wait:
    """A break-even wait behind other operations: it counts from when the links are free.

    Where those before were started without a rank that is still missing, that rank has to have been
    missing for all their waits and this one: so together they lose no more than twice their cost.
    """
    tau_s = free_s + wait.tau_s
    if state.started:
        tau_s = max(free_s, (state.started + 1) * wait.tau_s)
    return Wait(tau_s, wait.candidate)


def _decide(
    now_s: float,
    state: OperationState,
    inputs: PolicyInputs,
    wait: Callable[[Ranks, float, float], tuple[Wait, str]],
) -> Decision | Later:
    if not state.absent:
        if is_to_compare(state.operation):
            return Decision(NATIVE, (), TO_COMPARE)
        return waited_for(state.operation, state.buffer, state.epoch, ALL_HERE, inputs)
    if state.absent > inputs.most_late or is_to_compare(state.operation):
        return Later(math.inf)

    missing = state.missing
    last_s = state.last_s
    passed_s = max(0.0, now_s - last_s)
    free_s = max(0.0, state.free_s - last_s)
    chosen, reason = wait(missing, passed_s, free_s)
    if chosen.candidate == NATIVE:
        return Later(math.inf)
    if now_s < last_s + chosen.tau_s:
        return Later(last_s + chosen.tau_s)

    if len(missing) > 1:
        missing = tuple(sorted(missing, key=inputs.history.usual_order().index))
    return Decision(chosen.candidate, missing, reason)


def _for_late(nbytes: int, epoch: Epoch, reason: str, inputs: PolicyInputs) -> Decision:
    """The best candidate for the epoch's late ranks, which come that much after the others."""
    if not epoch.late:
        return Decision(NATIVE, (), reason)

    def beyond_s(schedule: Times) -> float:
        """From the late rank's arrival to the end."""
        return max(0.0, schedule.waiting_s - epoch.delay_s) + schedule.completion_s

    schedules = inputs.times(len(epoch.late), nbytes, corrected=False, made=epoch.made)
    best = min(schedules, key=beyond_s, default=None)
    if best is None:
        return Decision(NATIVE, (), f"there is no schedule for {len(epoch.late)} late ranks")
    if beyond_s(best) >= (1 - LEAST_GAIN) * inputs.native_s(nbytes, corrected=False):
        return Decision(NATIVE, (), "small, or hardly late: no schedule would be faster")
    return Decision(best.candidate, epoch.late, reason)


def next_epoch(current: Epoch, nbytes: int, inputs: PolicyInputs) -> Epoch | None:
    """What to propose for operations of ``nbytes``, if anything; version and first are open."""
    on_time = inputs.on_time.settled(current.on_time, inputs.ways_on_time)
    proposed = msgspec.structs.replace(current, on_time=on_time)
    if len(inputs.history) >= LEAST:
        proposed = _by_history(proposed, nbytes, inputs)

    def what_counts(epoch: Epoch) -> tuple[object, ...]:
        made = epoch.made if epoch.late else 0
        return set(epoch.late), epoch.coordinator, epoch.quiet, made, epoch.on_time

    return proposed if what_counts(proposed) != what_counts(current) else None


def _by_history(current: Epoch, nbytes: int, inputs: PolicyInputs) -> Epoch:
    """What follows for the next epoch from who was late lately."""
    proposed = current
    if inputs.options.mode == "predict":
        late, delay_s, reason = predicted_late(nbytes, inputs)
        proposed = msgspec.structs.replace(
            current, late=late, delay_s=delay_s, reason=reason, made=inputs.made
        )
    elif inputs.options.mode == "auto":
        is_quiet = quiet(nbytes, inputs, was_quiet=current.quiet)
        proposed = msgspec.structs.replace(current, quiet=is_quiet)
    coordinator = better_coordinator(current.coordinator, nbytes, inputs)
    return msgspec.structs.replace(proposed, coordinator=coordinator)


def predicted_late(nbytes: int, inputs: PolicyInputs) -> tuple[tuple[int, ...], float, str]:
    """Who will be late (in the order of arrival), by how much, and why.

    Of all sets of ranks that mostly come after all others, the one whose schedule gains most.
    """
    history = inputs.history
    together_s = inputs.together_s(nbytes)
    best: tuple[tuple[int, ...], float, str] = ((), 0.0, NO_STRAGGLER)
    best_gain_s = LEAST_GAIN * together_s
    order = history.usual_order()
    for count in range(1, inputs.most_late + 1):
        late = tuple(order[-count:])
        gaps_s = history.lateness(late, RECENT, first=True)
        delay_s = statistics.median(history.lateness(late, RECENT))
        schedules = inputs.times(count, nbytes, made=inputs.made)
        if not schedules or sum(gap_s > 0 for gap_s in gaps_s) < MOSTLY * len(gaps_s):
            continue
        gain_s = delay_s + together_s - min(schedule.total_s(delay_s) for schedule in schedules)
        if gain_s > best_gain_s:
            best = (late, delay_s, "late in most of the last operations")
            best_gain_s = gain_s
    return best


def quiet(nbytes: int, inputs: PolicyInputs, *, was_quiet: bool) -> bool:
    """Mode auto: whether ranks had better wait for each other, without asking.

    Asking costs a decision's latency per operation. It pays where the best wait would have gained
    more than that, on average over the last ``LATELY`` operations. Once they ask, half of it will
    do to go on: near the limit, changing over and back would cost more than either.
    """
    together_s = inputs.together_s(nbytes)
    gain_s = 0.0
    for late in range(1, inputs.most_late + 1):
        # ``learned`` wants a lateness above 0, and ranks may have come at the very same time
        gaps = [max(gap, SHORTEST_S) for gap in inputs.history.gaps(late, LATELY)]
        schedules = inputs.times(late, nbytes, made=inputs.made)
        wait = learned(gaps, 0.0, together_s, schedules)
        gain_s = max(gain_s, wait.native_s - wait.mean_s)
    limit_s = LEAST_GAIN * together_s + inputs.correction.latency_s
    if not was_quiet:
        limit_s /= 2
    return gain_s < limit_s


def better_coordinator(current: int, nbytes: int, inputs: PolicyInputs) -> int:
    """The current one, unless it is often the last, by ``LEAST_GAIN`` of an operation or more."""
    behind = inputs.history.lateness((current,), RECENT)
    counts_s = LEAST_GAIN * inputs.native_s(nbytes)
    if len(behind) < LEAST or sum(gap > counts_s for gap in behind) <= OFTEN * len(behind):
        return current
    return inputs.history.usual_order()[0]
