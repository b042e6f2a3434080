"""What a schedule says about one rank: its modules, its device, and whom it talks to."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verify.errors import ArgumentError
from verify.pipeline import PipelineSchedule

Modules = torch.nn.Module | Mapping[int, torch.nn.Module]
"""The module of a rank's stage; for several stages, stage -> module."""


def own_modules(modules: Modules, stages: list[int]) -> dict[int, torch.nn.Module]:
    """Stage -> module, checked."""
    if isinstance(modules, torch.nn.Module):
        modules = {stages[0]: modules}
    if sorted(modules) != stages:
        raise ArgumentError(
            "modules", sorted(modules), f"must be the modules of stages {stages}, as scheduled"
        )
    for stage, module in modules.items():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise ArgumentError(
                f"modules[{stage}]",
                "DistributedDataParallel",
                "must be a plain module: its gradients would silently not be reduced",
                "Pass the module itself, and replicas=",
            )
    return {stage: modules[stage] for stage in stages}


def device_of(modules: dict[int, torch.nn.Module]) -> torch.device:
    """The device of all parameters; ArgumentError if there are several."""
    devices = {parameter.device for m in modules.values() for parameter in m.parameters()}
    if len(devices) > 1:
        names = sorted(map(str, devices))
        raise ArgumentError("modules", names, "must be on one device per rank")
    return devices.pop() if devices else torch.device("cpu")


def neighbours(plan: PipelineSchedule, rank: int) -> tuple[set[int], dict[tuple[int, str], int]]:
    """Ranks to send to; (stage, RECV kind) -> the rank it comes from."""
    to: set[int] = set()
    sources: dict[tuple[int, str], int] = {}
    for stage in range(plan.stages - 1):
        low, high = plan.rank_of[stage], plan.rank_of[stage + 1]
        if low == high:
            continue
        if rank == low:
            to.add(high)
            sources[stage, "RECV_B"] = high
        if rank == high:
            to.add(low)
            sources[stage + 1, "RECV_F"] = low
    return to, sources
