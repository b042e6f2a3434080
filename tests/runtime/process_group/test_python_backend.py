"""From torch 2.14 on: a c10d backend that needs no import, and that hooks of a group can see."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from runtime.process_group.forwarding import LatecomerBackend
from runtime.torch_versions import PYTHON_BACKENDS, Backend
from tests.runtime.process_group.jobs import start
from tests.runtime.spawning import spawn, values

pytestmark = pytest.mark.skipif(not PYTHON_BACKENDS, reason="torch before 2.14")

JOB = """
import sys
import torch, torch.distributed as dist
assert "runtime" not in sys.modules
dist.init_process_group("latecomer", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(type(dist.group.WORLD).__name__, x.tolist(), dict(dist.group.WORLD.paths))
dist.destroy_process_group()
"""


def test_no_import_is_needed(tmp_path):
    environment = {**os.environ, "LATECOMER_MODE": "auto"}
    run = subprocess.run(
        [sys.executable, "-c", JOB],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.stdout == "LatecomerGroup [1.0, 1.0, 1.0] {'a group of one': 1}\n", run.stderr


def _hooks(rank, size, store):
    group = start(rank, size, store)
    seen = []
    group.register_pre_hook(1, lambda arguments: seen.append(str(arguments.name)))
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), 0)
    group.unregister_pre_hook(1)
    dist.barrier()
    backend = group._get_backend(torch.device("cpu"))
    found = isinstance(backend, LatecomerBackend) and isinstance(backend, Backend)
    x = torch.full((3,), float(rank))
    backend.allreduce([x]).wait()  # as C++ code does that has asked for the backend
    paths = dict(group.paths)
    dist.destroy_process_group()
    return [name.rsplit(".", 1)[-1].lower() for name in seen], found, x.tolist(), paths


def test_hooks_see_every_collective_and_the_device_has_our_backend():
    for seen, found, x, paths in values(spawn(_hooks, 2)):
        assert seen == ["allreduce", "broadcast"]
        assert found
        assert x == [1.0] * 3
        assert paths == {"mode auto": 2}
