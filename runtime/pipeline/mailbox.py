"""Where messages wait for the compute, by name; and where the compute waits for messages.

A message that nobody can want is an error at once: for a stage or microbatch that is not here, of
a step that is over, or one that has come before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from runtime.pipeline.messages import Name, WireError
from runtime.pipeline.staging import Staged
from verify.errors import LatecomerError


@dataclass(frozen=True)
class Arrived:
    """A message that is there.

    Attributes:
        sender: the rank it is from.
        staged: its tensors, on their way to the device.
        requires_grad: of each tensor, whether its sender tracked gradients for it.
        ready_s: the *sender's* clock when it was handed over.
        arrived_s: this rank's clock when the last byte was there.
    """

    sender: int
    staged: Staged
    requires_grad: tuple[bool, ...]
    ready_s: float
    arrived_s: float


class Mailbox:
    """Messages by name, from the receiving threads to the compute thread.

    Args:
        sources: (stage, ``RECV_F`` or ``RECV_B``) -> the rank from which it comes.
        microbatches: how many.
    """

    def __init__(self, sources: dict[tuple[int, str], int], microbatches: int) -> None:
        self._sources, self._microbatches = sources, microbatches
        self._there: dict[Name, Arrived] = {}
        self._taken: set[Name] = set()
        self._step = 0
        self._failure: LatecomerError | None = None
        self._news = threading.Condition()

    def source(self, name: Name) -> int:
        """The rank from which a message comes."""
        return self._sources[name.receive.stage, name.receive.kind]

    def begin(self, step: int) -> None:
        """A step begins; messages of earlier ones are wrong from here on."""
        with self._news:
            self._step = step
            self._taken.clear()

    def put(self, name: Name, message: Arrived) -> None:
        """A message is there.

        Raises:
            WireError: nobody can want it.
        """
        with self._news:
            if problem := self._problem(name, message.sender):
                raise WireError(f"rank {message.sender} sent {name}: {problem}")
            self._there[name] = message
            self._news.notify_all()

    def has(self, name: Name) -> bool:
        """Whether :meth:`take` would not wait."""
        return name in self._there

    def take(self, name: Name) -> Arrived:
        """Wait for a message and take it away; :meth:`fail` ends the wait.

        Raises:
            LatecomerError: what :meth:`fail` was given.
        """
        with self._news:
            self._news.wait_for(lambda: name in self._there or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            self._taken.add(name)
            return self._there.pop(name)

    def fail(self, error: LatecomerError) -> None:
        """End every wait, present and future."""
        with self._news:
            self._failure = error
            self._news.notify_all()

    def _problem(self, name: Name, sender: int) -> str:
        stage, kind, microbatch = name.receive
        expected = self._sources.get((stage, kind))
        if expected != sender:
            return "it has no business here" if expected is None else f"rank {expected} does that"
        if microbatch is None or not 0 <= microbatch < self._microbatches:
            return f"there are {self._microbatches} microbatches"
        if name.step < self._step:
            return f"step {self._step} has begun"
        if name in self._there or name in self._taken:
            return "it came a second time"
        return ""
