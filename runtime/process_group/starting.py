"""An engine that starts in the background; operations submitted meanwhile wait for it, in order.

Starting is collective: it waits for all ranks of the group. If the first all-reduce waited for it,
two ranks that come to two groups in different orders, which is legal for asynchronous calls, would
wait for each other until the time-out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from latecomer.runtime.health.native_work import FailureDetector
from latecomer.runtime.host import host
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import LatecomerError

CLOSE_S = 5.0  # how long closing waits for a start that is under way


class AllReduceEngine(FailureDetector, Protocol):
    """What is started: an executor, a dispatcher, an OptiReduce engine."""

    timeout_s: float

    def submit(self, tensor: torch.Tensor, *, average: bool) -> CollectiveWork:
        """Start the sum or average of ``tensor``, in place; returns at once."""

    def close(self, *, at_once: bool = False) -> None:
        """Release threads and connections; ``at_once``: without waiting for operations."""


class Starting:
    """An engine on its way, made by ``start`` on a thread of its own, and then the engine."""

    def __init__(self, start: Callable[[], AllReduceEngine]) -> None:
        self._started: Future[AllReduceEngine] = Future()
        # the engine, once it runs and has been handed all that has waited for it
        self.ready: AllReduceEngine | None = None
        self._numbers = itertools.count()
        self._lock = host.RLock()  # nothing overtakes what has waited for the engine
        # The thread alone has ``start``, and forgets it: it refers to the group, which is to be
        # freed as soon as it is destroyed, since Gloo's threads end with it.
        thread = host.Thread(target=self._run, args=(start,), name="latecomer-start", daemon=True)
        thread.start()

    @property
    def engine(self) -> AllReduceEngine:
        """The engine, once it runs; raises the LatecomerError for which it could not start."""
        return self._started.result()

    def submit(self, tensor: torch.Tensor, *, average: bool, **options: Any) -> CollectiveWork:
        """Start an operation now, or as soon as the engine runs; a LatecomerError if it failed."""
        return self.start(tensor, lambda engine: engine.submit(tensor, average=average, **options))

    def start(
        self, tensor: torch.Tensor, submit: Callable[[Any], CollectiveWork]
    ) -> CollectiveWork:
        """The same for any collective: ``submit`` starts it, called with the engine.

        ``tensor`` holds the result in the end.
        """
        with self._lock:
            if not self._started.done():
                work = CollectiveWork(next(self._numbers), tensor)
                self._started.add_done_callback(lambda _: self._hand_over(work, submit))
                return work
        return submit(self.engine)

    def close(self, start_s: float = CLOSE_S, *, at_once: bool = False) -> None:
        """Release the engine; one that has not started within ``start_s`` is released later."""
        try:
            self._started.exception(start_s)
        except TimeoutError:
            text = "the group was destroyed before its first all-reduce began"
            self._settle(LatecomerError(text))
        with self._lock:  # while waiting operations are handed over it is not ready yet
            engine = self.ready
        if engine is not None:
            engine.close(at_once=at_once)

    def _run(self, start: Callable[[], AllReduceEngine]) -> None:
        try:
            engine = start()
        except Exception as error:  # whatever it is, no caller may be left waiting
            failure = LatecomerError(f"all-reduce could not start: {error!r}")
            failure.__cause__ = error
            self._settle(error if isinstance(error, LatecomerError) else failure)
        else:
            if not self._settle(engine):
                engine.close()

    def _settle(self, outcome: AllReduceEngine | LatecomerError) -> bool:
        """The engine is there, or will not be; false if that was settled before."""
        with self._lock:
            if self._started.done():
                return False
            if isinstance(outcome, LatecomerError):
                self._started.set_exception(outcome)
            else:
                self._started.set_result(outcome)  # hands over, in order, what has waited
                self.ready = outcome
            return True

    def _hand_over(self, work: CollectiveWork, submit: Callable[[Any], CollectiveWork]) -> None:
        try:
            submit(self.engine).then(work.settle)
        except LatecomerError as error:
            work.settle(error)
