"""One fault in a job of many ranks: its kind and its culprits are told, whatever else happened."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.explain.dumps import Dump
from latecomer.runtime.explain.job import job_of
from latecomer.runtime.explain.records import record_of
from latecomer.runtime.explain.verdicts import verdicts
from tests.runtime.explain.jobs import Model, Step

STEPS = 6
KINDS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter")


def groups_of(ranks):
    half = ranks // 2
    return {
        "world": tuple(range(ranks)),
        "tp0": tuple(range(half)),
        "tp1": tuple(range(half, ranks)),
        "dp0": tuple(range(0, ranks, 2)),
        "dp1": tuple(range(1, ranks, 2)),
    }


def programs_of(groups, dice):
    """By rank: the same few operations in each step, as training does them; a barrier ends it."""
    plan = []
    for family in ("tp", "dp", "world"):
        for _ in range(dice.randint(1, 2)):
            plan.append((family, dice.choice(KINDS), dice.randint(1, 40) * 4))
    programs = {rank: [] for rank in groups["world"]}
    for _ in range(STEPS):
        for family, kind, numel in plan:
            for name, ranks in groups.items():
                if name.startswith(family):
                    for rank in ranks:
                        programs[rank].append(Step(name, kind, numel))
        for program in programs.values():
            program.append(Step("world", "barrier", 0))
    return programs


def told(model, *, without=(), world_size=None):
    """The verdicts on a model's dumps."""
    records = {
        rank: record_of(msgspec.convert(dump, Dump))
        for rank, dump in model.dumps().items()
        if rank not in without
    }
    return verdicts(job_of(records, world_size))


def job(seed, ranks=6):
    """(groups, programs, a rank, where in its program there is no barrier, dice)."""
    dice = random.Random(seed)
    groups = groups_of(ranks)
    programs = programs_of(groups, dice)
    rank = dice.randrange(ranks)
    places = [
        place
        for place, step in enumerate(programs[rank])
        if step.kind != "barrier" and place > len(programs[rank]) // 2
    ]
    return groups, programs, rank, dice.choice(places), dice


SEEDS = st.integers(0, 10**6)
RANKS = st.sampled_from([4, 6, 8])


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS)
def test_a_job_without_fault_is_ok(seed, ranks):
    groups, programs, *_ = job(seed, ranks)
    (verdict,) = told(Model(groups, programs).run())
    assert (verdict.kind, verdict.ranks) == ("ok", ())


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS)
def test_a_rank_that_sleeps_is_absent(seed, ranks):
    groups, programs, rank, place, _ = job(seed, ranks)
    programs[rank].insert(place, Step(kind="sleep"))
    (verdict,) = told(Model(groups, programs).run())
    assert (verdict.kind, verdict.ranks) == ("absent", (rank,))
    assert verdict.waiting == ranks - 1
    assert f"rank {rank}" in verdict.witness[-1]


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS)
def test_a_rank_that_is_killed_has_no_dump(seed, ranks):
    groups, programs, rank, place, _ = job(seed, ranks)
    programs[rank].insert(place, Step(kind="sleep"))
    (verdict,) = told(Model(groups, programs).run(), without=[rank], world_size=ranks)
    assert (verdict.kind, verdict.ranks) == ("nodump", (rank,))


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS)
def test_a_device_that_is_stuck_is_told_from_those_that_wait(seed, ranks):
    groups, programs, rank, place, _ = job(seed, ranks)
    step = programs[rank][place]
    programs[rank][place] = replace(step, kind="all_reduce", is_stuck=True)
    for other in set(groups[step.group]) - {rank}:
        where = [at for at, each in enumerate(programs[other]) if each == step]
        own = [
            at for at, each in enumerate(programs[rank][: place + 1]) if each.group == step.group
        ]
        nth = [at for at, each in enumerate(programs[other]) if each.group == step.group]
        assert where
        programs[other][nth[len(own) - 1]] = replace(step, kind="all_reduce")
    (verdict,) = told(Model(groups, programs).run())
    assert (verdict.kind, verdict.ranks) == ("stuck", (rank,))


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS, st.sampled_from(["numel", "dtype"]))
def test_a_rank_with_another_tensor_deviates(seed, ranks, what):
    groups, programs, rank, place, _ = job(seed, ranks)
    step = programs[rank][place]
    changed = {"numel": step.numel + 4} if what == "numel" else {"dtype": "Double"}
    programs[rank][place] = replace(step, **changed)
    (verdict,) = told(Model(groups, programs).run())
    assert (verdict.kind, verdict.ranks) == ("mismatch", (rank,))


@settings(max_examples=30, deadline=None)
@given(SEEDS, RANKS)
def test_two_that_receive_from_each_other_first_are_named(seed, ranks):
    groups, programs, rank, _, dice = job(seed, ranks)
    other = dice.choice([each for each in range(ranks) if each != rank])
    for one, peer in ((rank, other), (other, rank)):
        at = next(at for at, step in enumerate(programs[one]) if step.kind == "barrier") + 1
        receive = Step("world", "recv", 16, peer=peer)
        programs[one][at:at] = [receive, replace(receive, kind="send")]
    (verdict,) = told(Model(groups, programs).run())
    assert (verdict.kind, verdict.ranks) == ("p2p", tuple(sorted((rank, other))))


@pytest.mark.parametrize("ranks", [4, 8])
def test_groups_in_different_orders_are_a_cycle(ranks):
    """Rank 0 does its group's operation before that of the world, the others after it."""
    groups = {"world": tuple(range(ranks)), "pair": (0, 1)}
    both = [Step("pair", numel=16), Step("world", numel=32)]
    programs = {rank: [Step("world", numel=32)] * STEPS for rank in range(2, ranks)}
    programs[0] = both * STEPS
    programs[1] = both * (STEPS - 1) + both[::-1]
    (verdict,) = told(Model(groups, programs).run())
    assert (verdict.kind, verdict.ranks) == ("cycle", (1,))
