"""Closes what still runs when the program ends, while the interpreter is whole.

A program should call ``destroy_process_group()``, or ``close()`` of what it has attached. In one
that does neither, threads of ours are inside torch when the interpreter is taken down. Python then
ends each thread that asks for the interpreter's lock, by unwinding its stack; but a thread that
comes back from a wait in torch asks for it in a C++ destructor, which must not be unwound. So the
process would abort ("terminate called without an active exception") instead of ending with its
exit code.

Gloo's own threads do the same when they let go of the tensors of an operation, a moment after
those who waited for it have gone on. A group that is destroyed takes its threads with it, unless
the program still refers to it. So before the interpreter goes, they get the time to come to rest.

A program that ends well gets what is under way done, within :data:`PATIENCE_S`. After an exception
that nobody has caught it is given up at once: the other ranks must not learn later that this one is
gone, just because it has tidied up.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from latecomer.runtime.host import host

PATIENCE_S = 5.0  # from here on all that is still open is closed at once
REST_S = 1.0  # so long at most threads of Gloo's get to come to rest
LOOK_S = 0.001  # between two looks at them
GLOO_THREAD = "pt_gloo_runloop"  # the name that torch gives them
TASKS = Path("/proc/self/task")  # on Linux, the threads of this process

logger = logging.getLogger("latecomer")


class Closable(Protocol):
    """What has threads and connections: an executor, a dispatcher, a process group."""

    def close(self, *, at_once: bool = False) -> None:
        """Release them; ``at_once``: without waiting for what is under way."""


_open: dict[Closable, None] = {}  # in the order in which they began


def close_at_exit(closable: Closable) -> None:
    """Close it when the program ends, unless :func:`has_closed` is told before.

    The last comes first: what is made of others closes them, too.
    """
    has_closed(closable)  # which puts it behind what has begun since
    _open[closable] = None


def has_closed(closable: Closable) -> None:
    """It is closed, or is being closed."""
    _open.pop(closable, None)


@contextlib.contextmanager
def forgotten_after() -> Iterator[None]:
    """What begins within the block is forgotten at its end: the machine that it ran on is gone."""
    before = dict(_open)
    try:
        yield
    finally:
        _open.clear()
        _open.update(before)


def _close_all() -> None:
    # Python sets it for exceptions that end a program; neither for sys.exit() nor for those caught.
    has_failed = hasattr(sys, "last_value")
    give_up_s = host.monotonic() + PATIENCE_S
    # One by one, not over a copy: what closes takes its own parts out of it.
    while _open:
        closable, _ = _open.popitem()
        at_once = has_failed or host.monotonic() > give_up_s
        try:
            closable.close(at_once=at_once)
        except Exception:  # the others have to be closed all the same
            logger.exception("%r could not be closed at the end of the program", closable)
    wait_until_gloo_rests()


def wait_until_gloo_rests() -> None:
    """Wait, for ``REST_S`` at most, until every thread of Gloo's sleeps.

    It has to sleep at two looks in a row: one that waits for the interpreter's lock sleeps, too,
    and gets it between them.
    """
    give_up_s = host.monotonic() + REST_S
    looks = 0
    while looks < 2 and host.monotonic() < give_up_s:
        host.sleep(LOOK_S)
        looks = 0 if _gloo_runs() else looks + 1


def _gloo_runs() -> bool:
    """Whether a thread of Gloo's runs, or would if a processor were free."""
    for task in TASKS.glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            name, _, state = task.read_text().partition("(")[2].rpartition(") ")
            if name == GLOO_THREAD and state.startswith("R"):
                return True
    return False


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)  # the threads are the parent's
