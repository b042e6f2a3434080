"""Sans-IO protocols with aioquic's five verbs, and what runs one of them on a control channel.

A protocol is told what came in, and asked what must go out, when to be woken and what its owner
must know. It has no sockets, threads or clocks, so the same object runs in jobs and in simulations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from latecomer.runtime.host import host
from latecomer.runtime.network.control_channel import ControlChannel

MessageT = TypeVar("MessageT")
EventT = TypeVar("EventT")
T = TypeVar("T")


class Protocol(Generic[MessageT, EventT]):
    """One rank's state machine; messages and events wait in it until they are fetched, once."""

    def __init__(self) -> None:
        self._outbox: list[tuple[int, MessageT]] = []
        self._events: deque[EventT] = deque()

    def receive_message(self, message: MessageT, sender: int, now_s: float) -> None:
        """Take what came in."""
        raise NotImplementedError

    def messages_to_send(self, now_s: float) -> list[tuple[int, MessageT]]:
        """To whom what must go out, in order."""
        sends = self._outbox
        self._outbox = []
        return sends

    def get_timer(self) -> float | None:
        """When to call :meth:`handle_timer`, if at all."""
        return None

    def handle_timer(self, now_s: float) -> None:
        """It is that time."""

    def next_event(self) -> EventT | None:
        """What the owner must know next."""
        return self._events.popleft() if self._events else None

    def _send(self, to: int, message: MessageT) -> None:
        self._outbox.append((to, message))


_MAKING = host.Lock()  # of decoders, one at a time: see latecomer.verify.core.format


class ProtocolRunner(Generic[MessageT, EventT]):
    """A protocol at work; ``messages`` is the type of all its messages (a union; bytes go as is).

    Messages and timers are taken on the control loop of ``datagrams``, so a rank answers while its
    main thread is busy or late. One lock guards the protocol, and nothing is sent under it.
    ``datagrams`` are closed by their owner.
    """

    def __init__(
        self,
        protocol: Protocol[MessageT, EventT],
        datagrams: ControlChannel,
        channel: str,
        messages: Any,
    ) -> None:
        self._protocol = protocol
        self._datagrams = datagrams
        self._channel = channel
        with _MAKING:
            self._decoder = None if messages is bytes else msgspec.msgpack.Decoder(messages)
        self._sent: Counter[type] = Counter()
        self._lock = host.RLock()
        self._closed = False
        self._timer = datagrams.loop.timer(self._handle_timer, self.handle_error)
        datagrams.listen(channel, self._receive)
        self.run(lambda now_s: None)  # a protocol may begin with events, and with a timer

    def handle_event(self, event: EventT) -> None:
        """Told of each event, in order, under the lock; must be quick."""

    def handle_error(self, error: Exception) -> None:
        """Told, on the control loop, of what a timer's call died; there will be no other."""
        raise error

    def run(self, act: Callable[[float], T]) -> T:
        """Call ``act``, which uses the protocol, with the time; send what follows from it."""
        with self._lock:
            result = act(host.monotonic())
            while (event := self._protocol.next_event()) is not None:
                self.handle_event(event)
            self._timer.set(self._protocol.get_timer())
            sends = self._protocol.messages_to_send(host.monotonic())
            for _, message in sends:
                self._sent[type(message)] += 1
        payloads: dict[int, Any] = {}  # many get the same message: it is packed once
        for peer, message in sends:
            if id(message) not in payloads:
                packed = msgspec.msgpack.encode(message) if self._decoder else message
                payloads[id(message)] = packed
            self._datagrams.send(peer, self._channel, payloads[id(message)])
        return result

    def close(self) -> None:
        """Messages and timers are no longer taken; those under way are over, or soon will be."""
        self._closed = True
        self._timer.cancel()

    def _receive(self, sender: int, payload: bytes) -> None:
        try:
            message: Any = self._decoder.decode(payload) if self._decoder else payload
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from None
        if not self._closed:
            self.run(lambda now_s: self._protocol.receive_message(message, sender, now_s))

    def _handle_timer(self) -> None:
        if not self._closed:
            self.run(self._protocol.handle_timer)
