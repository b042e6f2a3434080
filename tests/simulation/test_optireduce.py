"""OptiReduce on simulated hosts: what must hold does, and is seen not to hold."""

from __future__ import annotations

import msgspec
import pytest

from latecomer.runtime.optireduce import engine
from latecomer.runtime.optireduce.loss import StepRecord
from latecomer.runtime.optireduce.udp.bucket import Bucket
from latecomer.runtime.optireduce.udp.loop import UdpLoop
from latecomer.verify.errors import LatecomerError
from tests.simulation.campaign import allreduces
from tests.simulation.execution import execute
from tests.simulation.plan import Kill, Stop, drawn
from tests.simulation.swarm import run_stretch

SEEDS = range(8)


def plan_of(seed, **changes):
    return msgspec.structs.replace(drawn(seed, kinds=("optireduce",)), **changes)


def test_all_holds_for_some_seeds():
    stretch = run_stretch(allreduces(("optireduce",)), SEEDS, end_s=1e300)
    assert [text for _, text in stretch.failing] == []
    assert stretch.executions == len(SEEDS)


def test_something_is_lost_and_something_is_not():
    lossies = []
    for seed in SEEDS:
        told = execute(plan_of(seed)).told
        lossies += [says.lossy for says in told.values()]

    assert any(lossy.lost for lossy in lossies)
    assert any(lossy.results and not lossy.lost for lossy in lossies)


def test_a_sum_that_does_not_say_what_is_missing_is_noticed(monkeypatch):
    monkeypatch.setattr(Bucket, "scale_missing", lambda bucket, rank, number: None)
    assert any("in place of" in execute(plan_of(seed)).summary for seed in SEEDS)


def test_a_count_that_leaves_one_out_is_noticed(monkeypatch):
    real = StepRecord.add

    def forgets_one(record, *others):
        real(record, *others)
        record.lost[1] = max(0, record.lost[1] - 1)

    monkeypatch.setattr(StepRecord, "add", forgets_one)
    assert any("are counted" in execute(plan_of(seed)).summary for seed in SEEDS)


@pytest.mark.parametrize("resets", [False, True])
def test_a_rank_that_is_killed_is_named_and_no_other(resets):
    for operation in range(3):
        kill = Kill(rank=1, at_s=0.001, resets=resets, operation=operation)
        plan = plan_of(operation, ranks=4, faults=(kill,), lateness_s=(0.0,) * 4, drifts=(0.0,) * 4)
        plan = msgspec.structs.replace(plan, sizes=(100,) * 30, timeout_s=10.0)
        execution = execute(plan)
        assert execution.problems == []
        failures = [execution.told[rank].failure for rank in (0, 2, 3)]
        assert any(failures)
        assert {failure.ranks for failure in failures if failure} == {(1,)}


def test_a_tensor_is_its_callers_again_once_its_operation_has_failed(monkeypatch):
    """Datagrams that came after a failure were still written into it."""
    seeds = (170, 483, 787)
    assert [execute(plan_of(seed)).problems for seed in seeds] == [[], [], []]
    monkeypatch.setattr(UdpLoop, "abort", lambda loop: None)
    assert any("changed after it failed" in execute(plan_of(seed)).summary for seed in seeds)


def test_a_rank_that_was_stopped_for_too_long_gets_an_error_of_ours():
    """Its wait for a sync point was over before it had heard that the others had given up."""
    calm = plan_of(108, bent={}, pause=0.0, faults=(Stop(rank=2, at_s=0.2255, for_s=90.0),))
    execution = execute(calm)
    assert execution.problems == []
    assert execution.told[2].errors or isinstance(execution.outcomes[2].error, LatecomerError)


def test_who_closes_tells_who_has_lost_its_shard_that_it_is_gone(monkeypatch):
    """Nothing is sent twice; without an answer the other one would wait, and then fail."""
    plans = [plan_of(seed, sizes=(5, 100, 5)) for seed in (300154, 300937, 302486, 302742)]

    def errors():
        for plan in plans:
            execution = execute(plan)
            assert execution.problems == []
            for says in execution.told.values():
                yield from says.errors.values()

    assert not list(errors())
    monkeypatch.setattr(engine, "LINGER_S", 0)
    assert any("closed while others wait" in text for text in errors())
