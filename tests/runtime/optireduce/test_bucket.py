"""What is made of what arrived: the mean by datagram, its expectation, and the statistics."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.optireduce.bucket import Bucket, combine, shard_bounds
from runtime.optireduce.loss import LossStats, StepRecord
from runtime.optireduce.options import Options
from runtime.work import AllReduceWork

PAYLOAD = 32


def _case(numel, size, rank, dtype, seed, share, mean=0.0):
    """(contributions of all ranks to a shard of so many elements, received, arrived)"""
    dice = torch.Generator().manual_seed(seed)
    gradients = (torch.randn(size, numel, generator=dice) + mean).to(dtype)
    raw = gradients.view(torch.uint8).numpy().reshape(size, -1)
    count = -(-raw.shape[1] // PAYLOAD)
    received, arrived = {}, {}
    for sender in set(range(size)) - {rank}:
        padded = np.zeros(count * PAYLOAD, np.uint8)
        padded[: raw.shape[1]] = raw[sender]
        arrived[sender] = torch.rand(count, generator=dice).numpy() >= share
        received[sender] = padded.reshape(count, PAYLOAD)
        received[sender][~arrived[sender]] = 0xAB  # whatever was in memory
    return gradients, received, arrived


def _combine(gradients, rank, received, arrived, average, piece):
    """Run by run, so many datagrams each."""
    each = PAYLOAD // gradients.element_size()
    count = -(-gradients.shape[1] // each)
    means = [torch.zeros(0)]
    for run in (slice(first, first + piece) for first in range(0, count, piece)):
        own = gradients[rank, run.start * each : run.stop * each]
        rows, there = ({r: one[run] for r, one in of.items()} for of in (received, arrived))
        means.append(combine(own, rank, rows, there, average))
    return torch.cat(means).double().numpy()


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
    rank = seed % size
    gradients, received, arrived = _case(numel, size, rank, dtype, seed, share)
    found = _combine(gradients, rank, received, arrived, average, piece=seed % 3 + 1)
    each = PAYLOAD // dtype.itemsize
    for element in range(gradients.shape[1]):
        came = [gradients[rank, element].item()]
        came += [gradients[s, element].item() for s in arrived if arrived[s][element // each]]
        right = np.mean(came) * (1 if average else size)
        assert found[element] == pytest.approx(right, rel=1e-5, abs=1e-5)


def test_the_mean_is_unbiased_over_losses_and_data():
    """2000 draws of losses and of data with mean 3: their mean is within five deviations of 3."""
    results = []
    for seed in range(2000):
        gradients, received, arrived = _case(8, 4, seed % 4, torch.float32, seed, 0.4, mean=3)
        results.append(_combine(gradients, seed % 4, received, arrived, True, piece=2))
    mean, deviation = np.mean(results, axis=0), np.std(results, axis=0)
    assert (abs(mean - 3) < 5 * deviation / 2000**0.5).all()


def test_a_lost_piece_of_a_sum_is_the_own_contribution_times_the_ranks():
    """Rank 1's shard: 20 elements, 3 datagrams, of which the second is lost."""
    chosen = Options(datagram_bytes=PAYLOAD + 48 + 48)  # 80 bytes of payload: 20 elements
    work = AllReduceWork(0, torch.ones(80), False, 0.0)
    bucket = Bucket(work, 0, 0, 0, shard_bounds(80, 2), chosen)
    bucket.encode()
    bucket.open(0.0, 1.0)
    bucket.stages[1].senders[1].arrived[0] = True
    bucket.finish()
    assert work.tensor.tolist() == [1.0] * 60 + [2.0] * 20


def _record(step, lost):
    record = StepRecord(step, submitted=1, operations=1, sealed=True)
    record.due, record.lost = [50, 50], [lost, 0]
    record.by_rank.update({2: lost})
    return record


def test_the_losses_skips_above_one_threshold_and_stops_above_another():
    losses = LossStats(Options(skip_loss=0.1, stop_loss=0.3, stop_window=3), rank=0)
    assert losses.close_step(_record(0, 5)) is None
    assert not losses.skip
    assert losses.close_step(_record(1, 40)) is None
    assert losses.skip
    assert losses.close_step(_record(2, 40)) is None  # mean 28 %
    losses.dropped, losses.dropped_from = {"stale": 7}, {(1, "stale"): 7}
    error = losses.close_step(_record(3, 40))
    assert error.ranks == (2,)
    assert "40.0%" in str(error)
    assert "7 stale, 7 of them from rank 1" in str(error)
    assert losses.totals["skipped"] == 3
    assert losses.loss(2) == pytest.approx(0.4)


def test_a_step_is_complete_when_it_is_sealed_and_all_is_over():
    losses, stage = LossStats(Options(), 0), SimpleNamespace(due=4, lost=1, end=None, senders={})
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
