"""A training in which nobody is late: by Gloo, and by the backend without any option, in turn.

    torchrun --standalone --nproc-per-node 4 examples/on_time.py [--model transformer] [--steps 60]
                                                                 [--shard]

Two models that begin alike, on the same batches; one step by Gloo, one by ours. Before that the
backend has as many steps as it needs to find out how its collectives are fastest: the all-reduces
of DDP or, with ``--shard``, the reduce-scatters and all-gathers of FSDP2. In the end both have the
same parameters, up to rounding.
"""

import argparse
import copy
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from latecomer.runtime.backend import BACKEND

WARM_UP = 150
CLOSE = 1e-3


def transformer() -> nn.Module:
    """Two layers of width 128: 0.4 million parameters, many of them small."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(8 * 128, 1))


def cnn() -> nn.Module:
    """Three convolutions and a linear layer: 0.5 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 1, 1000),
        nn.ReLU(),
        nn.Linear(1000, 1),
    )


SHAPES = {"transformer": (4, 8, 128), "cnn": (4, 1, 32, 8)}


def step(model: nn.Module, inputs: torch.Tensor, optimizer: torch.optim.Optimizer | None) -> float:
    """Seconds of one step; without an optimizer it changes nothing."""
    dist.barrier()
    began_s = time.monotonic()
    model.zero_grad()
    model(inputs).square().mean().backward()
    if optimizer is not None:
        optimizer.step()
    return time.monotonic() - began_s


def sharded(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """The same model by FSDP2: each layer's parameters are divided among the ranks."""
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model.children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """All of a parameter, wherever it is (collective)."""
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def main() -> None:
    """One rank's part; rank 0 tells."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SHAPES, default="cnn")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--shard", action="store_true", help="by FSDP2, in place of DDP")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = {"transformer": transformer, "cnn": cnn}[options.model]()
    shape = SHAPES[options.model]
    groups = {"gloo": dist.group.WORLD, "latecomer": dist.new_group(backend=BACKEND)}
    models: dict[str, nn.Module] = {}
    for name, group in groups.items():
        own = copy.deepcopy(model)
        models[name] = (
            sharded(own, group)
            if options.shard
            else DistributedDataParallel(own, process_group=group)
        )
    optimizers = {
        name: torch.optim.SGD(each.parameters(), lr=1e-3) for name, each in models.items()
    }
    for _ in range(WARM_UP):
        for each in models.values():
            step(each, torch.ones(shape), None)

    torch.manual_seed(1 + rank)
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(options.steps):
        inputs = torch.randn(shape)
        for name, each in models.items():
            seconds[name].append(step(each, inputs, optimizers[name]))

    by_gloo, by_ours = (each.parameters() for each in models.values())
    for one, other in zip(by_gloo, by_ours, strict=True):
        assert torch.allclose(whole(one), whole(other), rtol=CLOSE, atol=CLOSE)
    if rank == 0:
        median_ms = {name: statistics.median(each) * 1e3 for name, each in seconds.items()}
        for name, milliseconds in median_ms.items():
            print(f"{name:<10} {milliseconds:6.2f} ms a step")
        ratio = median_ms["gloo"] / median_ms["latecomer"]
        print(f"{ratio:.2f} times the steps per second, and the same parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
