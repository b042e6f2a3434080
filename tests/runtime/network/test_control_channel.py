"""Datagrams between ranks: channels share one socket; nothing a handler does ends the thread.

Also what runs a protocol on a channel: messages, timers, events and errors.
"""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import msgspec
import pytest
from torch._C._distributed_c10d import TCPStore

from latecomer.runtime.host import clock_name, host
from latecomer.runtime.network.control_channel import HEADER, MAX_PAYLOAD, ControlChannel
from latecomer.runtime.network.control_loop import ControlLoop
from latecomer.runtime.network.protocol import Protocol, ProtocolRunner
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.errors import RankFailure


@pytest.fixture
def ends():
    """The endpoints of three ranks, in this process."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    groups = [StoreExchange(store.clone(), rank, 3, 10) for rank in range(3)]
    with ThreadPoolExecutor() as pool:
        channels = list(pool.map(ControlChannel, groups))
    yield channels
    for end in channels:
        end.close()
        end.close()  # once is enough, twice is no error


def test_channels_reach_their_own_handlers_from_every_rank(ends):
    received = queue.SimpleQueue()

    def listen(channel):
        ends[1].listen(channel, lambda sender, payload: received.put((channel, sender, payload)))

    listen("a")
    listen("arrivals")
    sent = [("a", 0, b""), ("arrivals", 2, b"\x00" * MAX_PAYLOAD), ("a", 1, b"to myself")]
    for channel, sender, payload in sent:
        ends[sender].send(1, channel, payload)

    assert sorted(received.get(timeout=10) for _ in sent) == sorted(sent)
    assert [end.dropped for end in ends] == [0, 0, 0]


def test_hosts_from_which_nothing_has_come_are_known(ends):
    came = threading.Event()
    ends[0].listen("x", lambda sender, payload: came.set())
    assert ends[0].never_heard() == []  # all ranks are of this host, where nothing is between

    for rank in (1, 2):
        _, port = ends[0]._peers[rank]
        ends[0]._peers[rank] = (f"10.0.0.{rank}", port)
    assert ends[0].never_heard() == [1, 2]
    ends[1].send(0, "x", b"")
    assert came.wait(10)
    assert ends[0].never_heard() == [2]


@pytest.mark.parametrize(
    ("names", "are_shared"),
    [(["boot/1"] * 3, True), (["boot/1", "boot/2", "boot/3"], False), ([""] * 3, False)],
)
def test_ranks_share_a_clock_if_its_name_is_the_same_and_known(names, are_shared, monkeypatch):
    left = iter(names)
    monkeypatch.setattr(host, "clock_name", lambda: next(left))
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    groups = [StoreExchange(store.clone(), rank, 3, 10) for rank in range(3)]
    with ThreadPoolExecutor() as pool:
        channels = list(pool.map(ControlChannel, groups))
    try:
        assert [channel.shares_clock(0) for channel in channels[1:]] == [are_shared] * 2
    finally:
        for channel in channels:
            channel.close()


def test_processes_of_one_machine_name_the_same_clock():
    show = "from latecomer.runtime.host import clock_name; print(clock_name())"
    of_another = subprocess.check_output([sys.executable, "-c", show], text=True, timeout=60)
    assert of_another.strip() == clock_name()


def test_a_handler_that_fails_is_not_the_end(ends, caplog):
    went_on = threading.Event()

    def handler(sender, payload):
        if payload == b"bad":
            raise ValueError("a payload that makes no sense")
        if payload == b"bug":
            raise KeyError("a mistake in the handler")
        went_on.set()

    ends[0].listen("x", handler)
    for payload in (b"bad", b"bug", b"good"):
        ends[1].send(0, "x", payload)
    assert went_on.wait(10)
    assert ends[0].dropped == 1
    assert "channel b'x' failed" in caplog.text


def test_a_group_that_is_held_up_does_not_hold_up_another(ends):
    held_up = threading.Event()
    may_go_on = threading.Event()
    received = queue.SimpleQueue()

    def wait(sender, payload):
        held_up.set()
        may_go_on.wait(20)

    ends[0].listen("x", wait)
    ends[1].listen("x", lambda sender, payload: received.put(payload))
    ends[2].send(0, "x", b"")
    assert held_up.wait(20)

    ends[2].send(1, "x", b"went on")

    assert received.get(timeout=20) == b"went on"
    may_go_on.set()


def test_strangers_are_ignored(ends):
    received = queue.SimpleQueue()
    ends[1].listen("x", lambda sender, payload: received.put((sender, payload)))
    token = ends[1].token
    foreign = [
        b"",
        b"\xff" * 500,
        HEADER.pack(b"x" * 16, 0, 1) + b"x",  # another token
        HEADER.pack(token, 7, 1) + b"x",  # no such rank
        HEADER.pack(token, 0, 1) + b"y",  # nobody listens
        HEADER.pack(token, 0, 50) + b"x",  # cut off
    ]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in [*foreign, HEADER.pack(token, 0, 1) + b"x!"]:
            stranger.sendto(data, ends[1]._socket.getsockname())

    assert received.get(timeout=20) == (0, b"!")
    assert ends[1].dropped == len(foreign)


def test_ranks_that_do_not_come_are_named():
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    with pytest.raises(RankFailure) as caught:
        ControlChannel(StoreExchange(store, 1, 3, 0.05))
    assert caught.value.ranks == (0, 2)


def test_a_runner_that_is_closed_with_a_timer_is_not_woken(ends):
    protocol = _Echo()
    protocol.timer_s = time.monotonic() + 0.2
    runner = ProtocolRunner(protocol, ends[0], "echo", int)

    runner.close()

    woken = queue.SimpleQueue()
    protocol.handle_timer = woken.put
    later_timer = ends[0].loop.timer(lambda: woken.put("the end"), None)
    later_timer.set(protocol.timer_s + 0.1)
    assert woken.get(timeout=20) == "the end"


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


def test_a_runner_answers_tells_wakes_earlier_and_reports_what_breaks(monkeypatch):
    protocol = _Echo()
    sent = []
    events = []
    broken = queue.SimpleQueue()
    channel = SimpleNamespace(
        loop=ControlLoop({}),
        listen=lambda name, handler: setattr(channel, "receive", handler),
        send=lambda peer, name, payload: sent.append((peer, name, payload)),
    )

    monkeypatch.setattr(ProtocolRunner, "handle_event", lambda _, event: events.append(event))
    monkeypatch.setattr(ProtocolRunner, "handle_error", lambda _, error: broken.put(error))
    protocol._events.append(0)
    runner = ProtocolRunner(protocol, channel, "echo", int)

    for message in (5, 6):
        channel.receive(3, msgspec.msgpack.encode(message))
    assert sent == [(3, "echo", msgspec.msgpack.encode(answer)) for answer in (6, 7)]
    assert events == [0, 5, 6]

    with pytest.raises(ValueError, match="Expected `int`"):
        channel.receive(3, msgspec.msgpack.encode("what?"))

    assert runner.run(lambda now_s: setattr(protocol, "timer_s", now_s)) is None
    assert isinstance(broken.get(timeout=20), ZeroDivisionError)

    runner.close()
    channel.receive(3, msgspec.msgpack.encode(7))
    assert len(sent) == 2
    channel.loop.close()
