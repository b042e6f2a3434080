"""An engine that starts in the background; operations submitted meanwhile wait for it, in order.

Starting is collective: it waits for all ranks of the group. If the first all-reduce waited for it,
two ranks that come to two groups in different orders, which is legal for asynchronous calls, would
wait for each other until the time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch

from runtime.health.native_work import FailureDetector
from runtime.work import AllReduceWork
from verify.errors import LatecomerError

CLOSE_S = 5.0


class Engine(FailureDetector, Protocol):
    """What is started: an executor, a dispatcher, an OptiReduce engine."""

    def submit(self, tensor: torch.Tensor, *, average: bool) -> AllReduceWork:
        """Start the sum or average of ``tensor``, in place; returns at once."""

    def close(self) -> None:
        """Release threads and connections."""


E = TypeVar("E", bound=Engine)


class Starting(Generic[E]):
    """An engine on its way, made by ``start`` on a thread of its own, and then the engine.

    Attributes:
        ready: the engine, if it runs.
    """

    def __init__(self, start: Callable[[], E]) -> None:
        self.ready: E | None = None
        self._error: LatecomerError | None = None
        self._waiting: list[tuple[AllReduceWork, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        threading.Thread(
            target=self._run, args=(start,), name="latecomer-start", daemon=True
        ).start()

    @property
    def engine(self) -> E:
        """The engine, once it runs.

        Raises:
            LatecomerError: why it could not start.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error
        assert self.ready is not None
        return self.ready

    def submit(self, tensor: torch.Tensor, *, average: bool, **options: Any) -> AllReduceWork:
        """Start an operation now, or as soon as the engine runs; returns at once.

        Raises:
            LatecomerError: the engine could not start, or has failed before.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self.ready is None:
                work = AllReduceWork(len(self._waiting), tensor, average)
                self._waiting.append((work, options))
                return work
        return self.ready.submit(tensor, average=average, **options)

    def close(self) -> None:
        """Release the engine; one that has not started after some seconds is released later."""
        if not self._over.wait(CLOSE_S):
            self._fail(LatecomerError("the group was destroyed before its first all-reduce began"))
        elif self.ready is not None:
            self.ready.close()

    def _run(self, start: Callable[[], E]) -> None:
        try:
            engine = start()
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
                    self.ready = engine
            if self.ready is None:
                engine.close()
        self._over.set()

    def _hand_over(self, engine: E) -> None:
        for work, options in self._waiting:
            try:
                started = engine.submit(work.tensor, average=work.average, **options)
            except LatecomerError as error:
                work.settle(error)
            else:
                started.then(work.settle)

    def _fail(self, error: LatecomerError) -> None:
        with self._lock:
            self._error = error
            waiting, self._waiting = self._waiting, []
        for work, _ in waiting:
            work.settle(error)
