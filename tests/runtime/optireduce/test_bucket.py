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
    rank, run = seed % size, seed % 3 + 1
    dice, each = torch.Generator().manual_seed(seed), PAYLOAD // dtype.itemsize
    gradients = torch.randn(size, numel, generator=dice).to(dtype)
    count = -(-numel // each)
    received, arrived = {}, {}
    for sender in set(range(size)) - {rank}:
        arrived[sender] = torch.rand(count, generator=dice).numpy() >= share
        padded = torch.zeros(count * each, dtype=dtype)
        padded[:numel] = gradients[sender]
        received[sender] = padded.view(torch.uint8).numpy().reshape(count, PAYLOAD)
        received[sender][~arrived[sender]] = 0xAB  # whatever was in memory
    means = [torch.zeros(0)]
    for first in range(0, count, run):
        own = gradients[rank, first * each : (first + run) * each]
        rows, there = (
            {r: one[first : first + run] for r, one in of.items()} for of in (received, arrived)
        )
        means.append(combine(own, rank, rows, there, average))
    found = torch.cat(means).double()
    assert len(found) == numel
    for element in range(numel):
        came = [gradients[rank, element].item()]
        came += [gradients[s, element].item() for s in arrived if arrived[s][element // each]]
        right = np.mean(came) * (1 if average else size)
        assert found[element] == pytest.approx(right, rel=1e-5, abs=1e-5)


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
