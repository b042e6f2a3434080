"""What is made of what arrived, and what the ranks decide by their losses: the same everywhere."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from latecomer.runtime.optireduce.loss import LossStats, StepRecord
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.sync import Replicas, SyncPoint
from latecomer.runtime.optireduce.udp.bucket import Bucket, ScratchPool, shard_bounds
from latecomer.runtime.optireduce.udp.data_path import NUMPY
from latecomer.runtime.work import AllReduceWork

PAYLOAD = 32
PATH = NUMPY  # the data path; tests of the compiled one put that here


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 50),
    st.integers(2, 5),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_each_element_is_the_mean_of_what_came_of_it(numel, size, dtype, seed, share, average):
    """So it is unbiased, whatever is lost. Combined run by run, of so many datagrams each."""
    rank = seed % size
    run = seed % 3 + 1
    dice = torch.Generator().manual_seed(seed)
    per_datagram = PAYLOAD // dtype.itemsize
    datagrams = -(-numel // per_datagram)
    gradients = torch.randn(size, numel, generator=dice).to(dtype)
    senders = sorted(set(range(size)) - {rank})
    arrived = np.zeros((size - 1, datagrams), bool)
    pieces = np.zeros((size - 1, datagrams, PAYLOAD), np.uint8)
    for row, sender in enumerate(senders):
        arrived[row] = torch.rand(datagrams, generator=dice).numpy() >= share
        padded = torch.zeros(datagrams * per_datagram, dtype=dtype)
        padded[:numel] = gradients[sender]
        pieces[row] = padded.view(torch.uint8).numpy().reshape(datagrams, PAYLOAD)
        pieces[row, ~arrived[row]] = 0xAB  # whatever was in memory

    result = gradients[rank].clone()
    for first in range(0, datagrams, run):
        own = result.view(torch.uint8).numpy()[first * PAYLOAD : (first + run) * PAYLOAD]
        arrived_of_run = arrived[:, first : first + run].copy()
        PATH.average(own, dtype, rank, pieces, first, arrived_of_run, average)

    wide = torch.promote_types(dtype, torch.float32)
    tolerance = 1e-5 if dtype.itemsize > 2 else 1e-2
    for element in range(numel):
        contributions = [gradients[rank, element].item()]
        for row, sender in enumerate(senders):
            if arrived[row, element // per_datagram]:
                contributions.append(gradients[sender, element].item())
        exact = np.mean(contributions) * (1 if average else size)
        expected = torch.tensor(exact, dtype=wide).to(dtype).item()
        assert result[element].item() == pytest.approx(expected, rel=tolerance, abs=1e-5)


def test_a_lost_piece_of_a_sum_is_the_own_contribution_times_the_ranks():
    """Rank 1's shard: 20 elements, 3 datagrams, of which the second is lost."""
    options = Options(datagram_bytes=PAYLOAD + 48 + 48)  # 80 bytes of payload: 20 elements
    work = AllReduceWork(0, torch.ones(80), False, 0.0)
    bucket = Bucket(work, step=0, index=0, rank=0, bounds=shard_bounds(80, 2), options=options)
    bucket.lay_out(ScratchPool())
    bucket.open(0.0, 1.0)
    bucket.arrived[1][1][0] = True
    bucket.finish()
    assert work.tensor.tolist() == [1.0] * 60 + [2.0] * 20


def _record(step, lost):
    """A step of 100 datagrams, of which so many of rank 2's were lost."""
    record = StepRecord(step, submitted=1, operations=1, sealed=True)
    record.due = [50, 50]
    record.lost = [lost, 0]
    record.by_rank.update({2: lost})
    return record


def test_the_losses_skips_above_one_threshold_and_stops_above_another():
    losses = LossStats(Options(skip_loss=0.1, stop_loss=0.3, stop_window=3), rank=0)
    assert losses.close_step(_record(0, 5)) is None
    assert not losses.skip
    assert losses.close_step(_record(1, 40)) is None
    assert losses.skip
    assert losses.close_step(_record(2, 40)) is None  # mean 28 %

    losses.dropped = {"stale": 7}
    losses.dropped_from = {(1, "stale"): 7}
    error = losses.close_step(_record(3, 40))
    assert error.ranks == (2,)
    assert "40.0%" in str(error)
    assert "7 stale, 7 of them from rank 1" in str(error)
    assert losses.totals["skipped"] == 3
    assert losses.loss(2) == pytest.approx(0.4)


def test_a_step_is_complete_when_it_is_sealed_and_all_is_over():
    losses = LossStats(Options(), 0)
    stage = SimpleNamespace(due=4, lost=1, end=None, senders={})
    protocol = SimpleNamespace(
        bound_s=1.0,
        estimators=[SimpleNamespace(expected_s=0.1, percent=10)] * 2,
        incast=SimpleNamespace(own=1, allowed=2),
        sender=SimpleNamespace(pacers={1: SimpleNamespace(rate=5.0, rtt_s=0.1)}),
    )
    bucket = SimpleNamespace(step=0, stages=(stage, stage), seed=None)

    losses.submitted(0, 0, False)
    losses.ended(bucket, protocol, 0.2)
    assert not losses.steps

    losses.submitted(0, 1, True)
    losses.ended(bucket, protocol, 0.2)
    assert [(record.operations, record.loss) for record in losses.steps] == [(2, 0.25)]


def _reliable(*first_answers):
    """Three ranks; the two others answer this at first, and the second time with times of 1 s."""
    answers_left = [first_answers]

    def gather(values):
        answers = answers_left.pop() if answers_left else [[1.0] * len(values)] * 2
        return [values, *answers]

    return SimpleNamespace(gather=gather)


def _losses(loss=0.0):
    return SimpleNamespace(loss=lambda steps: loss)


def test_the_bound_is_that_of_the_largest_bucket_over_all_ranks():
    sync_point = SyncPoint(Options(bound_floor_s=0.0))
    assert sync_point.bound_s == Options().warmup_bound_s
    for size, stage_s in [(500, 7.0), (9000, 3.0), (9000, 2.0), (40, 9.0), (9000, 0.5)]:
        sync_point.took(size, stage_s)
    # of each rank as many times count as the rank with the fewest has: 2
    sync_point.decide(_reliable([2.0, 0.0], [5.0, 0.0]), _losses())
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
