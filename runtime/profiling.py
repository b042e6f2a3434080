"""``python -m runtime profile`` under ``torchrun``: measures this job's links and writes a file."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from runtime import profile as profiles
from runtime.decisions.costs import Profile
from runtime.decisions.options import Options
from runtime.reducer import Reducer
from runtime.torch_versions import PrefixStore, store_of
from verify.errors import ArgumentError


def run(out: Path) -> Profile:
    """Measure on all ranks of this job; rank 0 writes the profile to ``out``.

    Raises:
        ArgumentError: this process is not a rank of a job.
        RankFailure: a rank did not join.
    """
    if "RANK" not in os.environ:
        remedy = "Start it with: torchrun --nproc-per-node N -m runtime profile"
        raise ArgumentError("RANK", None, "must be set: there is no job to measure", remedy)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        group = dist.group.WORLD
        assert group is not None
        reducer = Reducer(
            PrefixStore("latecomer/profile", store_of(group)),
            dist.get_rank(),
            dist.get_world_size(),
            options=Options("native"),
        )
        if dist.get_rank() == 0:
            profiles.write(reducer.profile, out)
        reducer.close()
        return reducer.profile
    finally:
        dist.destroy_process_group()
