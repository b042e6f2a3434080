"""Gradients at the end of a step: scaled, and averaged over the replicas of the stage.

PyTorch's runtime calls REDUCE_GRAD after the last backward of a stage. Its own action divides by
the number of microbatches; with replicas the gradients of the stage are then averaged over all
pipelines by the project's executor, as one flat tensor per dtype. A DDP wrapper can't do that: the
split backward uses ``autograd.grad``, which fires none of its hooks.

Replicas must submit in the same order, whatever the order of their schedules: a rank with several
stages submits when the last of them is done, lowest stage first.
"""

from __future__ import annotations

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
    """What REDUCE_GRAD does on this rank.

    Args:
        modules: stage -> module.
        replicas: over the ranks that hold the same stages in other pipelines; None without any.
    """

    def __init__(self, modules: dict[int, torch.nn.Module], replicas: Executor | None) -> None:
        self._modules, self._replicas = modules, replicas
        self._reduced: set[int] = set()
        self._flying: list[tuple[AllReduceWork, torch.Tensor, list[torch.Tensor]]] = []

    def register(self, runtime: PipelineScheduleRuntime) -> None:
        """Take over REDUCE_GRAD, if there are replicas."""
        if self._replicas is not None:
            runtime.register_custom_function(ComputationType.REDUCE_GRAD, self._reduce)

    def wait(self) -> None:
        """Until all averages are in place.

        Raises:
            RankFailure: a replica is dead or silent.
        """
        for operation, flat, gradients in self._flying:
            operation.wait()
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, mean in zip(gradients, torch.split(flat, sizes), strict=True):
                gradient.copy_(mean.view_as(gradient))
        self._flying.clear()
        self._reduced.clear()

    def _reduce(self, action: PipelineAction, ctx: PipelineContext) -> None:
        runtime: Any = ctx.schedule_ref
        stage = next(s for s in runtime._stages if s.stage_index == action.stage_index)
        stage.perform_reduce_grad(runtime._n_microbatches if runtime.scale_grads else 1)
        self._reduced.add(action.stage_index)
        if self._reduced == set(self._modules):
            for module in self._modules.values():
                self._submit(module)

    def _submit(self, module: torch.nn.Module) -> None:
        assert self._replicas is not None
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in module.parameters():
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                by_dtype.setdefault(parameter.dtype, []).append(parameter.grad)
        for gradients in by_dtype.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            operation = self._replicas.submit(flat, average=True)
            self._flying.append((operation, flat, gradients))
