"""What is made of what arrived: the mean by datagram, its expectation, and what the ledger says."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.optireduce.loss import LossStats, StepRecord
from runtime.optireduce.options import Options
from runtime.optireduce.shards import Shards

PAYLOAD = 32


def _case(numel, size, rank, dtype, seed, share):
    """(shards of rank, scratch, arrived, contributions of all ranks, own shard's slice)"""
    dice = torch.Generator().manual_seed(seed)
    gradients = torch.randn(size, numel, generator=dice).to(dtype)
    shards = Shards(gradients[rank].clone(), size, PAYLOAD)
    part = slice(shards.bounds[rank], shards.bounds[rank + 1])
    raw = gradients[:, part].contiguous().view(torch.uint8).numpy().reshape(size, -1)
    count = -(-raw.shape[1] // PAYLOAD)
    scratch, arrived = {}, {}
    for sender in set(range(size)) - {rank}:
        padded = np.zeros(count * PAYLOAD, np.uint8)
        padded[: raw.shape[1]] = raw[sender]
        arrived[sender] = torch.rand(count, generator=dice).numpy() >= share
        scratch[sender] = padded.reshape(count, PAYLOAD)
        scratch[sender][~arrived[sender]] = 0xAB  # whatever was in memory
    return shards, scratch, arrived, gradients[:, part].double().numpy()


def _combine(shards, rank, scratch, arrived, average, piece):
    """Run by run, so many datagrams each."""
    count = max(len(one) for one in arrived.values())
    runs = [slice(first, first + piece) for first in range(0, count, piece)]
    means = [
        shards.combine(
            rank,
            run.start,
            {peer: rows[run] for peer, rows in scratch.items()},
            {peer: there[run] for peer, there in arrived.items()},
            average,
        )
        for run in runs
    ]
    return torch.cat(means).double().numpy() if means else np.zeros(0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 200),
    st.integers(2, 5),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_each_element_is_the_mean_of_what_came_of_it(numel, size, dtype, seed, share, average):
    rank = seed % size
    shards, scratch, arrived, gradients = _case(numel, size, rank, dtype, seed, share)
    found = _combine(shards, rank, scratch, arrived, average, piece=seed % 3 + 1)
    each = PAYLOAD // dtype.itemsize
    for element in range(gradients.shape[1]):
        came = [gradients[rank, element]]
        came += [gradients[s, element] for s in arrived if arrived[s][element // each]]
        right = np.mean(came) * (1 if average else size)
        assert found[element] == pytest.approx(right, rel=1e-5, abs=1e-5)


def test_the_mean_is_unbiased_over_losses_and_data():
    """2000 draws of losses and of data with mean 3: their mean is within five deviations of 3."""
    results = []
    for seed in range(2000):
        shards, scratch, arrived, _ = _case(32, 4, seed % 4, torch.float32, seed, 0.4)
        for piece in scratch.values():
            piece.view(np.float32)[:] += 3
        shards.flat += 3
        results.append(_combine(shards, seed % 4, scratch, arrived, True, piece=2))
    mean, deviation = np.mean(results, axis=0), np.std(results, axis=0)
    assert (abs(mean - 3) < 5 * deviation / 2000**0.5).all()


def test_a_lost_piece_of_a_sum_is_the_own_contribution_times_the_ranks():
    shards = Shards(torch.ones(40), 2, PAYLOAD)  # rank 1's shard: 20 elements, 3 datagrams
    shards.scale_missing(1, np.array([True, False, True]))
    assert shards.flat.tolist() == [1.0] * 28 + [2.0] * 8 + [1.0] * 4


def _record(step, lost):
    record = StepRecord(step, submitted=1, operations=1, sealed=True)
    record.due, record.lost = [50, 50], [lost, 0]
    record.by_rank.update({2: lost})
    return record


def test_the_ledger_skips_above_one_threshold_and_stops_above_another():
    ledger = LossStats(Options(skip_loss=0.1, stop_loss=0.3, stop_window=3), rank=0)
    assert ledger.close_step(_record(0, 5)) is None
    assert not ledger.skip
    assert ledger.close_step(_record(1, 40)) is None
    assert ledger.skip
    assert ledger.close_step(_record(2, 40)) is None  # mean 28 %
    ledger.dropped, ledger.dropped_from = {"stale": 7}, {(1, "stale"): 7}
    error = ledger.close_step(_record(3, 40))
    assert error.ranks == (2,)
    assert "40.0%" in str(error)
    assert "7 stale, 7 of them from rank 1" in str(error)
    assert ledger.totals["skipped"] == 3
    assert ledger.loss(2) == pytest.approx(0.4)


def test_a_step_is_complete_when_it_is_sealed_and_all_is_over():
    record = StepRecord(0, submitted=2, sealed=False, operations=2)
    assert not record.complete
    record.sealed = True
    assert record.complete
    stage = SimpleNamespace(due=4, lost=1, end=None, senders={})
    node = SimpleNamespace(
        bound_s=1.0,
        expected=[SimpleNamespace(expected_s=0.1, percent=10)] * 2,
        incast=SimpleNamespace(announced=1, allowed=2),
        sender=SimpleNamespace(pacers={1: SimpleNamespace(rate=5.0, rtt_s=0.1)}),
    )
    record.add(SimpleNamespace(stages=(stage, stage)), node, 0.2, False)
    assert not record.complete
    assert record.loss == 0.25
