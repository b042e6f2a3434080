"""When each action of a step took place on this rank.

On CUDA actions are timed by events, which are read when the step is over; the host's clock at the
step's first event is their zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from latecomer.runtime.host import host
from latecomer.verify.pipeline import Action
from latecomer.verify.pipeline.measured import Span, StepRecord


class StepRecorder:
    """Times the actions of one step at a time on ``device``."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self.begin(-1, "")

    def begin(self, step: int, digest: str) -> None:
        """A step begins."""
        self.record = StepRecord(step, digest, host.monotonic())
        self._marks: list[tuple[Action, Any, Any]] = []
        self._began: Any = None
        self._last: Any = None  # where the last action ended
        self._zero: tuple[Any, float] | None = None

    @contextlib.contextmanager
    def timed(self, action: Action) -> Iterator[None]:
        """Inside is an action; what comes between two belongs to the second."""
        self._began = self._now() if self._last is None else self._last
        yield
        self._end(action, self._began)

    def restart(self) -> None:
        """The action begins now: it had to wait."""
        self._began = self._now()

    def with_loss(self, loss_fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The same function, whose time belongs to the forward before it."""

        def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = loss_fn(*args, **kwargs)
            action, began, _ = self._marks.pop()
            self._end(action, began)
            return loss

        return timed

    def end(self) -> StepRecord:
        """The step has ended; waits for the device."""
        marks = self._marks
        self.record.spans = [
            Span(action, self._seconds(began), self._seconds(ended))
            for action, began, ended in marks
        ]
        self.record.ended_s = host.monotonic()
        return self.record

    def _end(self, action: Action, began: Any) -> None:
        self._last = self._now()
        self._marks.append((action, began, self._last))

    def _now(self) -> Any:
        """A mark on the device's time line."""
        if self._cuda is None:
            return host.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._cuda))
        if self._zero is None:
            event.synchronize()
            self._zero = event, host.monotonic()
        return event

    def _seconds(self, mark: Any) -> float:
        if self._zero is None:
            return float(mark)
        zero, at_zero_s = self._zero
        mark.synchronize()
        return float(at_zero_s + zero.elapsed_time(mark) / 1e3)
