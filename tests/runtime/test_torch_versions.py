"""What differs between versions of torch is met in one module; these tests pass on all of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import config

from runtime import torch_versions
from runtime.pipeline import Pipeline
from tests.runtime.pipeline.models import loss_fn
from tests.runtime.pipeline.test_gradients import schedule
from tests.runtime.spawning import on_ranks
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

RANKS = 2
MICROBATCHES = 3
WIDTH = 4
FLAG = "pipeline_per_direction_p2p"


def test_other_names_of_pipelining_are_not_there():
    assert not hasattr(torch_versions, "PipelineStage")


@on_ranks(RANKS)
def test_the_store_of_a_group(rank, size, store):
    with pytest.raises(ValueError, match="init_process_group"):
        torch_versions.store_of(None)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    part = dist.new_group([0, 1])
    torch_versions.store_of(None).set(f"whole {rank}", "")
    torch_versions.store_of(part).set(f"part {rank}", "")
    dist.barrier()
    whole = torch_versions.store_of(dist.group.WORLD)
    parts = torch_versions.store_of(part)
    peer = 1 - rank
    assert whole.check([f"whole {peer}"])
    assert parts.check([f"part {peer}"])
    assert not whole.check([f"part {peer}"])


class _Scaled(nn.Module):
    """A stage with an input that is given by keyword, and has a gradient."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *, scale):
        return torch.tanh(self.linear(x)) * scale


NO_FLAG = pytest.mark.skipif(not hasattr(config, FLAG), reason=f"no {FLAG} in this torch")
FLAGGED = pytest.param(one_f_one_b, True, marks=NO_FLAG)


@pytest.mark.parametrize(
    ("programs", "flag"), [(one_f_one_b, False), (zero_bubble, False), FLAGGED]
)
@on_ranks(RANKS)
def test_inputs_by_keyword_have_the_gradients_of_a_plain_loop(rank, size, store, programs, flag):
    """With the flag, stages of PyTorch make groups of their own; ours do not."""
    if flag:
        setattr(config, FLAG, True)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    blocks = [_Scaled() for _ in range(size)]
    x, y, scale = (torch.randn(MICROBATCHES * 2, WIDTH) for _ in range(3))
    scale.requires_grad_()
    parts = (whole.chunk(MICROBATCHES) for whole in (x, y, scale))
    for part, target, factor in zip(*parts, strict=True):
        output = part
        for block in blocks:
            output = block(output, scale=factor)
        loss_fn(output, target).backward()
    own = blocks[rank]
    expected = [parameter.grad / MICROBATCHES for parameter in own.parameters()]
    own.zero_grad()
    plan = schedule(programs(size, MICROBATCHES), MICROBATCHES)
    pipeline = Pipeline(own, plan, loss_fn, timeout_s=60)
    last = rank == size - 1
    pipeline.step(*([] if rank else [x]), target=y if last else None, scale=scale)
    pipeline.close()
    found = [parameter.grad for parameter in own.parameters()]
    assert all(map(torch.equal, found, expected))
    if flag:
        assert getattr(config, FLAG)  # for the stages of others
        with pytest.raises(RuntimeError, match="device"):  # what PyTorch's own do over Gloo
            torch.distributed.pipelining.PipelineStage(_Scaled(), rank, size, torch.device("cpu"))
