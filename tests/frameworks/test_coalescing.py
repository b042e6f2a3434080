"""Megatron's two coalesced patterns, in a loop, overlapping with computation.

As in its distributed optimizer: the parameters of a group of buckets are gathered by one coalesced
call of all_gather_into_tensor, each bucket from a view of itself, while the group before computes;
gradients are reduced by one coalesced call of reduce_scatter_tensor, each into a view of itself,
while the next group computes. In ``make test-frameworks-long``: 10,000 iterations.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from tests.frameworks.calls import same
from tests.frameworks.jobs import AUTO, EAGER, SCHEDULE, begin, results
from tests.runtime.spawning import spawn

GROUPS = [[8, 1000, 24], [4096, 16], [40]]
"""Elements that a rank owns of each bucket, by group of buckets."""

Buckets = list[torch.Tensor]


class Shards:
    """The buckets of all groups; this rank owns an equal share of each."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.parameters = [self._zeros(group) for group in GROUPS]
        self.gradients = [self._zeros(group) for group in GROUPS]

    def _zeros(self, owned_elements: list[int]) -> Buckets:
        return [torch.zeros(self.world_size * count) for count in owned_elements]

    def own(self, bucket: torch.Tensor) -> torch.Tensor:
        return bucket.chunk(self.world_size)[self.rank]

    def gather(self, group: int):
        with _coalescing_manager(async_ops=True) as handle:
            for bucket in self.parameters[group]:
                dist.all_gather_into_tensor(bucket, self.own(bucket), async_op=True)
        return handle

    def reduce(self, group: int, operation):
        with _coalescing_manager(async_ops=True) as handle:
            for bucket in self.gradients[group]:
                dist.reduce_scatter_tensor(self.own(bucket), bucket, op=operation, async_op=True)
        return handle

    def all_reduce(self, group: int):
        """Without a distributed optimizer Megatron's buckets go by one coalesced all_reduce."""
        with _coalescing_manager(async_ops=True) as handle:
            for bucket in self.gradients[group]:
                dist.all_reduce(bucket, async_op=True)
        return handle


def _value(step: int, group: int, bucket: int, rank: int) -> float:
    """What a rank holds in a bucket at a step: a small integer, so that sums are exact."""
    return float((step * 7 + group * 5 + bucket * 3 + rank * 11) % 32)


def _check_gathered(shards: Shards, step: int, group: int) -> None:
    for index, bucket in enumerate(shards.parameters[group]):
        for rank, part in enumerate(bucket.chunk(shards.world_size)):
            same(part, torch.full_like(part, _value(step, group, index, rank)))


def _check_reduced(shards: Shards, step: int, group: int, whole: bool) -> None:
    for index, bucket in enumerate(shards.gradients[group]):
        part = bucket if whole else shards.own(bucket)
        total = sum(_value(step, group, index, rank) for rank in range(shards.world_size))
        same(part, torch.full_like(part, total))


def _compute(weight: torch.Tensor) -> torch.Tensor:
    """Some work whose temporaries are freed while operations are under way."""
    return (weight @ torch.ones(64, 64) + torch.randn(64, 64)).relu().sum()


def _update(shards: Shards, step: int) -> None:
    """The optimizer has stepped on its shards."""
    for group, buckets in enumerate(shards.parameters):
        for index, bucket in enumerate(buckets):
            shards.own(bucket).fill_(_value(step, group, index, shards.rank))


def _forward(shards: Shards, step: int, weight: torch.Tensor) -> None:
    """The next group is gathered while this one computes."""
    last = len(GROUPS) - 1
    handle = shards.gather(0)
    for group in range(len(GROUPS)):
        handle.wait()
        handle = shards.gather(group + 1) if group < last else None
        _compute(weight)
        _check_gathered(shards, step, group)


def _backward(shards: Shards, step: int, weight: torch.Tensor) -> None:
    """A group is reduced while the one before it computes."""
    whole = step % 3 == 2
    # An average by every second step; the values are multiplied so that it's the sum.
    average = step % 2 == 1 and not whole
    factor = shards.world_size if average else 1
    operation = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM

    under_way = []
    for group in reversed(range(len(GROUPS))):
        for index, bucket in enumerate(shards.gradients[group]):
            bucket.fill_(_value(step, group, index, shards.rank) * factor)
        handle = shards.all_reduce(group) if whole else shards.reduce(group, operation)
        under_way.append((group, handle))
        _compute(weight)

    for group, handle in under_way:
        handle.wait()
        _check_reduced(shards, step, group, whole)


def _loop(rank, world_size, store, way, schedule, iterations):
    """The number of iterations done, and the paths."""
    warnings.simplefilter("ignore", FutureWarning)  # of names that are deprecated, and in use
    group = begin(way, rank, world_size, store, schedule)
    shards = Shards(rank, world_size)
    weight = torch.randn(64, 64)
    for step in range(iterations):
        _update(shards, step)
        _forward(shards, step, weight)
        _backward(shards, step, weight)
    dist.barrier()
    paths = dict(getattr(group, "paths", {}))
    dist.destroy_process_group()
    return iterations, paths


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("way", "world_size", "iterations"),
    [(AUTO, 2, 1000), (SCHEDULE, 2, 1000), (AUTO, 4, 400), (EAGER, 4, 400), (SCHEDULE, 4, 400)],
)
def test_coalesced_loops(way, world_size, iterations, schedules):
    _all_ranks(way, world_size, iterations, schedules, timeout_s=200)


@pytest.mark.long
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("way", [AUTO, SCHEDULE])
def test_ten_thousand_loops(way, world_size, schedules):
    _all_ranks(way, world_size, 10_000, schedules, timeout_s=1800)


def _all_ranks(way, world_size, iterations, schedules, timeout_s):
    outcomes = spawn(_loop, world_size, way, schedules[world_size], iterations, timeout_s=timeout_s)
    whole = iterations // 3  # of which the gradients are all-reduced
    several = "several tensors at once"
    expected = {several: whole * len(GROUPS)}
    if way != SCHEDULE:  # in a mode that learns the others could be ours
        expected[f"reduce_scatter: {several}"] = (iterations - whole) * len(GROUPS)
        expected[f"all_gather: {several}"] = iterations * len(GROUPS)

    for done, paths in results(outcomes):
        assert done == iterations
        assert paths == expected
