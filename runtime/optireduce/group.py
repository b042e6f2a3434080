"""OptiReduce under ``init_process_group``: all_reduce over UBT, every other collective over Gloo.

    runtime.configure(algorithm="optireduce")        # or LATECOMER_ALGORITHM=optireduce
    dist.init_process_group(backend="latecomer")

An ``all_reduce`` goes by OptiReduce when it is SUM or AVG of one dense floating point tensor on the
CPU; what goes by Gloo instead is counted in ``paths`` of the group and logged once per reason. Each
``all_reduce`` is a step of its own.
"""

from __future__ import annotations

from datetime import timedelta

import torch

from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.options import Options
from runtime.process_group.collectives import Collectives
from runtime.torch_versions import PrefixStore, Store


class OptiReduceCollectives(Collectives):
    """All-reduces over UBT."""

    path = "optireduce"
    dtypes = FLOATS

    def __init__(
        self, store: Store, rank: int, size: int, timeout: timedelta, options: Options
    ) -> None:
        super().__init__(store, rank, size, timeout)
        self._options = options

    def unfit(self, device: torch.device) -> str:
        """OptiReduce takes CPU tensors."""
        return "" if device.type == "cpu" else f"device {device.type}"

    def start(self, store: Store, device: torch.device) -> Engine:
        """An engine (collective)."""
        return Engine(
            PrefixStore("latecomer/optireduce", store),
            self.rank,
            self.size,
            options=self._options,
            timeout_s=self.timeout.total_seconds(),
            native_waits=self.waits,
        )

    def child(
        self, store: Store, rank: int, size: int, timeout: timedelta
    ) -> OptiReduceCollectives:
        """OptiReduce on fewer ranks."""
        return OptiReduceCollectives(store, rank, size, timeout, self._options)
