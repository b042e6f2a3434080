"""Gradients at the end of a step: scaled, and averaged over the replicas of the stage.

PyTorch's runtime calls REDUCE_GRAD after the last backward of a stage. Its own action divides by
the number of microbatches; with replicas the gradients are then averaged over all pipelines by an
executor, as one flat tensor per dtype. A DDP wrapper can't do that: the split backward uses
``autograd.grad``, which fires none of its hooks. Replicas must submit in the same order, whatever
that of their schedules: a rank submits when the last of its stages is done, lowest stage first.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import torch

from runtime.executor.executor import Executor
from runtime.torch_versions import (
    ComputationType,
    PipelineAction,
    PipelineContext,
    PipelineScheduleRuntime,
)
from runtime.work import AllReduceWork


class Gradients:
    """What REDUCE_GRAD does on this rank, which may have ``replicas`` in other pipelines."""

    def __init__(self, modules: dict[int, torch.nn.Module], replicas: Executor | None) -> None:
        self._modules, self._replicas = modules, replicas
        self._reduced: set[int] = set()
        self._flying: list[tuple[AllReduceWork, torch.Tensor, list[torch.Tensor]]] = []

    def register(self, runtime: PipelineScheduleRuntime) -> None:
        """Take over REDUCE_GRAD, if there are replicas."""
        if self._replicas is not None:
            reduce = partial(self._reduce, self._replicas)
            runtime.register_custom_function(ComputationType.REDUCE_GRAD, reduce)

    def wait(self) -> None:
        """Until all averages are in place; RankFailure if a replica is dead or silent."""
        for operation, flat, gradients in self._flying:
            operation.wait()
            means = torch.split(flat, [gradient.numel() for gradient in gradients])
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean.view_as(gradient))
        self._flying.clear()
        self._reduced.clear()

    def _reduce(self, replicas: Executor, action: PipelineAction, ctx: PipelineContext) -> None:
        runtime: Any = ctx.schedule_ref
        stage = next(s for s in runtime._stages if s.stage_index == action.stage_index)
        stage.perform_reduce_grad(runtime._n_microbatches if runtime.scale_grads else 1)
        self._reduced.add(action.stage_index)
        if self._reduced != set(self._modules):
            return
        for module in self._modules.values():
            by_dtype = defaultdict(list)
            for parameter in module.parameters():
                if parameter.requires_grad:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    by_dtype[parameter.dtype].append(parameter.grad)
            for gradients in by_dtype.values():
                flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
                self._flying.append((replicas.submit(flat, average=True), flat, gradients))
