"""Executes verified schedules in training, on torch.distributed.

Two ways in: ``runtime.ddp.attach(model, "schedule.json")``, or ``init_process_group`` with
``backend="latecomer"`` after ``import runtime``.
"""

from runtime import ddp
from runtime.backend import BACKEND, configure
from runtime.executor import Executor
from runtime.operation import Observer, Operation
from runtime.verified import Verified, load

__all__ = ["BACKEND", "Executor", "Observer", "Operation", "Verified", "configure", "ddp", "load"]
