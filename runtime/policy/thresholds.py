"""How long those who are there wait for who is missing, before they start without it.

A question of the kind "rent or buy". With N, W, C as in ``cost_model`` and a rank that comes L s
after the others, a wait that is given up after tau takes, from the others' arrival,

    L <= tau      L + N                            it came in time: the native all-reduce
    L > tau       tau + max(L - tau, W) + C        started without it

*Break-even*, where nothing is known of L: tau = W + C - N, what a start just before its arrival
loses. So no operation loses more than that twice over. *Learned*: the tau with the least mean time
over the L seen lately, given that L is longer than what has passed already. Source of both: ski
rental (Karlin et al., 1988; with known distributions, Karlin et al., 1994). Deviations: the price
of buying, W + C - N, depends on L; and while the links are busy with operations before (until
``free_s``) nothing is gained by starting, so neither way begins to count before that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.policy.cost_model import LEAST_GAIN, Times
from runtime.policy.messages import NATIVE


@dataclass(frozen=True)
class Wait:
    """Wait until ``tau_s`` after the last arrival (by default for all), then run ``candidate``.

    ``mean_s`` and ``native_s``: predicted time of this wait, and of waiting for all, from the
    others' arrival, with the lateness that is expected (NaN at break-even).
    """

    tau_s: float = math.inf
    candidate: int = NATIVE
    mean_s: float = math.nan
    native_s: float = math.nan


def worth_s(native_s: float, found: Sequence[Times]) -> float:
    """What a schedule saves at best, when the rank comes late enough; 0 if nothing."""
    best = min((each.completion_s for each in found), default=math.inf)
    return max(0.0, native_s - best) if best < (1 - LEAST_GAIN) * native_s else 0.0


def break_even(native_s: float, found: Sequence[Times]) -> Wait:
    """The wait where nothing is known of the lateness."""
    if not worth_s(native_s, found):
        return Wait()

    def price_s(each: Times) -> float:
        return max(0.0, each.waiting_s + each.completion_s - native_s)

    best = min(found, key=lambda each: each.completion_s + price_s(each))
    worth = best.completion_s < (1 - LEAST_GAIN) * native_s
    return Wait(price_s(best), best.candidate) if worth else Wait()


def learned(
    lateness_s: Sequence[float],
    passed_s: float,
    native_s: float,
    found: Sequence[Times],
    free_s: float = 0.0,
) -> Wait:
    """The best wait for a lateness drawn from those of ``lateness_s`` that exceed ``passed_s``.

    At least one must. A wait for all is taken unless a schedule gains ``LEAST_GAIN``.
    """
    seen = np.sort(np.asarray([each for each in lateness_s if each > passed_s], dtype=float))
    assert len(seen)
    taus = np.concatenate(([passed_s], seen[:-1]))  # after the last one nobody is missing
    in_time = seen[None, :] <= taus[:, None]
    native_means = np.maximum(seen, free_s) + native_s
    mean_for_all_s = float(native_means.mean())
    best = Wait(mean_s=mean_for_all_s, native_s=mean_for_all_s)
    limit_s = mean_for_all_s - LEAST_GAIN * native_s
    begins = np.maximum(taus, free_s)[:, None]
    for each in found:
        started = begins + np.maximum(seen[None, :] - begins, each.waiting_s) + each.completion_s
        means = np.where(in_time, native_means[None, :], started).mean(1)
        place = int(means.argmin())
        if means[place] < min(limit_s, best.mean_s):
            tau_s, mean_s = float(taus[place]), float(means[place])
            best = Wait(tau_s, each.candidate, mean_s, mean_for_all_s)
    return best
