"""Executes verified schedules in training, on torch.distributed.

Two ways in: ``runtime.ddp.attach(model, mode="auto")``, or ``init_process_group`` with
``backend="latecomer"`` after ``import runtime``. Instead of a mode there may be a schedule.
"""

from runtime import ddp
from runtime.backend import BACKEND
from runtime.configuration import configure
from runtime.executor import Executor
from runtime.operation import Observer, Operation
from runtime.reducer import Reducer
from runtime.verified import Verified, load
from runtime.watching import Watch, watch

__all__ = [
    "BACKEND",
    "Executor",
    "Observer",
    "Operation",
    "Reducer",
    "Verified",
    "Watch",
    "configure",
    "ddp",
    "load",
    "watch",
]
