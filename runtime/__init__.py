"""Executes verified schedules in training, on torch.distributed.

Two ways in: ``runtime.ddp.attach(model, mode="auto")``, or ``init_process_group`` with
``backend="latecomer"`` after ``import runtime``. Instead of a mode there may be a schedule.
"""

from runtime import ddp
from runtime.backend import BACKEND
from runtime.config import configure
from runtime.executor.executor import Executor
from runtime.executor.load import Verified, load
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.telemetry.session import Watch, watch
from runtime.work import AllReduceWork as Operation
from runtime.work import Observer

__all__ = [
    "BACKEND",
    "AllReduceDispatcher",
    "Executor",
    "Observer",
    "Operation",
    "Verified",
    "Watch",
    "configure",
    "ddp",
    "load",
    "watch",
]
