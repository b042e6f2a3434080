"""torchtitan's own meshes, layers, clipping and means of losses, on the backend.

LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/frameworks/torchtitan_parts.py

Its trainer wants CUDA, and its language models an attention that is compiled; these parts do not.
"""

import torch
import torch.distributed as dist
import torchtitan.tools.utils
from torch.distributed.fsdp import fully_shard

import latecomer.runtime  # noqa: F401  (registers the backend)

torchtitan.tools.utils.device_type = "cpu"  # before its other modules are imported; else "cuda"

from torchtitan.config import CommConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import clip_grad_norm_, dist_mean, init_distributed
from torchtitan.models.common.config_utils import make_ffn_config

dist.Backend.default_device_backend_map["cpu"] = "latecomer"
ranks = init_distributed(CommConfig(trace_buf_size=0))


def dims(replicas: int, shards: int) -> ParallelDims:
    """All ranks, for data parallelism alone."""
    return ParallelDims(
        dp_replicate=replicas,
        dp_shard=shards,
        cp=1,
        tp=1,
        pp=1,
        ep=1,
        world_size=ranks,
        spmd_backend="partial_dtensor",
    )


def build(parallel: ParallelDims) -> torch.nn.Module:
    """Two feed-forward layers, sharded over the mesh as torchtitan shards its models."""
    torch.manual_seed(0)
    start = {"weight": torch.nn.init.xavier_uniform_}
    layer = make_ffn_config(dim=16, hidden_dim=32, w1_param_init=start, w2w3_param_init=start)
    layers = torch.nn.Sequential(layer.build(), layer.build())
    for part in layers:
        part.init_states()
    names = ["dp_replicate", "fsdp"] if parallel.dp_replicate > 1 else ["fsdp"]
    for part in (*layers, layers):
        fully_shard(part, mesh=parallel.get_mesh(names))
    return layers


def train(layers: torch.nn.Module, parallel: ParallelDims) -> None:
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(6):
        inputs = torch.randn(8, 16)
        loss = (layers(inputs) - inputs.flip(1)).square().mean()
        loss.backward()
        clip_grad_norm_(layers.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = dist_mean(loss.detach(), parallel.get_mesh("loss"))
    if dist.get_rank() == 0:
        print(f"loss {mean:.3f}")


model = torch.nn.ModuleList()
for shape in ((1, 4), (2, 2), (4, 1)):
    parallel = dims(*shape)
    parallel.build_mesh()
    model.append(build(parallel))
    train(model[-1], parallel)
dist.destroy_process_group()
