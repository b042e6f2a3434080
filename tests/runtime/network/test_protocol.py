"""What runs a protocol on a channel: messages, timers, events and errors, without a network."""

from __future__ import annotations

import queue
import threading

import msgspec
import pytest

from runtime.network.protocol import Protocol, ProtocolRunner

WAIT_S = 20.0


class _Channel:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = queue.SimpleQueue()

    def listen(self, name, handler):
        self.receive = handler

    def send(self, peer, name, payload):
        self.sent.put((peer, name, msgspec.msgpack.decode(payload)))


class _Echo(Protocol):
    """Answers, tells, and wakes as it is told to; breaks when it is woken."""

    timer_s = None

    def receive_message(self, message, sender, now_s):
        self._send(sender, message + 1)
        self._events.append(message)

    def get_timer(self):
        return self.timer_s

    def handle_timer(self, now_s):
        raise ZeroDivisionError


class _Runner(ProtocolRunner):
    def __init__(self, protocol, channel):
        self.events, self.broken = [], threading.Event()
        super().__init__(protocol, channel, "echo", int)

    def handle_event(self, event):
        self.events.append(event)

    def handle_error(self, error):
        assert isinstance(error, ZeroDivisionError)
        self.broken.set()


def test_a_runner_answers_tells_wakes_earlier_and_reports_what_breaks():
    protocol, channel = _Echo(), _Channel()
    protocol._events.append(0)
    runner = _Runner(protocol, channel)
    for message in (5, 6):
        channel.receive(3, msgspec.msgpack.encode(message))
    assert [channel.sent.get(timeout=WAIT_S) for _ in "56"] == [(3, "echo", 6), (3, "echo", 7)]
    assert runner.events == [0, 5, 6]
    with pytest.raises(ValueError, match="Expected `int`"):
        channel.receive(3, msgspec.msgpack.encode("what?"))
    assert runner.run(lambda now_s: setattr(protocol, "timer_s", now_s)) is None
    assert runner.broken.wait(WAIT_S)
    runner.close()
    channel.receive(3, msgspec.msgpack.encode(7))
    assert channel.sent.empty()
