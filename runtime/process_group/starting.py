"""An engine that starts in the background; operations submitted meanwhile wait for it, in order.

Starting is collective: it waits for all ranks of the group. If the first all-reduce waited for it,
two ranks that come to two groups in different orders, which is legal for asynchronous calls, would
wait for each other until the time-out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch

from runtime.health.native_work import FailureDetector
from runtime.work import AllReduceWork
from verify.errors import LatecomerError

CLOSE_S = 5.0


class Engine(FailureDetector, Protocol):
    """What is started: an executor, a reducer, an OptiReduce engine."""

    def submit(self, tensor: torch.Tensor, *, average: bool) -> AllReduceWork:
        """Start the sum or average of ``tensor``, in place; returns at once."""

    def close(self) -> None:
        """Release threads and connections."""


E = TypeVar("E", bound=Engine)


class Starting(Generic[E]):
    """An engine on its way, and then the engine.

    Args:
        start: makes the engine; called once, on a thread of its own.
    """

    def __init__(self, start: Callable[[], E]) -> None:
        self._start = start
        self._engine: E | None = None
        self._error: LatecomerError | None = None
        self._closed = False
        self._waiting: deque[tuple[AllReduceWork, dict[str, Any]]] = deque()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latecomer-start", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> E | None:
        """The engine, if it runs."""
        return self._engine

    @property
    def engine(self) -> E:
        """The engine, once it runs.

        Raises:
            LatecomerError: why it could not start.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error
        assert self._engine is not None
        return self._engine

    def submit(self, tensor: torch.Tensor, *, average: bool, **options: Any) -> AllReduceWork:
        """Start an operation now, or as soon as the engine runs; returns at once.

        Raises:
            LatecomerError: the engine could not start, or has failed before.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._engine is None:
                operation = AllReduceWork(len(self._waiting), tensor, average, time.monotonic())
                self._waiting.append((operation, options))
                return operation
        return self._engine.submit(tensor, average=average, **options)

    def close(self) -> None:
        """Release the engine; one that has not started after some seconds is released later."""
        with self._lock:
            self._closed = True
        if not self._over.wait(CLOSE_S):
            self._fail(LatecomerError("the group was destroyed before its first all-reduce began"))
        elif self._engine is not None:
            self._engine.close()

    def _run(self) -> None:
        try:
            engine = self._start()
        except LatecomerError as error:
            self._fail(error)
        except Exception as error:  # whatever it is, nobody may be left waiting
            failure = LatecomerError(f"all-reduce could not start: {error!r}")
            failure.__cause__ = error
            self._fail(failure)
        else:
            with self._lock:
                if self._error is None:
                    self._hand_over(engine)
                    self._engine = engine
            if self._engine is None:
                engine.close()
        self._over.set()

    def _hand_over(self, engine: E) -> None:
        while self._waiting:
            operation, options = self._waiting.popleft()
            try:
                started = engine.submit(operation.tensor, average=operation.average, **options)
            except LatecomerError as error:
                operation.settle(error)
            else:
                started.then(operation.settle)

    def _fail(self, error: LatecomerError) -> None:
        with self._lock:
            self._error = error
            waiting, self._waiting = self._waiting, deque()
        for operation, _ in waiting:
            operation.settle(error)
