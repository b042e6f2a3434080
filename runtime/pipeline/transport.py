"""Connections between neighbouring stages, each driven by threads of its own; and injected delays.

One TCP connection per direction of each link. A message is handed to the sending thread of its
connection and the compute goes on; the receiving thread of the other end reads at any time, so no
send waits for a receive. A small message in host memory is written at once, as far as the kernel
takes it. (The source's delegates are processes; threads do, for socket calls and kernels run
without the interpreter's lock.)

Delays are injected for tests and demonstrations, never unless handed in. Their model is that of
schedule files: a message holds its direction of the link for ``occupancy_s``, others wait in line,
and is there ``latency_s`` later; any number may be in that latency.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, cast

from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import SHUT_RDWR, Queue, Thread, host
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.mesh import connect
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.pipeline.load import senders
from latecomer.runtime.pipeline.messages import (
    Arrived,
    Mailbox,
    MessageHeader,
    WireError,
    read,
    write,
)
from latecomer.runtime.pipeline.staging import HostStaging, Staged, Tensors
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline import Action, PipelineSchedule, parse_action
from latecomer.verify.pipeline.measured import Transit

GOODBYE = MessageHeader(step=-1, action="0RECV_F0", ready_s=0.0, tensors=())  # closed on purpose
SMALL = 2**16  # bytes up to which a message is written at once, not by the sending thread
BUFFER = 2**16  # bytes, of a reader
BLOCKED_S = 0.1  # a blocking send looks this often whether the connections are gone


@dataclass(frozen=True)
class LinkFault:
    """A delay on what ``sender`` sends to ``receiver``, in some steps."""

    sender: int
    receiver: int
    latency_s: float = 0.0
    occupancy_s: float = 0.0
    first_step: int = 0
    last_step: int | None = None  # included; None: all steps that follow

    def __post_init__(self) -> None:
        for name in ("latency_s", "occupancy_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ArgumentError(name, getattr(self, name), "must be 0 or more seconds")

    def active(self, sender: int, receiver: int, step: int) -> bool:
        """Whether it holds for a message of this step."""
        is_this_link = (sender, receiver) == (self.sender, self.receiver)
        is_over = self.last_step is not None and step > self.last_step
        return is_this_link and step >= self.first_step and not is_over


class Faults:
    """All delays to inject, the same on every rank; several on one link add up.

    ``blocking`` imitates a runtime without transport of its own, whose sends sit in line with the
    compute: the sender goes on only when its message has reached the other end.

    Examples:
        >>> from latecomer.runtime.pipeline import Faults, LinkFault
        >>> faults = Faults([LinkFault(sender=0, receiver=1, latency_s=0.03, first_step=6)])
        >>> faults.delay_s(0, 1, step=6), faults.delay_s(1, 0, step=6)
        ((0.03, 0.0), (0, 0))
    """

    def __init__(self, faults: Iterable[LinkFault] = (), *, blocking: bool = False) -> None:
        self._faults = tuple(faults)
        self.blocking = blocking

    def delay_s(self, sender: int, receiver: int, step: int) -> tuple[float, float]:
        """(latency, occupancy) in seconds of a message of ``step``."""
        active = [fault for fault in self._faults if fault.active(sender, receiver, step)]
        latency_s = sum(fault.latency_s for fault in active)
        occupancy_s = sum(fault.occupancy_s for fault in active)
        return latency_s, occupancy_s


def both_ways(one: int, other: int, **delay: Any) -> tuple[LinkFault, LinkFault]:
    """The same delay, as for ``LinkFault``, in both directions between two ranks.

    Examples:
        >>> from latecomer.runtime.pipeline import Faults, both_ways
        >>> Faults(both_ways(1, 2, latency_s=0.03)).delay_s(2, 1, step=0)
        (0.03, 0.0)
    """
    return LinkFault(one, other, **delay), LinkFault(other, one, **delay)


def due_s(ready_s: float, link_free_s: float, delay: tuple[float, float]) -> tuple[float, float]:
    """When a message is there that was handed over at ``ready_s``, and its link is free again."""
    latency_s, occupancy_s = delay
    free_s = max(ready_s, link_free_s) + occupancy_s
    return free_s + latency_s, free_s


@dataclass
class OutgoingMessage:
    """A message that waits to be sent, or the rest of one that was sent in part."""

    header: MessageHeader
    staged: Staged
    delay: tuple[float, float] = (0.0, 0.0)
    unsent: bytes = b""  # the rest


class Transport:
    """One rank's connections to and from its neighbours; RankFailure for those that don't come.

    Nothing else uses the group's store; the watchdog is told when a connection ends.
    """

    def __init__(
        self,
        group: StoreExchange,
        channel: ControlChannel,
        plan: PipelineSchedule,
        mailbox: Mailbox,
        staging: HostStaging,
        faults: Faults,
        watchdog: Watchdog,
    ) -> None:
        self.mailbox = mailbox
        self.staging = staging
        self._rank = group.rank
        self._rank_of = dict(plan.rank_of)
        self._faults = faults
        self._watchdog = watchdog
        self._closing = False
        peers = set(senders(plan, group.rank).values())
        self._outgoing, self._incoming = connect(
            group, channel.address, channel.token, to=peers, origin=peers
        )
        self._waiting: dict[int, Queue[OutgoingMessage | None]] = {}
        for peer in peers:
            self._waiting[peer] = host.Queue()
        self._connections = [*self._outgoing.values(), *self._incoming.values()]
        for connection in self._connections:
            connection.setblocking(True)
        self._sending = [self._start(self._send, "to", peer) for peer in peers]
        self._receiving = [self._start(self._receive, "from", peer) for peer in peers]

    def send(self, receive: Action, tensors: Tensors) -> None:
        """Hand over the message that ``receive`` waits for; TensorError for what can't travel."""
        peer = self._rank_of[receive.stage]
        step = self.mailbox.step
        header = MessageHeader.of(step, receive, tensors)
        delay = self._faults.delay_s(self._rank, peer, step)
        waiting = self._waiting[peer]
        small = self.staging.direct and sum(t.nbytes for t in tensors if t is not None) <= SMALL
        # In order: only where nothing is on its way, not even in the thread that sends.
        if small and not waiting.unfinished_tasks and not any(delay):
            unsent = write(self._outgoing[peer], header, tensors, wait=False)
            if not unsent:
                return
            waiting.put(OutgoingMessage(header, Staged([]), unsent=unsent))
        else:
            waiting.put(OutgoingMessage(header, self.staging.take(tensors), delay))
        while self._faults.blocking and not self._closing and waiting.unfinished_tasks:
            with waiting.all_tasks_done:
                waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, BLOCKED_S)

    def abort(self) -> None:
        """End all transfers, here and at the other ends."""
        self._closing = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(SHUT_RDWR)
        for waiting in self._waiting.values():
            waiting.put(None)

    def close(self, limit_s: float) -> None:
        """Let what was handed over leave within ``limit_s`` seconds, then disconnect."""
        for waiting in self._waiting.values():
            waiting.put(None)
        deadline = host.monotonic() + limit_s
        for thread in self._sending:
            thread.join(max(0.0, deadline - host.monotonic()))
        self.abort()
        for thread in (*self._sending, *self._receiving):
            thread.join(max(0.1, deadline - host.monotonic()))
        for connection in self._connections:
            connection.close()

    def _start(self, body: Callable[[int], None], direction: str, peer: int) -> Thread:
        def run() -> None:
            try:
                body(peer)
            except (OSError, WireError) as error:
                if not self._closing:
                    self._watchdog.fail(f"the connection {direction} rank {peer} failed: {error}")
            except Exception as error:  # whatever it is, no rank may be left waiting
                if not self._closing:
                    self._watchdog.broke(error)

        thread = host.Thread(target=run, name=f"latecomer-{direction}-{peer}", daemon=True)
        thread.start()
        return thread

    def _send(self, peer: int) -> None:
        connection = self._outgoing[peer]
        waiting = self._waiting[peer]
        link_free_s = 0.0
        while (message := waiting.get()) is not None:
            tensors = self.staging.host(message.staged)
            if any(message.delay):
                due, link_free_s = due_s(message.header.ready_s, link_free_s, message.delay)
                host.sleep(max(0.0, due - host.monotonic()))
            connection.sendall(message.unsent or write(connection, message.header, tensors))
            waiting.task_done()
        with contextlib.suppress(OSError):  # a peer that has said goodbye itself may be gone by now
            connection.sendall(write(connection, GOODBYE, ()))

    def _receive(self, peer: int) -> None:
        stream = cast(BufferedReader, self._incoming[peer].makefile("rb", BUFFER))
        while (message := read(stream, self.staging.empty)) is not None:
            header, tensors = message
            if header == GOODBYE:
                return
            transit = Transit(parse_action(header.action), peer, header.ready_s, host.monotonic())
            flags = tuple(meta is not None and meta.requires_grad for meta in header.tensors)
            self.mailbox.put(header.step, Arrived(transit, self.staging.land(tensors), flags))
        raise WireError("it was closed")
