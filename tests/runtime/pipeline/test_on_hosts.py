"""Pipelines on simulated hosts: gradients, lost ranks, links that break, a store that is gone."""

from __future__ import annotations

import contextlib

import pytest

from latecomer.runtime.host import host
from latecomer.runtime.pipeline import Adaptation, Pipeline, load
from latecomer.runtime.pipeline.staging import HostStaging
from latecomer.verify.errors import RankFailure
from tests.runtime.pipeline.models import loss_fn, model, run_step
from tests.runtime.pipeline.test_gradients import (
    MICROBATCHES,
    RANKS,
    SCENARIOS,
    matches,
    schedule,
)
from tests.runtime.simulated import NEVER_S, die, on_hosts, stop
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

SOON_S = 8.0
FAR_S = 600.0
VICTIM = 1
PLAN = load(schedule(one_f_one_b(RANKS, MICROBATCHES)))


def pipeline(rank, store, timeout_s=SOON_S, plan=PLAN, **options):
    """A rank's pipeline, and the blocks of all stages."""
    blocks = model(plan.schedule.stages)
    own_blocks = {stage: blocks[stage] for stage in plan.stages_of(rank)}
    made = Pipeline(own_blocks, plan, loss_fn, store=store, timeout_s=timeout_s, **options)
    return made, blocks


@pytest.mark.parametrize("name", SCENARIOS)
def test_gradients_are_those_of_a_plain_loop(name):
    programs, faults = SCENARIOS[name]
    plan = load(schedule(programs))

    def body(rank, size, store):
        running, blocks = pipeline(rank, store, 60.0, plan, faults=faults)
        assert matches(running, blocks, 0)
        assert matches(running, blocks, 1)
        running.close()
        assert running.failure is None

    on_hosts(RANKS, lambda job: body)


def raise_here(job, rank):
    """As a module of this rank's stage."""
    raise ValueError("a trap")


FAULTS = {
    "dies": die,
    "is silent": lambda job, rank: stop(job, rank, NEVER_S),
    "raises": raise_here,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("culprit", range(RANKS))
def test_whoever_dies_stops_or_raises_is_named_by_all(culprit, fault):
    plan = load(schedule(zero_bubble(RANKS, MICROBATCHES)))

    def made(job):
        def body(rank, size, store):
            running, blocks = pipeline(rank, store, plan=plan)
            assert matches(running, blocks, 0)
            host.sleep(1.0)  # all have stepped by then
            if rank == culprit:
                spring = FAULTS[fault]
                blocks[rank].register_forward_pre_hook(lambda *_: spring(job, rank))

            for step in (1, 2):  # who has failed stays so
                with pytest.raises((RuntimeError, RankFailure)) as failed:
                    run_step(running, step)
                is_cause = rank == culprit and step == 1
                if is_cause:
                    assert isinstance(failed.value.__cause__, ValueError)
                else:
                    assert failed.value.ranks == (culprit,)
            running.close()

        return body

    on_hosts(RANKS, made, victims=[culprit] if fault != "raises" else [])


@pytest.mark.parametrize("method", ["host", "empty", "land"])
def test_a_link_that_breaks_is_named(method, monkeypatch):
    """A thread that moves messages breaks on one rank."""
    real = getattr(HostStaging, method)

    def made(job):
        def breaks(*args):
            if job.world.rank == VICTIM:
                raise KeyError("injected")
            return real(*args)

        monkeypatch.setattr(HostStaging, method, breaks)
        monkeypatch.setattr(HostStaging, "direct", False)

        def body(rank, size, store):
            running, _ = pipeline(rank, store, FAR_S)
            with pytest.raises(RankFailure, match="injected") as failed:
                run_step(running, 0)
            running.close()
            return failed.value.ranks

        return body

    for outcomes in on_hosts(RANKS, made):
        assert {outcome.result for outcome in outcomes.values()} == {(VICTIM,)}


@pytest.mark.parametrize("adaptation", [None, Adaptation()], ids=["plain", "adaptive"])
@pytest.mark.parametrize("trouble", ["is_gone", "is_stopped"])
def test_a_pipeline_whose_store_is_gone_ends(trouble, adaptation):
    """After the first step the store goes; further steps and the end come all the same."""

    def made(job):
        def body(rank, size, store):
            running, _ = pipeline(rank, store, adaptation=adaptation)
            run_step(running, 0)
            host.sleep(1.0)  # all have stepped by then
            setattr(store.shared, trouble, True)
            host.sleep(1.0)

            began_s = host.monotonic()
            with pytest.raises(RankFailure) if adaptation else contextlib.nullcontext():
                for _ in range(3):  # what one rank had of the store by then may do for a step
                    run_step(running, 0)  # it needs no store, if it does not adapt
            running.close()
            assert host.monotonic() - began_s < 10 * SOON_S

        return body

    on_hosts(RANKS, made)
