"""``latecomer.runtime.torchft``, under the name that scripts use."""

from latecomer.runtime.torchft import DistributedDataParallel, ProcessGroup, ddp_hook

__all__ = ["DistributedDataParallel", "ProcessGroup", "ddp_hook"]
