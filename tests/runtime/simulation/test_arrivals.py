"""When ranks come: as in a trace, or drawn; the same for the same seed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from pathlib import Path

import pytest

from latecomer.runtime.simulation.arrivals import OfTrace, OneLate, Tails, read, usual_straggler
from latecomer.verify.errors import ArgumentError

FILES = Path(__file__).parents[3] / "examples" / "arrivals"


def steps_of(arrivals, count):
    return [arrivals.step(number) for number in range(count)]


def last(step):
    return step.offsets_s.index(max(step.offsets_s))


@pytest.mark.parametrize("name", ["AR", "SE", "ST"])
def test_a_job_of_as_many_ranks_runs_the_trace_in_its_order(name):
    trace = read(FILES / f"{name}.json")
    steps = steps_of(OfTrace(trace, trace.ranks, seed=1), len(trace.steps) + 1)
    for step, traced in zip(steps, trace.steps, strict=False):
        assert step == (traced.first_s, traced.offsets_s)
        assert step.last_s == pytest.approx(traced.first_s + max(traced.offsets_s))
    assert steps[-1] == steps[0]


def test_a_straggler_of_a_trace_stays_one_rank_of_a_larger_job():
    trace = read(FILES / "AR.json")
    assert trace.straggler == 0
    steps = steps_of(OfTrace(trace, 64, seed=3), 40)
    assert len({last(step) for step in steps}) == 1
    for step in steps:
        assert sum(offset_s > 10.0 for offset_s in step.offsets_s) == 1
        assert min(step.offsets_s) == 0.0


def test_without_a_straggler_many_ranks_are_last_and_offsets_are_the_traces_own():
    trace = read(FILES / "SE.json")
    assert trace.straggler is None
    steps = steps_of(OfTrace(trace, 256, seed=3), 60)
    assert max(Counter(map(last, steps)).values()) < 20
    drawn = [offset_s for step in steps for offset_s in step.offsets_s]
    traced = [offset_s for step in trace.steps for offset_s in step.offsets_s]
    assert statistics.median(drawn) == pytest.approx(statistics.median(traced), rel=0.25)
    assert max(drawn) <= max(traced)


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: OfTrace(read(FILES / "SE.json"), 40, seed),
        lambda seed: Tails(40, seed, 1.2, 0.02),
        lambda seed: OneLate(40, seed, 1.0, is_random=True),
    ],
)
def test_a_seed_is_a_series_of_steps(make):
    assert steps_of(make(1), 10) == steps_of(make(1), 10)
    assert steps_of(make(1), 10) != steps_of(make(2), 10)


def test_tails_are_paretos_and_cut():
    delays = []
    for step in steps_of(Tails(100, 7, 2.0, 0.1), 100):
        delays += [step.compute_s + offset_s for offset_s in step.offsets_s]
    assert min(delays) >= 0.1
    assert max(delays) <= 5.0
    share = sum(delay > 0.2 for delay in delays) / len(delays)
    assert share == pytest.approx(0.25, abs=0.02)  # (1/2) ** shape


def test_one_rank_is_late_always_the_last_or_another():
    assert {last(step) for step in steps_of(OneLate(8, 1, 0.5), 20)} == {7}
    assert len({last(step) for step in steps_of(OneLate(8, 1, 0.5, is_random=True), 50)}) > 4
    assert usual_straggler(OneLate(8, 1, 0.5), 20) == 7


def test_what_is_no_file_of_arrivals_is_refused(tmp_path):
    good = json.loads((FILES / "ST.json").read_text())

    def refused(content):
        path = tmp_path / "arrivals.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ArgumentError) as error:
            read(path)
        return str(error.value)

    with pytest.raises(ArgumentError, match="no file of arrivals"):
        read(tmp_path / "missing.json")
    assert "no file of arrivals" in refused("{")
    assert "no file of arrivals" in refused({"format": "latecomer-arrivals"})
    assert "must be latecomer-arrivals 1 in s, not latecomer-arrivals 2" in refused(
        good | {"version": 2}
    )
    assert "in ms" in refused(good | {"unit": "ms"})
    assert "two ranks and one step" in refused(good | {"steps": []})
    assert "an offset of 0 or more for each of 3 ranks" in refused(good | {"ranks": 3})
    good["steps"][4]["offsets_s"][0] = -1.0
    assert f"step {good['steps'][4]['step']} must have" in refused(good)
