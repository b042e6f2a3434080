"""Loops that numba compiles: whether that can be had here, and one process at a time that does it.

Compiling takes seconds, on the first use after an installation or an update. What was compiled is
kept in numba's cache: so one process of a machine compiles, and the others wait for its result.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from latecomer.runtime.host import host

COMPILE_S = 120.0  # how long to wait for another process that compiles, which takes some 10 s
LOOK_S = 0.05  # between two looks whether it has ended
REMEDY = "pip install numba"


def missing() -> str:
    """Why nothing can be compiled here; empty if numba is installed."""
    if importlib.util.find_spec("numba") is None:
        return f"numba is not installed ({REMEDY})"
    return ""


@contextlib.contextmanager
def alone(source: Path) -> Iterator[None]:
    """Hold a lock on ``source`` that all processes of this machine share, if it is to be had."""
    with source.open() as file:
        until_s = host.monotonic() + COMPILE_S
        while host.monotonic() < until_s:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                host.sleep(LOOK_S)
            except OSError:  # a file system without locks: each compiles for itself
                break
        yield
