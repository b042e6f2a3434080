"""What differs between versions of torch is met in one module; these tests pass on all of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import config

from latecomer.runtime import torch_versions
from latecomer.runtime.pipeline import Pipeline
from tests.runtime.pipeline.models import loss_fn
from tests.runtime.pipeline.test_gradients import schedule
from tests.runtime.spawning import on_ranks
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

RANKS = 2
MICROBATCHES = 3
WIDTH = 4
DIRECTIONS = "pipeline_per_direction_p2p"  # torch 2.14
EDGES = "pipeline_per_edge_p2p"  # from torch 2.15 on


def test_other_names_of_pipelining_are_not_there():
    assert not hasattr(torch_versions, "PipelineStage")


@on_ranks(RANKS)
def test_the_store_of_a_group(rank, size, store):
    with pytest.raises(ValueError, match="init_process_group"):
        torch_versions.store_of(None)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    group = dist.new_group([0, 1])
    torch_versions.store_of(None).set(f"default group {rank}", "")
    torch_versions.store_of(group).set(f"new group {rank}", "")
    dist.barrier()

    default_store = torch_versions.store_of(dist.group.WORLD)
    new_store = torch_versions.store_of(group)
    peer = 1 - rank
    assert default_store.check([f"default group {peer}"])
    assert new_store.check([f"new group {peer}"])
    assert not default_store.check([f"new group {peer}"])


@on_ranks(RANKS)
def test_collectives_of_a_group_are_counted_without_sends(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    group = dist.new_group([0, 1])
    assert torch_versions.issued_so_far(group) == (0, False)
    between_two = dist.send if rank == 0 else dist.recv
    between_two(torch.ones(1), 1 - rank, group=group)
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    assert torch_versions.issued_so_far(group) == (1, False)
    between_two(torch.ones(1), 1 - rank, group=group)
    assert torch_versions.issued_so_far(group) == (1, True)
    assert torch_versions.issued_so_far(dist.group.WORLD) == (1, False)
    dist.destroy_process_group()


class _Scaled(nn.Module):
    """A stage with an input that is given by keyword, and has a gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *, scale):
        return torch.tanh(self.linear(x)) * scale


def _gradients_of_a_plain_loop(blocks, x, y, scale):
    """By block, the mean over the microbatches."""
    microbatches = zip(*(tensor.chunk(MICROBATCHES) for tensor in (x, y, scale)), strict=True)
    for part, target, factor in microbatches:
        output = part
        for block in blocks:
            output = block(output, scale=factor)
        loss_fn(output, target).backward()
    return [[parameter.grad / MICROBATCHES for parameter in block.parameters()] for block in blocks]


def _flagged(flag):
    absent = pytest.mark.skipif(not hasattr(config, flag), reason=f"no {flag} in this torch")
    return pytest.param(one_f_one_b, flag, marks=absent)


@pytest.mark.parametrize(
    ("programs", "flag"),
    [(one_f_one_b, None), (zero_bubble, None), _flagged(DIRECTIONS), _flagged(EDGES)],
)
@on_ranks(RANKS)
def test_inputs_by_keyword_have_the_gradients_of_a_plain_loop(rank, size, store, programs, flag):
    """With a flag, pipelines of PyTorch make groups. Ours do not, and use no other's."""
    if flag is not None:
        setattr(config, flag, True)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    blocks = [_Scaled() for _ in range(size)]
    x = torch.randn(MICROBATCHES * 2, WIDTH)
    y = torch.randn(MICROBATCHES * 2, WIDTH)
    scale = torch.randn(MICROBATCHES * 2, WIDTH, requires_grad=True)
    expected = _gradients_of_a_plain_loop(blocks, x, y, scale)[rank]

    own = blocks[rank]
    own.zero_grad()
    plan = schedule(programs(size, MICROBATCHES), MICROBATCHES)
    pipeline = Pipeline(own, plan, loss_fn, timeout_s=60)
    inputs = [x] if rank == 0 else []
    target = y if rank == size - 1 else None
    issued = torch_versions.issued_so_far(dist.group.WORLD)
    pipeline.step(*inputs, target=target, scale=scale)
    pipeline.close()
    assert torch_versions.issued_so_far(dist.group.WORLD) == issued
    assert len(torch_versions.ranks_of_groups()) == 1

    gradients = [parameter.grad for parameter in own.parameters()]
    assert all(map(torch.equal, gradients, expected))
    if flag is None:
        return
    assert getattr(config, flag)  # for the stages of others
    about = (_Scaled(), rank, size, torch.device("cpu"))
    if flag == DIRECTIONS:
        with pytest.raises(RuntimeError, match="device"):  # what PyTorch's own do over Gloo
            torch.distributed.pipelining.PipelineStage(*about)
    else:
        assert torch.distributed.pipelining.PipelineStage(*about).p2p_per_edge
