"""PyTorch's own pipeline runtime runs our CSVs; gradients are those of a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.torch_versions import wants_waits
from latecomer.synth.pipeline.plan import Solver, plan
from latecomer.synth.pipeline.problem import make, place
from latecomer.verify.pipeline import Instance, Link, lowered, with_waits, write_csv
from tests.runtime.pipeline.models import batch, loss_fn, model, reference
from tests.runtime.spawning import spawn, values

RANKS = 3
MICROBATCHES = 6
CASES = [
    (1, "1f1b", None),
    (1, "zero-bubble", None),
    (1, "adaptra", None),
    (1, "cp-sat", 3),
    (2, "interleaved-1f1b", None),
    (2, "greedy", 3),
]


def _files(folder: Path) -> list[tuple[str, str, int]]:
    """(file, its form, stages per rank) of every case, compute only and with messages."""
    files = []
    for virtual, method, memory in CASES:
        stages = RANKS * virtual
        instance = Instance(
            forward=(8, 11, 6) * virtual,
            backward=(10, 9, 12) * virtual,
            weight=(5, 4, 6) * virtual,
            links=(Link(between=(1, 2), latency=30),),
            memory=None if memory is None else (memory,) * RANKS,
        )
        problem = make(MICROBATCHES, instance, place(stages, virtual, "loop"))
        schedule = plan(problem, method, solver=Solver(time_limit_s=10, workers=1)).schedule
        assert method != "cp-sat" or schedule.meta["method"] == "cp-sat"

        complete = lowered(schedule, problem.costs)
        if wants_waits():
            complete = with_waits(complete)
        for form, source in (("compute_only", schedule), ("compute_comms", complete)):
            path = folder / f"{method}-{form}.csv"
            write_csv(source, path, form)  # type: ignore[arg-type]
            files.append((str(path), form, virtual))
    return files


def _run(rank: int, world_size: int, store: Any, files: list[tuple[str, str, int]]) -> list[float]:
    """The largest difference to the reference, per file."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    largest_differences = []
    for step, (path, form, virtual) in enumerate(files):
        all_stages = world_size * virtual
        own_stages = range(rank, all_stages, world_size)
        blocks = model(all_stages)
        expected, _ = reference(blocks, step, MICROBATCHES)
        x, y = batch(step, MICROBATCHES)

        stages = [
            PipelineStage(blocks[stage], stage, all_stages, torch.device("cpu"))
            for stage in own_stages
        ]
        schedule = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss_fn)
        schedule._load_csv(path, format=form)
        target = y if rank == world_size - 1 else None
        if rank == 0:
            schedule.step(x, target=target)
        else:
            schedule.step(target=target)

        differences = []
        for stage in own_stages:
            for parameter, gradient in zip(
                blocks[stage].parameters(), expected[stage], strict=True
            ):
                assert parameter.grad is not None
                differences.append((parameter.grad - gradient).abs().max().item())
        largest_differences.append(max(differences))
        dist.barrier()
    dist.destroy_process_group()
    return largest_differences


def test_gradients_are_right_under_stock_pytorch(tmp_path: Path) -> None:
    files = _files(tmp_path)
    paths = [path for path, _, _ in files]
    for largest_differences in values(spawn(_run, RANKS, files, timeout_s=150)):
        assert len(largest_differences) == len(files)
        by_path = dict(zip(paths, largest_differences, strict=True))
        assert max(largest_differences) < 1e-6, by_path
