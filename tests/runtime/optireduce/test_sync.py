"""What the ranks decide together: when, from what, and the same everywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from runtime.optireduce.options import Options
from runtime.optireduce.sync import Replicas, SyncPoint


def _reliable(*others):
    """Three ranks; the two others say what is given, the second time times of 1 s."""
    said = [others]

    def gather(values):
        given = said.pop() if said else [[1.0] * len(values)] * 2
        return [values, *given]

    return SimpleNamespace(gather=gather)


def _losses(loss=0.0):
    return SimpleNamespace(loss=lambda steps: loss)


def test_the_bound_is_that_of_the_largest_bucket_over_all_ranks():
    sync_point = SyncPoint(Options(bound_floor_s=0.0))
    assert sync_point.bound_s == Options().warmup_bound_s
    for size, stage_s in [(500, 7.0), (9000, 3.0), (9000, 2.0), (40, 9.0), (9000, 0.5)]:
        sync_point.took(size, stage_s)
    sync_point.decide(_reliable([2.0, 0.0], [5.0, 0.0]), _losses())  # as many as the fewest have: 2
    assert sync_point.bound_s == 2.0 * Options().bound_factor
    sync_point.took(9000, 5.0)  # from now on among the latest three
    sync_point.decide(_reliable([3.0, 0.0], [3.0, 0.0]), _losses())
    assert sync_point.bound_s == 5.0 * Options().bound_factor


def test_the_bound_stays_where_nothing_is_known_or_it_is_set_by_hand():
    sync_point = SyncPoint(Options(warmup_bound_s=0.4))
    sync_point.took(40, 0.1)
    sync_point.decide(_reliable([0.0, 0.0], [1.0, 0.0]), _losses())
    assert sync_point.bound_s == 0.4
    sync_point = SyncPoint(Options(bound_s=0.5))
    sync_point.took(40, 0.1)
    sync_point.decide(_reliable([1.0, 0.0], [1.0, 0.0]), _losses())
    assert sync_point.bound_s == 0.5


@pytest.mark.parametrize(
    ("when", "loss", "expected"),
    [("auto", 0.03, True), ("auto", 0.01, False), ("off", 0.9, False), ("on", 0.0, True)],
)
def test_the_transform_goes_by_the_rank_that_lost_most(when, loss, expected):
    sync_point = SyncPoint(Options(warmup_steps=4, resync_steps=10, hadamard=when))
    sync_point.decide(_reliable([0.0, 0.0], [0.0, loss]), _losses(0.015))
    assert sync_point.hadamard is expected


def test_sync_points_come_at_the_same_steps_everywhere():
    sync_point = SyncPoint(Options(warmup_steps=4, reliable_steps=1, resync_steps=10))
    assert [step for step in range(40) if sync_point.is_due(step)] == [4, 14, 24, 34]
    sync_point = SyncPoint(Options(warmup_steps=0, bound_s=1.0, resync_steps=0))
    assert not any(sync_point.is_due(step) for step in range(40))


@pytest.mark.parametrize(("elsewhere", "drift"), [(0.1, 3.0 / 32**0.5), (0.9, 0.9)])
def test_a_drift_is_the_largest_distance_from_the_mean(elsewhere, drift):
    """Three others hold (4, 0, 3), so that the mean is (4, 0, 4)."""
    answers = [[0.0, 0.0], [elsewhere]]
    reliable = SimpleNamespace(
        average=lambda own: (own + 3 * torch.tensor([4.0, 0.0, 3.0])) / 4,
        gather=lambda values: [values, answers.pop(0)],
    )
    parameter = nn.Parameter(torch.tensor([4.0, 0.0, 7.0]))
    assert Replicas([parameter], reliable).resync() == pytest.approx(drift)
    assert parameter.tolist() == [4.0, 0.0, 4.0]
