"""What is needed first goes first, on simulated hosts, where time is the network's alone."""

from __future__ import annotations

import pytest
import torch

from latecomer.runtime import Executor, load
from latecomer.runtime.executor.halves import load_half
from latecomer.runtime.executor.tcp import transfer
from latecomer.runtime.executor.tcp.priority import SMALL_BYTES, Priority, priority_of
from latecomer.runtime.simulation.network import Weather
from latecomer.runtime.work import AllGatherWork, AllReduceWork, ReduceScatterWork
from latecomer.synth.candidates import halves
from tests.runtime import schedules
from tests.runtime.simulated import SEEDS, on_hosts

RANKS = 4
LARGE = 500_000  # elements
SMALL = 1_000
SHARE = 0.75  # of the larger one's time, within which the other one is done


def _of(kind, numel):
    """A work of that kind whose buffer has ``numel`` float32 elements on four ranks."""
    whole = torch.zeros(numel)
    if kind is AllReduceWork:
        return AllReduceWork(0, whole)
    part = torch.zeros(numel // RANKS)
    if kind is ReduceScatterWork:
        return ReduceScatterWork(0, part, given=whole, rank=0)
    return AllGatherWork(0, whole, given=part, rank=0)


@pytest.mark.parametrize("kind", [AllReduceWork, ReduceScatterWork, AllGatherWork])
def test_small_buffers_go_before_all_gathers_and_these_before_sums(kind):
    assert priority_of(_of(kind, SMALL_BYTES // 4)) is Priority.SMALL
    larger = Priority.ALL_GATHER if kind is AllGatherWork else Priority.OTHER
    assert priority_of(_of(kind, SMALL_BYTES)) is larger


def _small_behind_large(rank, size, store):
    """When a small and a large all-reduce are done, the small one started last; their sums."""
    executor = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=60)
    large = executor.submit(torch.full((LARGE,), rank + 1.0))
    small = executor.submit(torch.full((SMALL,), rank + 1.0))
    total = size * (size + 1) / 2
    assert torch.equal(small.wait(), torch.full((SMALL,), total))
    assert torch.equal(large.wait(), torch.full((LARGE,), total))
    executor.close()
    return small.done_s - small.arrived_s, large.done_s - large.arrived_s


def _gather_behind_sums(rank, size, store):
    """When an all-gather and the larger reduce-scatter before it are done, and their results."""
    by_half = {half: load_half(of, name, half) for name, half, of in halves(size) if name == "ring"}
    verified = [by_half["reduce_scatter"], by_half["all_gather"]]
    executor = Executor(verified, store, rank, size, timeout_s=60)
    part = torch.zeros(LARGE // size)
    given = torch.full((LARGE,), rank + 1.0)
    sums = executor.open(ReduceScatterWork, part, average=False, given=given, rank=rank)
    executor.start(sums, 0, ())

    whole = torch.zeros(LARGE // 10)
    own = torch.full((len(whole) // size,), float(rank))
    gather = executor.open(AllGatherWork, whole, average=False, given=own, rank=rank)
    executor.start(gather, 1, ())

    expected = torch.arange(size, dtype=torch.float32).repeat_interleave(len(own))
    assert torch.equal(gather.wait(), expected)
    assert torch.equal(sums.wait(), torch.full((len(part),), size * (size + 1) / 2))
    executor.close()
    return gather.done_s - gather.arrived_s, sums.done_s - sums.arrived_s


BEHIND = pytest.mark.parametrize("body", [_small_behind_large, _gather_behind_sums])


def _shares(body):
    """On each rank, how long the second one took, of the time of the first, for some seeds."""
    for outcomes in on_hosts(RANKS, lambda job: body, seeds=SEEDS, weather=Weather):
        for outcome in outcomes.values():
            second_s, first_s = outcome.result
            yield second_s / first_s


@BEHIND
def test_what_is_needed_first_does_not_wait_for_what_is_larger(body):
    assert max(_shares(body)) < SHARE


@BEHIND
def test_without_priorities_it_waits_for_nearly_all_of_it(body, monkeypatch):
    monkeypatch.setattr(transfer, "priority_of", lambda work: Priority.OTHER)
    assert min(_shares(body)) > SHARE
