"""Connections that only members get, in time whoever else calls; who is absent is named."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from latecomer.runtime import Executor, load
from latecomer.runtime.host import host
from latecomer.runtime.network import mesh
from latecomer.runtime.network.addresses import listening_socket
from latecomer.runtime.network.mesh import HELLO, connect
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.simulation.network import address_of
from latecomer.verify.errors import RankFailure
from tests.runtime import jobs, schedules
from tests.runtime.pipeline.models import model
from tests.runtime.pipeline.test_gradients import RANKS, matches
from tests.runtime.simulated import on_hosts
from tests.runtime.spawning import on_ranks

TOKEN = b"0123456789abcdef"
STRANGERS = {
    "silent": [b""],
    "garbage": [b"GET / HTTP/1.1\r\n\r\n" * 3],
    "partial": [b"\0" * 3],
    "other token": [HELLO.pack(b"x" * 16, 1)],
    "many": [b"", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 3, HELLO.pack(b"x" * 16, 1)[:19]] * 12,
}


def _store():
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))


@contextlib.contextmanager
def _besieged(payloads):
    """Strangers reach every listening socket first, one for each payload; they stay.

    ``payloads()`` gives what they send, on the thread that listens.
    """
    strangers = []
    really_listen = mesh.listening_socket

    def listening_socket(address):
        listener = really_listen(address)
        for payload in payloads():
            stranger = socket.create_connection(listener.getsockname(), 10)
            strangers.append(stranger)
            stranger.sendall(payload)
        return listener

    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as closing:
        patch.setattr(mesh, "listening_socket", listening_socket)
        yield strangers
        for stranger in strangers:
            closing.enter_context(stranger)


HERE = threading.local()
"""``rank``: whose thread this is."""


def _together(size):
    """By rank, the connections by peer that each has."""
    store = _store()

    def join(rank):
        HERE.rank = rank
        group = StoreExchange(store.clone(), rank, size, timeout_s=20.0)
        lower, higher = connect(
            group, "127.0.0.1", TOKEN, to=range(rank), origin=range(rank + 1, size)
        )
        return lower | higher

    with ThreadPoolExecutor() as pool:
        return dict(enumerate(pool.map(join, range(size))))


def _check_and_close(connections):
    """Every pair is connected, to each other and to nobody else."""
    peers = {rank: set(by_peer) for rank, by_peer in connections.items()}
    assert peers == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}

    for rank, by_peer in connections.items():
        for peer, connection in by_peer.items():
            connections[peer][rank].settimeout(10)
            connection.sendall(bytes([rank]))
            assert connections[peer][rank].recv(9) == bytes([rank])

    for by_peer in connections.values():
        for connection in by_peer.values():
            connection.close()


@pytest.mark.parametrize("kind", STRANGERS)
def test_only_members_are_connected_and_in_time_whoever_else_calls(kind):
    with _besieged(lambda: STRANGERS[kind]):
        _check_and_close(_together(3))


def test_members_that_claim_a_rank_that_does_not_call_are_dropped():
    def claims():  # to be the rank itself, and nobody
        return [HELLO.pack(TOKEN, claimed) for claimed in (HERE.rank, 3, 2**32 - 1)]

    with _besieged(claims) as strangers:
        connections = _together(3)
        for stranger in strangers:
            with contextlib.suppress(ConnectionResetError):  # it was not even read
                assert stranger.recv(16) == b""
        _check_and_close(connections)


@pytest.mark.parametrize("absent", [(1, 3), (1,)])
@pytest.mark.parametrize("port", ["no port", "a port"])
def test_ranks_that_are_not_there_are_named_and_no_other(absent, port):
    """They never come; or they send their port, and go no further."""

    def body(rank, size, store):
        address = address_of(rank)
        if rank in absent:
            listener = listening_socket(address)
            if port == "a port":
                store.set(f"tcp/{rank}", f"{address}:{listener.getsockname()[1]}")
            host.sleep(100.0)
            return None

        group = StoreExchange(store, rank, size, timeout_s=3.0)
        with pytest.raises(RankFailure) as caught:
            connect(group, address, TOKEN, to=range(rank), origin=range(rank + 1, size))
        return caught.value.ranks

    for outcomes in on_hosts(4, lambda job: body):
        named = {outcomes[rank].result for rank in range(4) if rank not in absent}
        assert named == {absent}


def test_who_is_not_connected_is_said_with_the_addresses():
    store = _store()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"127.0.0.1:{mute.getsockname()[1]}"
        for number in (0, 2):
            store.set(f"tcp/{number}", where)
        group = StoreExchange(store.clone(), 1, 3, 1.0)
        text = r"rank\(s\) 0, 2: no connection within 1 s: is a firewall between\?"
        with pytest.raises(RankFailure, match=text) as caught:
            connect(group, "127.0.0.1", TOKEN, to=[0], origin=[2])
    assert caught.value.evidence == (
        f"rank 0 does not answer on TCP at {where}",
        f"rank 2 has not called rank 1 on TCP at {store.get('tcp/1').decode()}",
    )


@pytest.mark.parametrize("kind", ["executor", "pipeline"])
@on_ranks(RANKS, timeout_s=80)
def test_strangers_keep_no_rank_from_joining(rank, size, store, kind):
    with _besieged(lambda: STRANGERS["many"]) as strangers:
        if kind == "executor":
            running = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=30)
            assert running.submit(torch.ones(50)).wait()[0].item() == size
        else:
            blocks = model(size)
            running = jobs.pipeline(rank, size, store, 30, blocks=blocks)
            assert matches(running, blocks, 0)
        running.close()
        assert strangers
