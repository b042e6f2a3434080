"""Executes verified schedules in training, on torch.distributed.

Two ways in: ``runtime.ddp.attach(model, mode="auto")``, or ``init_process_group`` with
``backend="latecomer"`` after ``import runtime``. Instead of a mode there may be a schedule.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

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


def _is_command() -> bool:
    """Whether Python was started as ``python -m runtime``, with any options of its own."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "") == "runtime"
        if word in ("-X", "-W"):
            next(words, "")  # its value
        elif not word.startswith("-"):
            return False  # a script, and what follows is the script's
    return False


# A program that trains gets all of it at once: the import makes the backend known to torch, which
# nothing that comes later could see to. A command loads torch only if it has a use for it.
if TYPE_CHECKING or not _is_command():
    from runtime import ddp
    from runtime.backend import BACKEND
    from runtime.config import configure
    from runtime.executor.executor import Executor
    from runtime.executor.load import Verified, load
    from runtime.policy.dispatcher import AllReduceDispatcher
    from runtime.telemetry.session import Watch, watch
    from runtime.work import AllReduceWork as Operation
    from runtime.work import Observer
else:
    _HOMES = {
        "BACKEND": "runtime.backend",
        "AllReduceDispatcher": "runtime.policy.dispatcher",
        "Executor": "runtime.executor.executor",
        "Observer": "runtime.work",
        "Verified": "runtime.executor.load",
        "Watch": "runtime.telemetry.session",
        "configure": "runtime.config",
        "load": "runtime.executor.load",
        "watch": "runtime.telemetry.session",
    }

    def __getattr__(name: str) -> Any:
        """What a command asks for, imported when it does."""
        if name == "ddp":
            return importlib.import_module("runtime.ddp")
        if name == "Operation":
            return importlib.import_module("runtime.work").AllReduceWork
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
