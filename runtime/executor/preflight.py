"""What all ranks must have in common before an executor starts, and what it can carry."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from runtime.executor.load import Verified
from runtime.network.store_exchange import StoreExchange
from verify.errors import ScheduleRefused, TensorError

FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
SUMMABLE = FLOATS | INTEGERS


def agree(group: StoreExchange, schedules: Sequence[Verified], late: tuple[int, ...]) -> None:
    """Compare schedules, and the late ranks to begin with, through the store (collective)."""
    digests = ",".join(verified.digest for verified in schedules)
    own = f"{digests} {late}"
    received = group.all_gather("schedule", own)
    differing = [rank for rank, theirs in received.items() if theirs != own]
    if not differing:
        return
    ranks = ", ".join(map(str, differing))
    theirs, their_late = received[differing[0]].split(" ", 1)
    if theirs == digests:
        text = f"rank {group.rank} takes the ranks {late} to be late, rank(s) {ranks} {their_late}"
        raise ScheduleRefused(text)
    names = ", ".join(f"{v.name} ({v.digest[:12]})" for v in schedules)
    raise ScheduleRefused(f"rank {group.rank} has {names}, but rank(s) {ranks} another schedule")


def unsummable(
    tensor: torch.Tensor, average: bool, dtypes: Collection[torch.dtype] = SUMMABLE
) -> tuple[str, str]:
    """Why a tensor can't be summed in place, and what is required; empty if it can."""
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}", "it must be dense (torch.strided)"
    if tensor.dtype not in dtypes:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"dtype {tensor.dtype}", f"it must be one of {names}"
    if not tensor.is_contiguous():
        return "not contiguous", "pass tensor.contiguous()"
    if average and not tensor.dtype.is_floating_point:
        return f"the average of {tensor.dtype}", "it is not an integer; sum instead"
    return "", ""


def require_summable(tensor: torch.Tensor, device: torch.device, average: bool) -> None:
    """Raise TensorError for what an executor on ``device`` can't carry."""
    if tensor.device.type != device.type:
        raise TensorError(f"the tensor is on {tensor.device}, the executor on {device}")
    reason, requirement = unsummable(tensor, average)
    if reason:
        raise TensorError(f"a tensor can't be carried: {reason}; {requirement}")
