"""All-reduces that absorb stragglers, for replicas that torchft's ``Manager`` keeps together.

    from latecomer.torchft import DistributedDataParallel, ProcessGroup

    manager = torchft.Manager(pg=ProcessGroup(timeout=60, silence=0.5), ...)
    model = DistributedDataParallel(manager, net)

torchft finds out who is there and heals who comes back (arXiv 2512.23080 is its neighbour for many
thousands of GPUs); this says within ``silence`` that one is gone, and waits for one that is late.
"""

try:
    import torchft as _  # noqa: F401
except ImportError as error:
    raise ImportError(
        "latecomer.torchft needs torchft, which is not installed: pip install 'latecomer[torchft]'"
    ) from error

from latecomer.runtime.torchft.ddp import DistributedDataParallel, ddp_hook
from latecomer.runtime.torchft.process_group import ProcessGroup

__all__ = ["DistributedDataParallel", "ProcessGroup", "ddp_hook"]
