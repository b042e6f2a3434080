"""The modes that decide each operation on arrival: eager and auto. Pure functions.

The coordinator asks them at each arrival and when a wait is over. ``Gathered`` is the state: who is
there, and since when, on the coordinator's own clock (no alignment enters).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.policy.cost_model import Times, times
from runtime.policy.decision import NATIVE, Decision, Later
from runtime.policy.history import LATELY
from runtime.policy.options import Options, PolicyInputs
from runtime.policy.thresholds import Wait, break_even, learned, worth_s

PATIENCE = "missing for longer than a needless start would cost"
ENOUGH = 4
"""Of them those in which somebody was as late as now, before lateness is learned from."""


@dataclass
class Gathered:
    """The arrivals at one operation, so far.

    Attributes:
        operation: its number.
        bytes: size of the buffer.
        heard: per rank, when the coordinator heard of its arrival.
        free_s: when the links will have done the operations before, by prediction.
        started: how many operations before have been started and still miss somebody.
    """

    operation: int
    bytes: int
    heard: dict[int, float] = field(default_factory=dict)
    free_s: float = -math.inf
    started: int = 0

    def missing(self, size: int) -> tuple[int, ...]:
        """The ranks that have not come."""
        return tuple(rank for rank in range(size) if rank not in self.heard)


Rule = Callable[[float, Gathered, PolicyInputs, Options], Decision | Later]


def small(size: int, knowledge: PolicyInputs, options: Options) -> str:
    """Why nothing can be gained on a buffer of ``size`` bytes; empty if something can.

    From what all ranks share (no history, no experience): every rank finds the same.
    """
    native_s = knowledge.profile.native_s(size)
    for late in range(1, options.at_most_late(knowledge.size) + 1):
        if worth_s(native_s, times(knowledge.candidates, knowledge.profile, late, size)):
            return ""
    return "small: no schedule would be faster, whoever is late"


def eager(
    now_s: float, state: Gathered, knowledge: PolicyInputs, options: Options
) -> Decision | Later:
    """Start without who is missing when nobody has come for the threshold.

    It counts from when the links are free: before that nothing is gained by a start.
    """

    def wait(missing: tuple[int, ...], passed_s: float, free_s: float) -> tuple[Wait, str]:
        found = break_even(*_priced(state, knowledge, len(missing)))
        if options.threshold_s is None or found.candidate == NATIVE:
            return _patient(found, state, free_s), PATIENCE
        threshold_s = options.threshold_s
        tau_s = max(free_s, threshold_s) if state.started else free_s + threshold_s
        chosen = Wait(tau_s, found.candidate)
        return chosen, f"missing for more than {options.threshold_s * 1e3:g} ms"

    return _decide(now_s, state, knowledge, options, wait)


def auto(
    now_s: float, state: Gathered, knowledge: PolicyInputs, options: Options
) -> Decision | Later:
    """Start without who is missing when that is faster on average, by the delays seen lately."""

    def wait(missing: tuple[int, ...], passed_s: float, free_s: float) -> tuple[Wait, str]:
        native_s, found = _priced(state, knowledge, len(missing))
        history = knowledge.history
        # to the next arrival, not the last: who is about to come is not left out with who is late
        its_own = history.separation(missing, LATELY)
        anybodys = history.gaps(len(missing), LATELY)
        for seen, whose in ((its_own, "its own"), (anybodys, "anybody's")):
            if sum(each > passed_s for each in seen) >= ENOUGH:
                chosen = learned(seen, passed_s, native_s, found, free_s)
                return chosen, f"missing, and likely to come much later by {whose} recent delays"
        return _patient(break_even(native_s, found), state, free_s), f"{PATIENCE}, delays unknown"

    return _decide(now_s, state, knowledge, options, wait)


RULES: dict[str, Rule] = {"eager": eager, "auto": auto}


def _priced(state: Gathered, knowledge: PolicyInputs, late: int) -> tuple[float, list[Times]]:
    """N, and W and C of the candidates for so many late ranks, by experience."""
    factor = knowledge.experience.factor(False)
    found = times(knowledge.candidates, knowledge.profile, late, state.bytes, factor)
    return knowledge.native_s(state.bytes), found


def _patient(wait: Wait, state: Gathered, free_s: float) -> Wait:
    """A break-even wait behind other operations.

    It counts from when the links are free. Where those before were started without somebody who is
    still missing, that one has been missing since, and their waits and this one's together are what
    it has to have been: then all of them together lose no more than twice what they would cost.
    """
    tau_s = free_s + wait.tau_s
    if state.started:
        tau_s = max(free_s, (state.started + 1) * wait.tau_s)
    return Wait(tau_s, wait.candidate)


def _decide(
    now_s: float,
    state: Gathered,
    knowledge: PolicyInputs,
    options: Options,
    wait: Callable[[tuple[int, ...], float, float], tuple[Wait, str]],
) -> Decision | Later:
    missing = state.missing(knowledge.size)
    if not missing:
        return Decision(NATIVE, (), "all ranks have arrived")
    if not state.heard or len(missing) > options.at_most_late(knowledge.size):
        return Later(math.inf)
    last_s = max(state.heard.values())
    passed_s, free_s = max(0.0, now_s - last_s), max(0.0, state.free_s - last_s)
    chosen, reason = wait(missing, passed_s, free_s)
    if chosen.candidate == NATIVE:
        return Later(math.inf)
    if now_s < last_s + chosen.tau_s:
        return Later(last_s + chosen.tau_s)
    usual = knowledge.history.usual_order()
    late = tuple(sorted(missing, key=usual.index))
    return Decision(chosen.candidate, late, reason)
