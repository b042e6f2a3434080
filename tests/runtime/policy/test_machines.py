"""Machines of several ranks: found as torchrun tells them, and two-level schedules for them."""

from __future__ import annotations

import dataclasses
import os
from functools import partial

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from latecomer.runtime.executor.load import load
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy import dispatcher
from latecomer.runtime.policy.candidates import candidates
from latecomer.runtime.policy.cost_model import (
    AlphaBeta,
    MachinesProfile,
    Phase,
    Profile,
    ScheduleCandidate,
    TwoLevelCompletion,
    times,
)
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.machines import ALONE, ranks_per_machine
from latecomer.runtime.policy.options import Options
from latecomer.synth.candidates import two_level_completion_costs, two_level_schedules
from latecomer.synth.twolevel.cost import level_costs
from latecomer.verify.core.check import check
from latecomer.verify.core.schedule import Round, Schedule
from latecomer.verify.core.verdict import Verdict
from tests.runtime.simulated import on_hosts
from tests.runtime.spawning import on_ranks
from tests.simulation.execution import made_once

RANKS = 4
PER_MACHINE = 2


def _as_torchrun(rank, world_size, per_machine):
    """The variables of torchrun for a rank of machines with ``per_machine`` ranks each."""
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_machine),
        "GROUP_RANK": str(rank // per_machine),
    }


def _found_by_all(monkeypatch, variables_of_rank):
    """What :func:`ranks_per_machine` returns on ranks with these variables, one after the other.

    The environment is one process's, so each rank but the last sends what it would have sent.
    """
    store = HashStore()
    last = len(variables_of_rank) - 1
    for rank, variables in enumerate(variables_of_rank):
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        group = StoreExchange(store, rank, last + 1, timeout_s=10.0)
        if rank == last:
            return ranks_per_machine(group)
        impatient = dataclasses.replace(group, timeout_s=0.01)
        with pytest.raises(Exception, match="did not join"):
            ranks_per_machine(impatient)
    raise AssertionError("there are no ranks")


def test_machines_are_what_torchrun_tells(monkeypatch):
    variables = [_as_torchrun(rank, 6, 3) for rank in range(6)]

    assert _found_by_all(monkeypatch, variables) == 3


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param([{}] * 4, id="no torchrun"),
        pytest.param([_as_torchrun(rank, 4, 4) for rank in range(4)], id="one machine"),
        pytest.param([_as_torchrun(rank, 4, 1) for rank in range(4)], id="one rank on each"),
        pytest.param([_as_torchrun(rank, 8, 2) for rank in range(4)], id="part of the job"),
        pytest.param([_as_torchrun(3 - rank, 4, 2) for rank in range(4)], id="numbered otherwise"),
        pytest.param([_as_torchrun(rank, 3, 2) for rank in range(3)], id="unequal machines"),
        pytest.param(
            [
                _as_torchrun(0, 4, per_machine=1),
                _as_torchrun(1, 4, per_machine=1),
                _as_torchrun(2, 4, per_machine=2),
                _as_torchrun(3, 4, per_machine=2),
            ],
            id="unequal numbers",
        ),
    ],
)
def test_without_such_machines_ranks_are_alone(monkeypatch, variables):
    assert _found_by_all(monkeypatch, variables) == ALONE


def test_the_schedules_are_candidates_of_machines_only():
    group = StoreExchange(HashStore(), 0, 8, timeout_s=10.0)
    _, on_machines = candidates(group, 1, ranks_per_machine=4)
    elsewhere = StoreExchange(HashStore(), 0, 8, timeout_s=10.0)
    _, without = candidates(elsewhere, 1)

    names = [candidate.name for candidate in on_machines if candidate.two_level is not None]
    assert names == ["two-level, k = 2", "two-level, k = 16"]
    assert [candidate.name for candidate in without if candidate.two_level is not None] == []


def _crossings(schedule: Schedule, per_machine: int) -> list[int]:
    """By round, how many transfers go from one machine to another."""
    return [_crosses(transfers, per_machine) for _, _, transfers in schedule.located_rounds()]


