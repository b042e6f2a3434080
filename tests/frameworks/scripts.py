"""Runs a training script on forked ranks, as torchrun would, and takes its parameters.

A script is one of ``examples/frameworks``, unchanged but, for the reference, with the backend's
name ``"gloo"`` in place of ``"latecomer"``. What it leaves in its global ``model`` is compared.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.frameworks.jobs import GLOO, results
from tests.runtime.spawning import spawn

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
RANKS = 4


@dataclass
class Trained:
    """What a rank has at the end.

    Attributes:
        parameters: by name; of a DTensor the part that is on this rank.
        paths: of all groups together; empty on Gloo.
    """

    parameters: dict[str, np.ndarray]
    paths: dict[str, int]


def text_of(name: str, way: str) -> str:
    """The text of script ``name`` as it runs."""
    text = (FOLDER / name).read_text()
    assert text.count('"latecomer"') == 1
    if way == GLOO:
        return text.replace('"latecomer"', '"gloo"')
    return text


def _run(
    rank: int,
    world_size: int,
    store: Any,
    name: str,
    way: str,
    variables: dict[str, str],
    folder: str,
) -> Trained:
    os.environ |= variables | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    os.chdir(folder)
    if name.startswith("deepspeed"):
        _without_extensions()
    if way == GLOO:
        dist.ProcessGroup.paths = {}  # the scripts print what our groups have

    groups: dict[Any, Any] = {}
    destroy = dist.destroy_process_group

    def remembering(group: Any = None) -> None:
        groups.update(distributed_c10d._world.pg_map)
        destroy(group)

    dist.destroy_process_group = remembering
    script_globals: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text_of(name, way), name, "exec"), script_globals)

    groups.update(distributed_c10d._world.pg_map)
    paths: Counter[str] = Counter()
    for group, (backend, _) in groups.items():
        if backend != "fake":  # torchtitan's, where a dimension has one rank
            paths += Counter(group.paths)

    parameters = {}
    for key, parameter in script_globals["model"].named_parameters():
        is_dtensor = hasattr(parameter, "to_local")
        on_this_rank = parameter.to_local() if is_dtensor else parameter
        parameters[key] = on_this_rank.detach().numpy()
    return Trained(parameters, dict(paths))


def _without_extensions() -> None:
    """DeepSpeed would compile its all-reduce for inference, which takes a minute."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def run(name: str, way: str, variables: dict[str, str], folder: Path) -> list[Trained]:
    """Run script ``name`` on four ranks, in ``folder``; what each has at the end."""
    return results(spawn(_run, RANKS, name, way, variables, str(folder), timeout_s=150))
