"""Connections that only members get, in time whoever else calls; who is absent is named."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from runtime import Executor, load
from runtime.network.mesh import HELLO, connect
from runtime.network.store_exchange import StoreExchange
from runtime.pipeline import Pipeline
from runtime.pipeline import load as load_pipeline
from tests.runtime import schedules
from tests.runtime.pipeline.models import loss_fn, model
from tests.runtime.pipeline.test_gradients import MICROBATCHES, RANKS, matches, schedule, start
from tests.runtime.spawning import spawn, values
from tests.verify.pipeline.documents import one_f_one_b
from verify.errors import RankFailure

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


def _together(size, ranks, strangers=lambda rank, port: None, timeout_s=20.0, store=None):
    """What each of ``ranks`` has to lower and from higher ones, or raises; strangers come first."""
    store = store or _store()
    real = socket.create_server
    rank_of = threading.local()

    def create_server(*args, **kwargs):
        listener = real(*args, **kwargs)
        strangers(rank_of.rank, listener.getsockname()[1])
        return listener

    def join(rank):
        rank_of.rank = rank
        group = StoreExchange(store.clone(), rank, size, timeout_s)
        try:
            lower, higher = connect(
                group, "127.0.0.1", TOKEN, to=range(rank), origin=range(rank + 1, size)
            )
        except RankFailure as failure:
            return failure
        return lower | higher

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr("runtime.network.mesh.socket.create_server", create_server)
        return dict(zip(ranks, pool.map(join, ranks), strict=True))


def _check_and_close(made, kept):
    """Every pair is connected, to each other and to nobody else."""
    try:
        for rank in made:
            for peer in set(made) - {rank}:
                made[peer][rank].settimeout(10)
                made[rank][peer].sendall(bytes([rank]))
                assert made[peer][rank].recv(9) == bytes([rank])
    finally:
        for end in [*kept, *(end for ends in made.values() for end in ends.values())]:
            end.close()


@pytest.mark.parametrize("kind", STRANGERS)
def test_only_members_are_connected_and_in_time_whoever_else_calls(kind):
    kept = []

    def strangers(rank, port):
        for said in STRANGERS[kind]:
            kept.append(socket.create_connection(("127.0.0.1", port), 10))
            kept[-1].sendall(said)

    made = _together(3, [0, 1, 2], strangers)
    assert {rank: set(ends) for rank, ends in made.items()} == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
    _check_and_close(made, kept)


def test_members_that_claim_a_rank_that_does_not_call_are_dropped():
    kept = []

    def strangers(rank, port):
        for claimed in (rank, 3, 2**32 - 1):  # itself, and nobody
            kept.append(socket.create_connection(("127.0.0.1", port), 10))
            kept[-1].sendall(HELLO.pack(TOKEN, claimed))

    made = _together(3, [0, 1, 2], strangers)
    for stranger in kept:
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):  # it was not even read
            assert stranger.recv(16) == b""
    _check_and_close(made, kept)


@pytest.mark.parametrize("ranks", [[0, 2], [0, 2, 3]])
def test_ranks_that_are_not_there_are_named_and_no_other(ranks):
    absent = tuple(sorted({0, 1, 2, 3} - set(ranks)))
    made = _together(4, ranks, timeout_s=3.0)
    assert {rank: failure.ranks for rank, failure in made.items()} == dict.fromkeys(ranks, absent)


def test_a_rank_that_sends_its_port_and_goes_no_further_is_named_and_no_other():
    """It dies between two steps of joining; the others connect with each other meanwhile."""
    store = _store()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        store.set("tcp/1", f"127.0.0.1:{mute.getsockname()[1]}")
        made = _together(4, [0, 2, 3], timeout_s=3.0, store=store)
    assert {rank: failure.ranks for rank, failure in made.items()} == dict.fromkeys((0, 2, 3), (1,))


def _besieged(rank, size, store, kind, body):
    """``body`` on every rank, each of whose listening sockets strangers reach first."""
    kept, real = [], socket.create_server

    def create_server(*args, **kwargs):
        listener = real(*args, **kwargs)
        for said in STRANGERS[kind]:
            kept.append(socket.socket())
            kept[-1].setblocking(False)
            kept[-1].connect_ex(listener.getsockname())
            threading.Thread(target=_say, args=(kept[-1], said), daemon=True).start()
        return listener

    socket.create_server = create_server
    return body(rank, size, store)


def _say(stranger, said):
    stranger.settimeout(30)
    stranger.sendall(said)


def _executor(rank, size, store):
    executor = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=30)
    total = executor.submit(torch.ones(50)).wait()[0].item()
    executor.close()
    return total == size


def _pipeline(rank, size, store):
    start(rank, size, store)
    plan = load_pipeline(schedule(one_f_one_b(RANKS, MICROBATCHES)))
    blocks = model(RANKS)
    pipeline = Pipeline(
        blocks[rank], plan, loss_fn, store=dist.PrefixStore("p", store), timeout_s=30
    )
    right = matches(pipeline, blocks, 0)
    pipeline.close()
    return right


@pytest.mark.parametrize("body", [_executor, _pipeline])
@pytest.mark.parametrize("kind", ["silent", "garbage", "partial", "many"])
def test_strangers_keep_no_rank_from_joining(kind, body):
    assert values(spawn(_besieged, RANKS, kind, body, timeout_s=80)) == [True] * RANKS
