"""Training with stragglers: schedules are made (``synth``), proved (``verify``), run (``runtime``).

What a training script needs:

    from latecomer import ddp, watch

    ddp.attach(model, mode="auto")
    with watch() as watched:
        ...

To import latecomer loads nothing else; each name is imported when it is first asked for. What makes
the process group backend known to torch is ``import latecomer.runtime``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latecomer.runtime import BACKEND as BACKEND
    from latecomer.runtime import AllReduceDispatcher as AllReduceDispatcher
    from latecomer.runtime import Executor as Executor
    from latecomer.runtime import Observer as Observer
    from latecomer.runtime import Operation as Operation
    from latecomer.runtime import Verified as Verified
    from latecomer.runtime import Watch as Watch
    from latecomer.runtime import configure as configure
    from latecomer.runtime import load as load
    from latecomer.runtime import serve_dumps as serve_dumps
    from latecomer.runtime import watch as watch

    __version__: str

_PARTS = ("ddp", "elastic", "runtime", "synth", "torchft", "verify")
_OF_RUNTIME = (
    "BACKEND",
    "AllReduceDispatcher",
    "Executor",
    "Observer",
    "Operation",
    "Verified",
    "Watch",
    "configure",
    "load",
    "serve_dumps",
    "watch",
)


def __getattr__(name: str) -> Any:
    """A part of latecomer, a name of ``latecomer.runtime``, or the version."""
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _OF_RUNTIME:
        return getattr(importlib.import_module(f"{__name__}.runtime"), name)
    if name == "__version__":
        return importlib.import_module(f"{__name__}.verify.version").version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PARTS, *_OF_RUNTIME, "__version__"])
