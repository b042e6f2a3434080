"""When each compute action and each message took place: what measurements and pictures are made of.

On CUDA the host only queues work, so actions are timed by CUDA events and read when the step is
over; the host's clock at the step's first event is their zero.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from verify.pipeline import Action


@dataclass(frozen=True)
class Span:
    """A compute action on this rank; seconds of ``time.monotonic()``."""

    action: Action
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Transit:
    """A message that came to this rank.

    Attributes:
        receive: what it answers.
        sender: the rank it is from.
        ready_s: when it was handed over, by the *sender's* clock.
        arrived_s: when it was there, by this rank's clock.
    """

    receive: Action
    sender: int
    ready_s: float
    arrived_s: float


@dataclass
class StepRecord:
    """One step on one rank.

    Attributes:
        step: its number, from 0.
        digest: of the schedule that it ran.
        began_s, ended_s: of the whole step.
    """

    step: int
    digest: str
    began_s: float
    ended_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    transits: list[Transit] = field(default_factory=list)


class Recorder:
    """Times the actions of one step at a time.

    Args:
        device: where they run.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device if device.type == "cuda" else None
        self._marks: list[tuple[Action, Any, Any]] = []
        self._last: Any = None  # where the last action ended
        self._zero: tuple[Any, float] | None = None

    def now(self) -> Any:
        """A mark on the device's time line."""
        if self._cuda is None:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._cuda))
        if self._zero is None:
            event.synchronize()
            self._zero = event, time.monotonic()
        return event

    def begin(self) -> Any:
        """A mark for an action that does not wait: what comes between two belongs to the second."""
        return self.now() if self._last is None else self._last

    def add(self, action: Action, began: Any) -> None:
        """An action ends now that began at a mark."""
        self._last = self.now()
        self._marks.append((action, began, self._last))

    def extend(self) -> None:
        """What the last action began goes on until now (the loss belongs to its forward)."""
        action, began, _ = self._marks.pop()
        self.add(action, began)

    def collect(self) -> list[Span]:
        """The actions since the last call; waits for the device."""
        spans = [Span(a, self._seconds(begin), self._seconds(end)) for a, begin, end in self._marks]
        self._marks.clear()
        self._last = self._zero = None
        return spans

    def _seconds(self, mark: Any) -> float:
        if self._zero is None:
            return float(mark)
        zero, at_zero_s = self._zero
        mark.synchronize()
        return float(at_zero_s + zero.elapsed_time(mark) / 1e3)
