"""Mode auto against the best mode in hindsight, in simulated training jobs.

No fixed mode is the best in all of them, which the simulation has to show, too.
"""

from __future__ import annotations

import functools
import math
import random

import pytest

from latecomer.runtime.policy.messages import Decision
from latecomer.runtime.policy.options import MODES, Options
from latecomer.runtime.policy.rules import RULES, Later
from tests.runtime.policy.network import Network

SIZE = 8
LATE = 5
BUCKETS = 3  # operations of a step
STEPS = 36  # in scenario "switching" 30 with a straggler, 6 without
LEARNING = 5  # steps that do not count
BYTES = 560_000  # of a bucket
TRANSFER_S = 0.56  # S*beta of a bucket, by the profile of `tests.runtime.policy.network`
DELAY_S = 1.2 * BUCKETS * TRANSFER_S  # longer than a step's buckets take to transfer
SCENARIOS = ("persistent", "random", "tails", "nobody", "switching")

REGRET = 1.03  # auto's mean step is at most so many times the best mode's
OVERHEAD = 1.03  # and native's
OVERHEAD_IN_ERROR = 1.05  # the same with a profile that is wrong by 20 or 30 %

# what operations take, native and by schedule, over the profile
LINKS = {"as profiled": (1.0, 1.0), "schedules slower": (1.0, 1.3), "native slower": (1.2, 1.0)}


def _delays_s(name, step):
    """Seconds by which each rank is late in a step."""
    dice = random.Random(f"{name} {step} 0")
    if name == "tails":
        return [min(2.0, 0.02 * dice.paretovariate(1.2)) for _ in range(SIZE)]
    if name == "switching":
        name = ("persistent", "nobody")[step // 30 % 2]
    late = {"persistent": LATE, "random": dice.randrange(SIZE), "nobody": None}[name]
    return [DELAY_S * (rank == late) for rank in range(SIZE)]


@functools.cache
def _mean_s(mode, name, slower=(1.0, 1.0)):
    """Seconds per step, once a mode has learned."""
    options = Options(mode, late=(LATE,) if mode == "static" else ())
    network = Network(
        SIZE,
        options,
        operations=STEPS * BUCKETS,
        window=BUCKETS,
        longest_s=0.02,
        slower=slower,
        nbytes=lambda *_: BYTES,
    )
    delays_s = [_delays_s(name, step) for step in range(STEPS)]

    def lateness(rank, number):
        step, bucket = divmod(number, BUCKETS)
        work_s = 0.02 + 0.03 * network.dice.random()
        return work_s + delays_s[step][rank] if bucket == 0 else work_s

    network.lateness = lateness
    network.run(limit_s=math.inf)

    learned_s = network.done_s[LEARNING * BUCKETS - 1]
    return (network.done_s[-1] - learned_s) / (STEPS - LEARNING)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("links", LINKS)
def test_auto_is_near_the_best_and_hardly_ever_loses_to_native(name, links):
    modes = MODES if links == "as profiled" else ("native", "auto")
    means = {mode: _mean_s(mode, name, LINKS[links]) for mode in modes}

    overhead = OVERHEAD if links == "as profiled" else OVERHEAD_IN_ERROR
    assert means["auto"] <= overhead * means["native"], means
    if links == "as profiled":
        assert means["auto"] <= REGRET * min(means.values()), means


def test_no_fixed_mode_is_near_the_best_everywhere():
    for mode in ("native", "static", "predict"):
        assert any(_mean_s(mode, name) > 1.1 * _mean_s("auto", name) for name in SCENARIOS), mode


def test_the_simulation_notices_who_starts_needlessly(monkeypatch):
    def hasty(now_s, state, inputs):
        late = state.missing or (LATE,)
        return Decision(0, late, "hasty") if len(late) == 1 else Later(math.inf)

    native_s = _mean_s("native", "nobody")
    monkeypatch.setitem(RULES, "eager", hasty)
    assert _mean_s.__wrapped__("eager", "nobody") > OVERHEAD * native_s
