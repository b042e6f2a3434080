"""What differs between versions of torch is met in one module; these tests pass on all of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import config

import runtime
from runtime import torch_versions
from runtime.pipeline import Pipeline
from tests.runtime.pipeline.models import loss_fn
from tests.runtime.pipeline.test_gradients import schedule
from tests.runtime.spawning import spawn, values
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble

RANKS, MICROBATCHES, WIDTH = 2, 3, 4
FLAG = "pipeline_per_direction_p2p"


def _private(source: str) -> list[str]:
    """The private names of torch that a module imports."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "torch" and any(part.startswith("_") for part in rest):
                found.append(name)
    return found


def test_private_imports_are_found() -> None:
    assert _private("from torch.distributed import Work, config\nimport torch.nn\n") == []
    assert _private("import torch._dynamo\n") == ["torch._dynamo"]
    source = "def f():\n    from torch.distributed.distributed_c10d import _world\n"
    assert _private(source) == ["torch.distributed.distributed_c10d._world"]
    source = "from torch._C._distributed_c10d import Store\n"
    assert _private(source) == ["torch._C._distributed_c10d.Store"]


def test_private_names_of_torch_are_imported_in_one_module() -> None:
    folder = Path(runtime.__file__).parent
    found = {
        path.relative_to(folder).as_posix(): names
        for path in folder.rglob("*.py")
        if (names := _private(path.read_text()))
    }
    assert found.pop("torch_versions.py")
    assert found == {}


def test_pipelining_is_imported_with_the_first_use() -> None:
    script = (
        "import sys, runtime\n"
        "from runtime import torch_versions\n"
        "assert 'torch.distributed.pipelining' not in sys.modules\n"
        "assert torch_versions.PipelineStageBase.__name__ == '_PipelineStageBase'\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=500, check=False
    )
    assert result.returncode == 0, result.stderr


def test_other_names_of_pipelining_are_not_there() -> None:
    assert not hasattr(torch_versions, "PipelineStage")


def _stores(rank: int, size: int, store: dist.Store) -> list[bool]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    part = dist.new_group([0, 1])
    torch_versions.store_of(None).set(f"whole {rank}", "")
    torch_versions.store_of(part).set(f"part {rank}", "")
    dist.barrier()
    peer = 1 - rank
    whole, parts = torch_versions.store_of(dist.group.WORLD), torch_versions.store_of(part)
    asked = (whole, f"whole {peer}"), (parts, f"part {peer}"), (whole, f"part {peer}")
    return [each.check([key]) for each, key in asked]


def test_the_store_of_a_group() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        torch_versions.store_of(None)
    for found in values(spawn(_stores, RANKS)):
        assert found == [True, True, False]


class _Scaled(nn.Module):
    """A stage with an input that is given by keyword, and has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * scale


def _keywords(rank: int, size: int, store: Any, programs: list[list[str]]) -> bool:
    """Whether this stage's gradients are those of a plain loop."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    blocks = [_Scaled() for _ in range(size)]
    x, y, scale = (torch.randn(MICROBATCHES * 2, WIDTH) for _ in range(3))
    scale.requires_grad_()
    for part, target, factor in zip(
        *(whole.chunk(MICROBATCHES) for whole in (x, y, scale)), strict=True
    ):
        output = part
        for block in blocks:
            output = block(output, scale=factor)
        loss_fn(output, target).backward()
    own = blocks[rank]
    expected = [parameter.grad / MICROBATCHES for parameter in own.parameters()]
    own.zero_grad()
    pipeline = Pipeline(own, schedule(programs, MICROBATCHES), loss_fn, timeout_s=60)
    last = rank == size - 1
    pipeline.step(*([] if rank else [x]), target=y if last else None, scale=scale)
    pipeline.close()
    return all(
        torch.equal(parameter.grad, gradient)
        for parameter, gradient in zip(own.parameters(), expected, strict=True)
    )


@pytest.mark.parametrize("programs", [one_f_one_b, zero_bubble])
def test_inputs_given_by_keyword(programs: Any) -> None:
    assert values(spawn(_keywords, RANKS, programs(RANKS, MICROBATCHES))) == [True] * RANKS


def _one_group_per_direction(rank: int, size: int, store: Any) -> bool:
    setattr(config, FLAG, True)
    same = _keywords(rank, size, store, one_f_one_b(size, MICROBATCHES))
    assert getattr(config, FLAG)  # for the stages of others
    with pytest.raises(RuntimeError, match="device"):  # what PyTorch's own stages do over Gloo
        torch.distributed.pipelining.PipelineStage(_Scaled(), rank, size, torch.device("cpu"))
    return same


@pytest.mark.skipif(not hasattr(config, FLAG), reason=f"no {FLAG} in torch {torch.__version__}")
def test_stages_make_no_groups_of_their_own() -> None:
    assert values(spawn(_one_group_per_direction, RANKS)) == [True] * RANKS