def _crosses(transfers: Round, per_machine: int) -> int:
    """How many of a round's transfers go from one machine to another."""
    return sum(transfer.src // per_machine != transfer.dst // per_machine for transfer in transfers)


@given(st.sampled_from([(4, 2), (8, 4), (8, 2), (9, 3), (12, 4)]), st.data())
def test_whoever_is_late_the_network_carries_as_little(shape, data):
    ranks, per_machine = shape
    late = data.draw(st.integers(0, ranks - 1))

    for _, schedule in two_level_schedules(ranks, per_machine):
        verified = load(schedule)
        renamed = verified.for_late(late)

        assert renamed.late == (late,)
        assert check(renamed).verdict is Verdict.PROVED
        assert _crossings(renamed, per_machine) == _crossings(schedule, per_machine)


def test_files_that_count_with_other_machines_are_told_apart():
    (_, schedule), *_ = two_level_schedules(8, 4)
    flat = dataclasses.replace(load(schedule), schedule=_with_meta(schedule, {}))
    of_four = dataclasses.replace(load(schedule), schedule=_with_meta(schedule, {"nodes": 4}))

    assert load(schedule).ranks_per_machine == 4
    assert (flat.ranks_per_machine, of_four.ranks_per_machine) == (1, 2)
    assert len({load(schedule).digest, flat.digest, of_four.digest}) == 3


def _with_meta(schedule: Schedule, meta: dict[str, object]) -> Schedule:
    return msgspec.structs.replace(schedule, meta=meta)


def test_rounds_are_counted_by_the_links_that_they_use():
    (_, schedule), *_ = two_level_schedules(4, 2)
    between, inside = two_level_completion_costs(schedule, 2)

    completion = [phase for phase in schedule.phases if not phase.absent]
    rounds = [transfers for phase in completion for transfers in phase.rounds]
    crossing = [transfers for transfers in rounds if _crosses(transfers, per_machine=2)]
    assert between.messages == len(crossing)
    assert inside.messages == len(rounds) - len(crossing)
    assert between.share == between.messages * type(between.share)(1, schedule.chunks)


def test_level_costs_and_counting_by_hand_agree_on_where_nothing_crosses():
    (_, schedule), *_ = two_level_schedules(4, 2)
    one_machine = dataclasses.replace(_machine_of(schedule), nodes=1, per_node=4)

    between, inside = level_costs(schedule, one_machine)

    assert between.messages == 0
    completion = [phase for phase in schedule.phases if not phase.absent]
    assert inside.messages == sum(len(phase.rounds) for phase in completion)


def _machine_of(schedule):
    from latecomer.synth.cost import Link
    from latecomer.synth.twolevel.machine import Machine

    link = Link(alpha_s=0.0, bandwidth=1.0)
    return Machine(nodes=2, per_node=2, network_ports=1, inner=link, outer=link)


COMPLETION = TwoLevelCompletion(PER_MACHINE, between=Phase(3, 1.5), inside=Phase(2, 1.0))
TWO_LEVEL = ScheduleCandidate("two levels", 1, Phase(4, 2.0), Phase(5, 2.5), two_level=COMPLETION)
FLAT = ScheduleCandidate("flat", 1, Phase(1, 1.0), Phase(2, 2.0))
INSIDE = AlphaBeta(1e-5, 1e-10)
BETWEEN = AlphaBeta(1e-4, 1e-8)


def _profile(on_time, per_machine=PER_MACHINE):
    machines = MachinesProfile(per_machine, INSIDE, BETWEEN, on_time)
    return Profile(RANKS, AlphaBeta(1e-5, 1e-8), AlphaBeta(1e-5, 2e-8), machines)


def test_the_completion_counts_both_kinds_of_links_and_the_wait_is_the_rest():
    nbytes = 10**6
    profile = _profile({"two levels": AlphaBeta(1e-3, 3e-8)})

    flat, two_level = times((FLAT, TWO_LEVEL), profile, 1, nbytes)

    assert flat.completion_s == pytest.approx(2e-5 + 2.0 * nbytes * 2e-8)
    in_network_s = 3 * 1e-4 + 1.5 * nbytes * 1e-8
    inside_s = 2 * 1e-5 + 1.0 * nbytes * 1e-10
    assert two_level.completion_s == pytest.approx(in_network_s + inside_s)
    assert two_level.total_s(0.0) == pytest.approx(1e-3 + nbytes * 3e-8)


def test_no_completion_takes_longer_than_the_whole_did():
    profile = _profile({"two levels": AlphaBeta(1e-6, 1e-12)})

    (two_level,) = times((TWO_LEVEL,), profile, 1, 10**6)

    assert two_level.waiting_s == 0
    assert two_level.completion_s == pytest.approx(1e-6 + 1e-12 * 10**6)


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(_profile({"others": AlphaBeta(1e-6, 1e-12)}), id="of other schedules"),
        pytest.param(_profile({"two levels": AlphaBeta(1e-6, 1e-12)}, 4), id="of other machines"),
        pytest.param(Profile(RANKS, AlphaBeta(1e-5, 1e-8), AlphaBeta(1e-5, 2e-8)), id="of none"),
    ],
)
def test_a_profile_that_cannot_tell_leaves_two_levels_out(profile):
    (flat,) = times((FLAT, TWO_LEVEL), profile, late=1, nbytes=10**6)

    assert flat.candidate == 0


@on_ranks(RANKS)
def test_a_job_on_machines_measures_them(rank, size, store):
    os.environ.update(_as_torchrun(rank, size, PER_MACHINE))
    options = Options("static", late=(1,))
    measured = AllReduceDispatcher(store, rank, size, options=options, timeout_s=60.0)

    assert measured.profile.machines is not None
    assert set(measured.profile.machines.on_time) == {"two-level, k = 2", "two-level, k = 16"}
    measured.close()


TWO_LEVELS_ALONE = MachinesProfile(
    PER_MACHINE,
    AlphaBeta(1e-9, 1e-15),
    AlphaBeta(1e-9, 1e-15),
    {"two-level, k = 2": AlphaBeta(1e-8, 1e-14)},
)
"""By it nothing else is worth it."""


def _run_two_levels(rank, size, store, late):
    profile = Profile(size, AlphaBeta(1e-2, 1e-9), AlphaBeta(1.0, 1e-6), TWO_LEVELS_ALONE)
    options = Options("static", late=(late,))
    engine = AllReduceDispatcher(
        store, rank, size, options=options, profile=profile, timeout_s=60.0
    )
    work = engine.submit(torch.full((1000,), float(rank + 1)))
    assert work.wait()[[0, -1]].tolist() == [10.0, 10.0]
    assert {record.way for record in engine.records} == {"two-level, k = 2"}
    engine.close()


@pytest.mark.parametrize("late", range(RANKS))
def test_every_late_rank_of_machines_gets_the_sum_over_two_levels(late, monkeypatch):
    """Simulated hosts have one environment, so they are told what each rank's would say."""
    monkeypatch.setattr(dispatcher, "ranks_per_machine", lambda group: PER_MACHINE)
    with made_once():
        on_hosts(RANKS, lambda job: partial(_run_two_levels, late=late))
