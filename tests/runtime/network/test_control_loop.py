"""The control loop: sockets and timers take turns, and what one does is nothing to the others."""

from __future__ import annotations

import queue
import socket
import threading
import time

import pytest

from latecomer.runtime.host import FD_SETSIZE
from latecomer.runtime.network import control_loop
from latecomer.runtime.network.control_loop import ControlLoop

PATIENCE_S = 20.0  # against hangs, no claim on speed


def fail(*args):
    raise AssertionError(args)


@pytest.fixture
def loop():
    """Of timers only."""
    timers_only = ControlLoop({})
    yield timers_only
    timers_only.close()
    assert not timers_only._thread.is_alive()


def test_timers_are_called_when_due_on_one_thread_in_turn(loop):
    called = queue.SimpleQueue()
    threads = set()

    def timer(name):
        def call():
            threads.add(threading.current_thread().name)
            called.put(name)
            new_timer.set(None)

        new_timer = loop.timer(call, fail)
        return new_timer

    late = timer("late")
    early = timer("early")
    now_s = time.monotonic()
    late.set(now_s + 0.2)
    early.set(now_s + 0.1)

    assert [called.get(timeout=PATIENCE_S) for _ in range(2)] == ["early", "late"]
    assert time.monotonic() >= now_s + 0.2
    assert threads == {control_loop.THREAD_NAME}


def test_a_timer_that_becomes_earlier_wakes_the_loop(loop):
    called = threading.Event()

    def call():
        called.set()
        timer.set(None)

    timer = loop.timer(call, fail)
    timer.set(time.monotonic() + 1000)
    time.sleep(0.05)  # it sleeps until then

    timer.set(time.monotonic())

    assert called.wait(PATIENCE_S)


def test_a_timer_that_fails_is_not_called_again_and_the_others_go_on(loop, caplog):
    failures = queue.SimpleQueue()
    went_on = threading.Event()

    def raise_error():
        raise ZeroDivisionError

    def go_on():
        sound.set(None)
        went_on.set()

    broken = loop.timer(raise_error, failures.put)
    broken_twice = loop.timer(raise_error, fail)
    sound = loop.timer(go_on, fail)
    for timer in (broken, broken_twice):
        timer.set(time.monotonic())
    assert isinstance(failures.get(timeout=PATIENCE_S), ZeroDivisionError)
    broken.set(time.monotonic())
    sound.set(time.monotonic())

    assert went_on.wait(PATIENCE_S)
    assert failures.empty()
    assert "a timer of a control protocol failed" in caplog.text


def test_a_timer_that_is_always_due_and_a_flood_keep_nobody_from_their_turn():
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    reads = queue.SimpleQueue()
    ticks = queue.SimpleQueue()

    def read():
        writer.send(reader.recv(100))  # there is always another
        reads.put(None)

    loop = ControlLoop({reader: read})
    busy = loop.timer(lambda: time.sleep(0.0001), fail)
    ticking = loop.timer(lambda: ticks.put(None), fail)
    writer.send(b"x")
    for timer in (busy, ticking):
        timer.set(0.0)

    for _ in range(20):
        reads.get(timeout=PATIENCE_S)
        ticks.get(timeout=PATIENCE_S)

    loop.close()
    reader.close()
    writer.close()


def test_a_reader_that_fails_is_not_the_end(caplog):
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    received = queue.SimpleQueue()

    def read():
        data = reader.recv(100)
        if data == b"bad":
            raise KeyError("injected")
        received.put(data)

    loop = ControlLoop({reader: read})
    for data in (b"bad", b"good"):
        writer.send(data)

    assert received.get(timeout=PATIENCE_S) == b"good"
    assert "injected" in caplog.text
    loop.close()
    reader.close()
    writer.close()


def test_cancelling_waits_for_the_call_under_way_and_closing_ends_all(loop):
    begun = threading.Event()
    ended = []

    def call():
        begun.set()
        time.sleep(0.1)
        ended.append(True)

    timer = loop.timer(call, fail)
    timer.set(0.0)
    assert begun.wait(PATIENCE_S)

    timer.cancel()

    calls = len(ended)
    assert calls >= 1
    timer.set(0.0)  # no longer the loop's: nothing happens
    loop.timer(fail, fail).set(time.monotonic() + 0.05)
    loop.close()
    time.sleep(0.1)
    assert len(ended) == calls


def test_a_timer_may_cancel_itself_another_or_close_the_loop(loop):
    over = threading.Event()

    def call():
        cancelled.cancel()
        timer.cancel()
        loop.close()
        over.set()

    timer = loop.timer(call, fail)
    cancelled = loop.timer(fail, fail)
    with loop._changed:  # both are due at the same turn
        timer.due_s = 0.0
        cancelled.due_s = 0.0
    loop._ring()

    assert over.wait(PATIENCE_S)
    loop._thread.join(PATIENCE_S)
    assert not loop._thread.is_alive()


def test_high_descriptors_are_waited_for_another_way():
    """select(), which the loop prefers, takes none from FD_SETSIZE on."""
    sockets = []
    try:
        while not sockets or sockets[-1].fileno() < FD_SETSIZE:
            sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

        reader = sockets[-1]
        reader.bind(("127.0.0.1", 0))
        received = queue.SimpleQueue()
        loop = ControlLoop({reader: lambda: received.put(reader.recv(10))})
        sockets[0].sendto(b"x", reader.getsockname())
        assert received.get(timeout=PATIENCE_S) == b"x"
        loop.close()
    except OSError as error:  # fewer files are allowed here
        pytest.skip(str(error))
    finally:
        for sock in sockets:
            sock.close()
