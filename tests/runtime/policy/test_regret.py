"""Mode auto against the best mode in hindsight, in simulated training jobs.

No fixed mode is the best in all of them, which the simulation has to show, too.
"""

from __future__ import annotations

import functools
import math
import statistics

import pytest

from runtime.policy.messages import Decision
from runtime.policy.options import MODES, Options
from runtime.policy.rules import RULES, Later
from tests.runtime.policy.job import LATE, Job, scenario

STEPS, LEARNING = 36, 5
SCENARIOS = ("persistent", "random", "tails", "nobody", "switching")
REGRET, OVERHEAD, OVERHEAD_IN_ERROR = 1.03, 1.03, 1.05
LINKS = {"as profiled": (1.0, 1.0), "schedules slower": (1.0, 1.3), "native slower": (1.2, 1.0)}


@functools.cache
def _mean_s(mode, name, slower=(1.0, 1.0)):
    """Seconds per step, once a mode has learned."""
    job = Job(Options(mode, late=(LATE,) if mode == "static" else ()), slower=slower)
    taken = [job.step(scenario(name, step)) for step in range(STEPS)]
    return statistics.fmean(taken[LEARNING:])


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
        missing = state.missing(inputs.world_size)
        return Later(math.inf) if len(missing) > 1 else Decision(0, missing or (LATE,), "hasty")

    monkeypatch.setitem(RULES, "eager", hasty)
    job = Job(Options("eager"))
    taken = [job.step(scenario("nobody", step)) for step in range(STEPS)]
    assert statistics.fmean(taken) > OVERHEAD * _mean_s("native", "nobody")
