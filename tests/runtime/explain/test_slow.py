"""Who is slow: named where it is so, and nobody where ranks come last in turn."""

from __future__ import annotations

import random

import pytest

from latecomer.runtime.explain.slow import Came, Together, slow_verdicts

STEP_S = 0.1


def job(ranks, delays_s, *, steps=60, seed=1, jitter_s=0.002, groups=None):
    """Steps of one all-reduce in each group in turn, of which every rank computes before the first.

    Args:
        delays_s: by rank, what it computes longer than the others.
        groups: each a list of lists: who reduces together; default: all.
    """
    drawn = random.Random(seed)
    phases = groups or [[list(range(ranks))]]
    free_s = [0.0] * ranks
    operations = []
    for _ in range(steps):
        for rank in range(ranks):
            free_s[rank] += STEP_S + drawn.uniform(0, jitter_s) + delays_s.get(rank, 0.0)
        for phase, together in enumerate(phases):
            for number, members in enumerate(together):
                came = {rank: Came(free_s[rank], 0.0001) for rank in members}
                name = f"{phase}.{number}"
                operations.append(Together(group=name, kind="all_reduce", came=came))
                ended_s = max(each.arrived_s for each in came.values()) + 0.001
                for rank in members:
                    free_s[rank] = ended_s
    return operations


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("ranks", "slow"), [(2, {1}), (4, {0}), (8, {5}), (8, {2, 3}), (16, {15})])
def test_ranks_that_compute_longer_are_named(ranks, slow, seed):
    (verdict,) = slow_verdicts(job(ranks, dict.fromkeys(slow, 0.03), seed=seed))
    assert (verdict.kind, set(verdict.ranks)) == ("slow", slow)
    assert verdict.waiting == ranks - len(slow)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_jitter_alone_blames_nobody(ranks, seed):
    assert slow_verdicts(job(ranks, {}, seed=seed, jitter_s=0.05)) == []


def test_what_hardly_matters_is_not_told():
    assert slow_verdicts(job(4, {2: 0.003}, jitter_s=0.0)) == []
    assert len(slow_verdicts(job(4, {2: 0.03}, jitter_s=0.0))) == 1


@pytest.mark.parametrize("seed", range(10))
def test_who_waits_for_a_slow_rank_elsewhere_is_not_blamed(seed):
    """Pairs reduce first, then the first and the second ones of the pairs among themselves."""
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    across = [[0, 2, 4, 6], [1, 3, 5, 7]]
    verdicts = slow_verdicts(job(8, {4: 0.03}, seed=seed, groups=[pairs, across]))
    assert {rank for verdict in verdicts for rank in verdict.ranks} == {4}


def test_a_few_operations_say_nothing():
    assert len(slow_verdicts(job(4, {2: 0.03}, steps=40))) == 1
    assert slow_verdicts(job(4, {2: 0.03}, steps=39)) == []


@pytest.mark.parametrize("shortened_by", [1, 100])
def test_a_moment_says_nothing(shortened_by):
    """The same job, all times shorter: a rank waits so long for a processor that has other work."""
    operations = [
        Together(
            group=operation.group,
            kind=operation.kind,
            came={
                rank: Came(came.arrived_s / shortened_by, 0.0)
                for rank, came in operation.came.items()
            },
        )
        for operation in job(4, {2: 0.03})
    ]
    assert len(slow_verdicts(operations)) == int(shortened_by == 1)
