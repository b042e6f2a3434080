"""A solver call that Ctrl-C can stop.

While a solver runs in the main thread Python can't act on SIGINT, and solvers that catch it
themselves return "no answer", which looks like a time-out. So the solver runs in a thread of its
own; the main thread waits, and on KeyboardInterrupt stops the solver and passes it on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")
LOOK_S = 0.1
"""The main thread looks up so often: the kernel may hand SIGINT to any thread, which does not end
a wait of the main thread, the only one in which Python acts on it."""


def interruptible(call: Callable[[], T], stop: Callable[[], object]) -> T:
    """``call()``'s result; on KeyboardInterrupt ``stop()`` has to make ``call`` return soon."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        running = pool.submit(call)
        try:
            while not running.done():
                wait([running], timeout=LOOK_S)
        except KeyboardInterrupt:
            while not running.done():  # a solver that has not quite started forgets a stop
                stop()
                wait([running], timeout=LOOK_S)
            raise
        return running.result()
