"""What all ranks must have in common before an executor starts, and what it can carry."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.executor.load import Verified
from runtime.executor.operation import SUMMABLE
from runtime.network.store_exchange import require_all, tell_all
from runtime.torch_versions import Store
from verify.errors import ScheduleRefused, TensorError


def agree(
    store: Store,
    rank: int,
    size: int,
    schedules: Sequence[Verified],
    late: tuple[int, ...],
    timeout_s: float,
) -> None:
    """Compare schedules, and the late ranks to begin with, through the store (collective).

    Raises:
        ScheduleRefused: they differ between ranks.
        RankFailure: ranks that said nothing within ``timeout_s``.
    """
    digests = ",".join(verified.digest for verified in schedules)
    own = f"{digests} {late}"
    told = tell_all(store, "schedule", rank, size, own, timeout_s)
    require_all(told, range(size), timeout_s)
    differing = [r for r in told if told[r] != own]
    if not differing:
        return
    ranks = ", ".join(map(str, differing))
    theirs, their_late = told[differing[0]].split(" ", 1)
    if theirs == digests:
        raise ScheduleRefused(
            f"rank {rank} takes the ranks {late} to be late, rank(s) {ranks} {their_late}"
        )
    names = ", ".join(f"{v.name} ({v.digest[:12]})" for v in schedules)
    raise ScheduleRefused(f"rank {rank} has {names}, but rank(s) {ranks} another schedule")


def require_summable(tensor: torch.Tensor, device: torch.device, average: bool) -> None:
    """Refuse what an executor on ``device`` can't carry.

    Raises:
        TensorError: says why.
    """
    if tensor.layout is not torch.strided:
        raise TensorError(f"tensor.layout is {tensor.layout}, must be dense (torch.strided)")
    if not tensor.is_contiguous():
        raise TensorError("the tensor is not contiguous; pass tensor.contiguous()")
    if tensor.device.type != device.type:
        raise TensorError(f"the tensor is on {tensor.device}, the executor on {device}")
    if tensor.dtype not in SUMMABLE:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in SUMMABLE))
        raise TensorError(f"tensor.dtype is {tensor.dtype}, must be one of {names}")
    if average and not tensor.dtype.is_floating_point:
        raise TensorError(f"the average of {tensor.dtype} is not an integer; sum instead")
