"""OptiReduce under ``init_process_group``: all_reduce over UBT, every other collective over Gloo.

    runtime.configure(algorithm="optireduce")        # or LATECOMER_ALGORITHM=optireduce
    dist.init_process_group(backend="latecomer")

An ``all_reduce`` goes by OptiReduce when it is SUM or AVG of one dense floating point tensor on the
CPU; what goes by Gloo instead is counted in ``paths`` of the group and logged once per reason. Each
``all_reduce`` is a step of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.options import Options
from runtime.process_group.collectives import Collectives


class OptiReduceCollectives(Collectives):
    """All-reduces over UBT."""

    path = "optireduce"
    dtypes = FLOATS
    chosen: Options

    def unfit(self, device: torch.device) -> str:
        """OptiReduce takes CPU tensors."""
        return "" if device.type == "cpu" else f"device {device.type}"

    def start(self, device: torch.device, *place: Any, **common: Any) -> Engine:
        """An engine (collective)."""
        return Engine(*place, options=self.chosen, **common)
