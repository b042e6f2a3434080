"""Hybrid sharding (FSDP2) has the same bits: its replicas meet in all-reduces of the backend."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import latecomer
from tests.runtime.samebits.test_training import profile
from tests.runtime.spawning import spawn, values

REPLICAS = 4
STEPS = 4


def _train(rank, size, store):
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("world", store), rank=rank, world_size=size
    )
    ways = {
        "native": {"mode": "native", "bits": "same"},
        "auto": {"mode": "auto", "bits": "same"},
        "static 1": {"mode": "static", "late": 1, "bits": "same"},
        "static 3": {"mode": "static", "late": 3, "bits": "same"},
        "any 1": {"mode": "static", "late": 1},
        "any 3": {"mode": "static", "late": 3},
    }
    results = {}
    for turn, (name, options) in enumerate(ways.items()):
        latecomer.configure(profile=profile(size), **options)
        mesh = init_device_mesh(
            "cpu",
            (size, 1),
            mesh_dim_names=("replicate", "shard"),
            backend_override={"replicate": "latecomer"},
        )
        torch.manual_seed(0)
        layers = [torch.nn.Linear(50, 80), torch.nn.ReLU(), torch.nn.Linear(80, 10)]
        model = torch.nn.Sequential(*layers)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1 + rank)
        for step in range(STEPS):
            if rank == (step + turn) % size:
                time.sleep(0.003)
            optimizer.zero_grad()
            inputs = torch.randn(8, 50)
            (model(inputs) - inputs[:, :10]).square().mean().backward()
            optimizer.step()
        group = mesh.get_group("replicate")
        assert set(group.paths) == {f"mode {options['mode']}"}, group.paths
        parts = [each.to_local().detach().flatten() for each in model.parameters()]
        results[name] = torch.cat(parts).view(torch.int32).tolist()
    dist.destroy_process_group()
    return results


def test_one_result_whoever_is_late():
    for results in values(spawn(_train, REPLICAS, timeout_s=120)):
        same = [bits for name, bits in results.items() if not name.startswith("any")]
        assert all(bits == same[0] for bits in same)
        assert results["any 1"] != results["any 3"]
