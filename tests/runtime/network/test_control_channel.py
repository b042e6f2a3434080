"""Datagrams between ranks: channels share one socket; nothing a handler does ends the thread."""

from __future__ import annotations

import queue
import socket
import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from runtime.network.control_channel import HEADER, MAX_PAYLOAD, ControlChannel
from runtime.network.store_exchange import StoreExchange
from verify.errors import RankFailure


@pytest.fixture
def ends():
    """The endpoints of three ranks, in this process."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    made: dict[int, ControlChannel] = {}

    def make(rank):
        made[rank] = ControlChannel(StoreExchange(store.clone(), rank, 3, 10))

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    yield made
    for end in made.values():
        end.close()
        end.close()  # once is enough, twice is no error


def test_channels_reach_their_own_handlers_from_every_rank(ends):
    heard, all_there = [], threading.Semaphore(0)

    def hear(channel):
        def handler(sender, payload):
            heard.append((channel, sender, payload))
            all_there.release()

        return handler

    ends[1].listen("a", hear("a"))
    ends[1].listen("arrivals", hear("arrivals"))
    sent = [("a", 0, b""), ("arrivals", 2, b"\x00" * MAX_PAYLOAD), ("a", 1, b"to myself")]
    for channel, sender, payload in sent:
        ends[sender].send(1, channel, payload)
    assert all(all_there.acquire(timeout=10) for _ in sent)
    assert sorted(heard) == sorted(sent)
    assert [end.dropped for end in ends.values()] == [0, 0, 0]


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


def test_strangers_are_ignored(ends):
    heard = queue.SimpleQueue()
    ends[1].listen("x", lambda sender, payload: heard.put((sender, payload)))
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
    assert heard.get(timeout=20) == (0, b"!")
    assert ends[1].dropped == len(foreign)


def test_ranks_that_do_not_come_are_named():
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    with pytest.raises(RankFailure) as caught:
        ControlChannel(StoreExchange(store, 1, 3, 0.05))
    assert caught.value.ranks == (0, 2)
