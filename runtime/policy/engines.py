"""What runs a mode's all-reduces in a group of any size: a dispatcher, or a group of one."""

from __future__ import annotations

from typing import Any

import torch

from latecomer.runtime.policy.alone import GroupOfOne
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import Store

ModeEngine = AllReduceDispatcher | GroupOfOne


def make_engine(
    store: Store,
    rank: int,
    size: int,
    *,
    options: Options,
    device: torch.device,
    timeout_s: float,
    **of_dispatcher: Any,
) -> ModeEngine:
    """The engine of one rank of a group (collective).

    All arguments, and what is raised: see :class:`AllReduceDispatcher`. Where a rank is alone
    nobody is waited for, so ``of_dispatcher`` counts among several only.
    """
    if size == 1:
        return GroupOfOne(store, options=options, device=device, timeout_s=timeout_s)
    return AllReduceDispatcher(
        store,
        rank,
        size,
        options=options,
        device=device,
        timeout_s=timeout_s,
        **of_dispatcher,
    )
