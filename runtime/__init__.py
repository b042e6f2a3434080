"""Executes verified schedules in training, on torch.distributed.

Two ways in: ``latecomer.ddp.attach(model, mode="auto")``, or ``init_process_group`` with
``backend="latecomer"`` after ``import latecomer.runtime``. Instead of a mode there may be a
schedule.
"""

if __name__ != "latecomer.runtime":
    raise ImportError("runtime is a part of latecomer: import latecomer.runtime in its place")


import importlib
import sys
from pathlib import Path
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
    "serve_dumps",
    "watch",
]


def _is_command() -> bool:
    """Whether Python was started for the command ``latecomer``, with any options of its own."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "") == "latecomer"
        if word in ("-X", "-W"):
            next(words, "")  # its value
        elif not word.startswith("-"):
            return Path(word).name == "latecomer"  # a script, and what follows is the script's
    return False


# A program that trains gets all of it at once: the import makes the backend known to torch, which
# nothing that comes later could see to. A command loads torch only if it has a use for it.
if TYPE_CHECKING or not _is_command():
    from latecomer.runtime import ddp
    from latecomer.runtime.backend import BACKEND
    from latecomer.runtime.config import configure
    from latecomer.runtime.executor.executor import Executor
    from latecomer.runtime.executor.load import Verified, load
    from latecomer.runtime.explain.serving import serve_dumps
    from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
    from latecomer.runtime.telemetry.session import Watch, watch
    from latecomer.runtime.work import CollectiveWork as Operation
    from latecomer.runtime.work import Observer
else:
    _HOMES = {
        "BACKEND": "latecomer.runtime.backend",
        "AllReduceDispatcher": "latecomer.runtime.policy.dispatcher",
        "Executor": "latecomer.runtime.executor.executor",
        "Observer": "latecomer.runtime.work",
        "Verified": "latecomer.runtime.executor.load",
        "Watch": "latecomer.runtime.telemetry.session",
        "configure": "latecomer.runtime.config",
        "load": "latecomer.runtime.executor.load",
        "serve_dumps": "latecomer.runtime.explain.serving",
        "watch": "latecomer.runtime.telemetry.session",
    }

    def __getattr__(name: str) -> Any:
        """What a command asks for, imported when it does."""
        if name == "ddp":
            return importlib.import_module("latecomer.runtime.ddp")
        if name == "Operation":
            return importlib.import_module("latecomer.runtime.work").CollectiveWork
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)
