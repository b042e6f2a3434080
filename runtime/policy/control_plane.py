"""A rank's control plane: its agent, at work on a control channel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from latecomer.runtime.host import Empty, SimpleQueue, host
from latecomer.runtime.network.clock import REFERENCE, Aligned, Alignment, Ping, Pong
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.protocol import ProtocolRunner
from latecomer.runtime.policy.agent import Decided, RankAgent
from latecomer.runtime.policy.arrivals import BufferSignature
from latecomer.runtime.policy.coordinator import Fault
from latecomer.runtime.policy.messages import Decision, OnTime, PolicyMessage

logger = logging.getLogger("latecomer")


class ControlPlaneClosed(Exception):
    """The control plane has ended: the executor has failed, or is being closed."""


class ControlPlane(ProtocolRunner[PolicyMessage, Aligned | Decided | Fault]):
    """A rank's agent and its decisions, which are taken in the order of operations.

    Args:
        agent: is owned, and used by nobody else.
        on_decided: is called whenever a decision can be taken, on the thread by which it became
            known and with the protocol's lock held; must be quick and must not wait.
        on_fault: is called on a thread of its own, once, if ranks disagree or the agent breaks. It
            may wait for other ranks, which neither the control loop may nor who holds the lock.
    """

    def __init__(
        self,
        agent: RankAgent,
        datagrams: ControlChannel,
        *,
        on_decided: Callable[[], None],
        on_fault: Callable[[Fault], None],
    ) -> None:
        self._agent = agent
        self._on_decided = on_decided
        self._on_fault = on_fault
        self._aligned = host.Event()
        self._decisions: SimpleQueue[Decided | None] = host.SimpleQueue()
        super().__init__(agent, datagrams, "decisions", PolicyMessage)

    @property
    def sent(self) -> int:
        """Messages sent about operations and epochs (not those that align clocks)."""
        return self._sent.total() - self._sent[Ping] - self._sent[Pong]

    def align(self, within_s: float) -> None:
        """Wait until this rank's clock is aligned, or all is over; no longer than ``within_s``."""
        is_aligned = self._aligned.wait(within_s)
        if not is_aligned and REFERENCE in self._datagrams.never_heard():
            logger.warning(
                "rank %d: UDP from rank %d does not arrive: is a firewall between? "
                "Modes eager and auto need it; the others go on, but may name a living rank "
                "when one fails",
                self._agent.rank,
                REFERENCE,
            )

    def arrive(
        self,
        operation: int,
        buffer: BufferSignature,
        *,
        on_device: bool = False,
        is_off: bool = False,
    ) -> None:
        """This rank comes to an operation, as in :meth:`RankAgent.arrive`."""
        arrive = partial(self._agent.arrive, operation, buffer)
        self.run(lambda now_s: arrive(now_s, on_device=on_device, is_off=is_off))

    def decide_at_once(self, operation: int, buffer: BufferSignature) -> Decision | None:
        """See :meth:`RankAgent.decide_at_once`: in place of :meth:`arrive` and the decision."""
        with self._lock:  # nothing is sent
            return self._agent.decide_at_once(operation, buffer, host.monotonic())

    def reached(self, operation: int, at_s: float) -> None:
        """This rank's device came to an operation at ``at_s`` (``time.monotonic()``)."""
        self.run(lambda now_s: self._agent.reached(operation, at_s, now_s))

    @property
    def knows_next(self) -> bool:
        """Whether the next decision is there to be taken, or will never come."""
        return not self._decisions.empty()

    def decision(self, operation: int) -> Decision:
        """Wait for the decision on ``operation``, the next; or raise ControlPlaneClosed."""
        return self._decision_of(operation, self._decisions.get())

    def decision_if_known(self, operation: int) -> Decision | None:
        """As :meth:`decision`, without waiting: None if it is not known yet."""
        try:
            decided = self._decisions.get_nowait()
        except Empty:
            return None
        return self._decision_of(operation, decided)

    def _decision_of(self, operation: int, decided: Decided | None) -> Decision:
        if decided is None:
            self._decisions.put(None)  # for those that ask later
            raise ControlPlaneClosed
        assert decided.operation == operation
        return decided.decision

    def has_made(self, candidate: int) -> None:
        """This rank can run a candidate without making anything first."""
        self.run(lambda now_s: setattr(self._agent, "made", self._agent.made | 1 << candidate))

    def done(self, operation: int) -> None:
        """This rank has the result of an operation."""
        with self._lock:  # nothing follows from it at once: it is told with what comes next
            self._agent.done(operation, host.monotonic())

    def waits_for(self, operation: int) -> int:
        """The rank whose word a decision waits for."""
        return self.run(lambda now_s: self._agent.waits_for(operation))

    @property
    def on_time(self) -> OnTime:
        """How operations run for which all ranks are waited for, as far as that is settled."""
        with self._lock:  # nothing is sent, and it may be asked when all is over
            return self._agent.epochs.latest.on_time

    def alignment(self) -> Alignment:
        """How this rank's clock relates to the reference's now, with a finite uncertainty."""
        with self._lock:  # nothing is sent
            return self._agent.clock.alignment(host.monotonic()).finite

    def arrivals(self, after: int) -> NDArray[np.float64]:
        """Of the last operations, without the first ``after``: see :meth:`History.last`."""
        with self._lock:  # nothing is sent, and it may be asked when all is over
            history = self._agent.inputs.history
            return history.last(history.added - after)

    def close(self) -> None:
        """End the waits; messages are no longer answered with decisions."""
        self._decisions.put(None)
        self._aligned.set()
        super().close()

    def handle_event(self, event: Aligned | Decided | Fault) -> None:
        """Hand it to who waits for it."""
        if isinstance(event, Decided):
            self._decisions.put(event)
            self._on_decided()
        elif isinstance(event, Aligned):
            self._aligned.set()
        else:
            self._tell_of(event)

    def handle_error(self, error: Exception) -> None:
        """No decision would ever come."""
        self._tell_of(Fault((self._agent.rank,), f"broke its control plane, {error!r}"))

    def _tell_of(self, fault: Fault) -> None:
        host.Thread(
            target=self._on_fault, args=(fault,), name="latecomer-fault", daemon=True
        ).start()
