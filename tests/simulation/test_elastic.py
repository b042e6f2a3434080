"""Replicas that die, stop and come back at named places: all holds; what does not is noticed."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from latecomer.runtime.elastic import succession, view
from latecomer.runtime.elastic.agreement import Agreement
from latecomer.runtime.elastic.group import Group
from latecomer.runtime.elastic.sums import FloatSums
from latecomer.runtime.health.checks import LifeCheck
from latecomer.runtime.host import host
from tests.simulation.campaign import elastic, shrunk
from tests.simulation.elastic.execution import execute
from tests.simulation.elastic.plan import (
    PLACES,
    CutOff,
    Die,
    LoseStore,
    Moment,
    Raise,
    Return,
    Stop,
    drawn,
    read,
)
from tests.simulation.swarm import run_stretch

SEEDS = range(60)


def test_what_must_hold_does_with_each_kind_of_fault():
    stretch = run_stretch(elastic(), SEEDS, end_s=1e300)
    assert stretch.failing == []
    assert stretch.executions == len(SEEDS)


def test_the_same_seed_is_the_same_execution():
    assert execute(drawn(4)).trace == execute(drawn(4)).trace != execute(drawn(5)).trace


def test_plans_have_all_kinds_of_faults_in_all_places_and_can_be_printed():
    plans = [drawn(seed) for seed in range(500)]
    faults = [fault for plan in plans for fault in plan.faults]
    assert {type(fault) for fault in faults} == {Die, Stop, Raise, CutOff, LoseStore}
    assert {fault.moment.place for fault in faults} == set(PLACES)
    assert [read(plan.as_json()) for plan in plans[:20]] == plans[:20]


def test_who_comes_in_the_place_of_one_that_has_died_as_all_connected_is_not_taken_for_it():
    execution = execute(drawn(456))
    assert [type(fault) for _, fault in execution.fired] == [Die]
    assert execution.problems == []


@pytest.mark.parametrize("seed", [115, 202, 2693, 13365])
def test_one_that_dies_as_the_others_agree_or_connect_is_done_without(seed):
    assert execute(drawn(seed)).problems == []


def test_who_was_taken_in_as_the_store_was_lost_is_not_taken_in_again():
    execution = execute(drawn(15883))
    assert any(isinstance(fault, LoseStore) for _, fault in execution.fired)
    assert execution.problems == []


def test_a_replica_whose_own_loop_raises_holds_nobody_up():
    execution = execute(drawn(2403))
    assert any(isinstance(fault, Raise) for _, fault in execution.fired)
    assert execution.problems == []


GROWING = msgspec.structs.replace(
    drawn(0),
    replicas=4,
    steps=12,
    microbatches=4,
    bits="any",
    mode="native",
    has_profile=True,
    compute_s=0.1,
    late_s=(0.0,) * 4,
    silence_s=0.3,
    join_timeout_s=30.0,
    returns=(Return(replica=1, after_s=0.1),),
    faults=(Die(1, Moment("sums", time=1, is_after=False, delay_s=0.0), resets=False),),
    lost=0.0,
)
"""Replica 1 dies and comes back, and nothing else happens."""


@pytest.mark.parametrize("late_s", [0.4, 0.8])
def test_who_shows_life_is_waited_for_when_the_group_grows(late_s, monkeypatch):
    """For longer than the time of silence; without that it is left behind, which is noticed."""
    grow = Group.grow

    def late(group, number):
        if group.replica == 3:
            host.sleep(late_s)
        grow(group, number)

    monkeypatch.setattr(Group, "grow", late)
    execution = execute(GROWING)
    assert execution.problems == []
    assert execution.told[4].was_in
    monkeypatch.setattr(succession, "REPORTS_SHARE", GROWING.silence_s / GROWING.join_timeout_s)
    assert any("left behind" in problem for problem in execute(GROWING).problems)


def test_who_is_silent_when_the_group_grows_holds_nobody_up_for_long(monkeypatch):
    """But for the time of silence and a look; if nobody asks for signs of life, it does."""
    stop = Stop(3, Moment("agrees", time=1, is_after=False, delay_s=0.0), for_s=100.0)
    plan = msgspec.structs.replace(GROWING, faults=(*GROWING.faults, stop))

    def longest_step_s(execution):
        times_s = execution.told[0].times_s
        return max(after - before for before, after in itertools.pairwise(times_s))

    execution = execute(plan)
    assert stop in [fault for _, fault in execution.fired]
    assert execution.told[4].was_in
    assert execution.problems == []
    assert longest_step_s(execution) < 4 * plan.silence_s
    monkeypatch.setattr(succession._Agreeing, "look_who_is_silent", lambda agreeing: None)
    assert longest_step_s(execute(plan)) > succession.REPORTS_SHARE * plan.join_timeout_s


def _noticed(seeds):
    return [problem for seed in seeds for problem in execute(drawn(seed)).problems]


def test_who_leaves_and_is_waited_for_is_noticed(monkeypatch):
    judge = LifeCheck.judge

    def blind(check, answers, now_s):
        if len(answers) < check.world_size:
            return judge(check, answers, now_s)
        check._heard_s = now_s
        return None

    monkeypatch.setattr(Group, "abort", lambda group, reason: None)  # which would tell them
    monkeypatch.setattr(LifeCheck, "judge", blind)
    assert any("may pass" in problem for problem in _noticed([2397, 2403]))


def test_a_view_that_starts_on_some_alone_is_noticed(monkeypatch):
    def always(staying, starts):
        return view.Start(is_ready=True)

    monkeypatch.setattr(succession, "joint_start", always)
    assert _noticed([2693, *range(20)])


def test_one_that_reports_and_dies_and_is_never_asked_for_is_noticed(monkeypatch):
    monkeypatch.setattr(Agreement, "present", Agreement.silent)
    assert _noticed([115, *range(20)])


def test_a_microbatch_that_nobody_takes_over_is_noticed(monkeypatch):
    def not_taken_over(before, step, staying):
        return view.dealt(len(before.owners), before.size)

    monkeypatch.setattr(view, "_taken_over", not_taken_over)
    assert _noticed(range(20))


def test_a_contribution_that_counts_twice_is_noticed_and_its_plan_made_smaller(monkeypatch):
    average = FloatSums.average

    def twice(sums, bucket, kept, result):
        return average(sums, bucket, [*kept, kept[0]] if len(kept) > 3 else kept, result)

    monkeypatch.setattr(FloatSums, "average", twice)
    plans = [plan for plan in map(drawn, range(60)) if plan.bits == "any" and plan.faults]
    plan = next(plan for plan in plans if "other parameters" in execute(plan).summary)
    smallest = shrunk(elastic(), plan)
    assert smallest.steps < plan.steps
    assert execute(smallest).problems
