"""PyTorch's built-in schedules without a process group: stages that only know their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining import schedules as pytorch
from torch.distributed.pipelining.stage import _PipelineStageBase


class Place(_PipelineStageBase):
    """A stage of a group that is not there."""

    def __init__(self, stage: int, stages: int, rank: int, ranks: int) -> None:
        self.stage_index, self.num_stages = stage, stages
        self.group_rank, self.group_size = rank, ranks
        self.group, self.submod = None, None

    def _create_grad_recv_info(self, act_send_info: Any) -> Any:
        raise NotImplementedError

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _get_init_p2p_neighbors_ops(self) -> Any:
        raise NotImplementedError


def _loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output


MULTI = {
    "ScheduleLoopedBFS": 2,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleInterleavedZeroBubble": 2,
    "ScheduleZBVZeroBubble": 2,
    "ScheduleDualPipeV": 2,
}
"""Classes with more than one stage per rank, and how many."""


def multi(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Any:
    """A schedule of rank 0 in a group of ``ranks``."""
    chunks = MULTI[name] if chunks is None else chunks
    stages = [Place(i * ranks, ranks * chunks, 0, ranks) for i in range(chunks)]
    return getattr(pytorch, name)(stages, microbatches, loss_fn=_loss)


def single(name: str, ranks: int, microbatches: int) -> dict[int, list[Any]]:
    """The order of a schedule with one stage per rank, which PyTorch can't write to a file."""
    schedule = object.__new__(getattr(pytorch, name))
    schedule._num_stages, schedule._n_microbatches = ranks, microbatches
    order = schedule._get_pipeline_order()
    assert order is not None
    return dict(order)


def runtime(ranks: int, stages: int, microbatches: int) -> Any:
    """PyTorch's runtime for any CSV, as rank 0; stages are dealt out round robin."""
    mine = [Place(s, stages, 0, ranks) for s in range(0, stages, ranks)]
    return pytorch._PipelineScheduleRuntime(mine, microbatches, loss_fn=_loss)


def as_csv(order: dict[int, list[Any]], path: Path) -> Path:
    """Rows as PyTorch writes them."""
    import csv

    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        for rank in sorted(order):
            writer.writerow(order[rank])
    return path
