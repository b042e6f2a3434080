"""One engine against a scripted peer: what it does with the very bytes that arrive, in order."""

from __future__ import annotations

import queue
import socket

import pytest
import torch

from runtime.executor.program import rank_program
from runtime.executor.tcp import loop as engines
from runtime.executor.tcp.connection import Mismatch
from runtime.executor.tcp.frames import CREDIT, HEADER, NETWORK, ONE_HOST
from runtime.executor.tcp.loop import EventLoop
from runtime.work import AllReduceWork, Observer
from tests.runtime import schedules

WAIT_S = 20.0


class Peer:
    """Rank 1 of 2, whose every byte the test decides; rank 0 is a real engine."""

    def __init__(self, monkeypatch, sizes):
        monkeypatch.setattr(engines, "fitting", lambda connections: sizes)
        ours, self.socket = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ONE_HOST.frame)
        ours.setblocking(False)
        self.socket.settimeout(WAIT_S)
        self.ended, self.failed = queue.Queue(), queue.Queue()
        self.schedule = schedules.ring(2)
        self.program = rank_program(self.schedule, 0)
        self.engine = EventLoop(
            {1: ours},
            0,
            len(self.schedule.phases),
            Observer(),
            self.ended.put,
            lambda noticed, error: self.failed.put((noticed, error)),
        )
        # Rank 0 sends ``first`` and then receives its sum back; rank 1 does so with ``second``.
        (self.first, self.second), (self.second_back, self.first_back) = (
            [end.index for end in self.program.ends if end.step == step] for step in (0, 1)
        )
        self.granted = {}
        self.digest = 0

    def submit(self, number, numel):
        tensor = torch.arange(numel, dtype=torch.float32)
        work = AllReduceWork(number, tensor, False)
        work.key, work.program = (0, ()), self.program
        work.bounds = tuple(numel * c // 2 for c in range(3))
        self.engine.submit(work)
        return work

    def read(self, length):
        data = bytearray()
        while len(data) < length:
            data += self.socket.recv(length - len(data))
        return bytes(data)

    def until(self, holds):
        """Take frames until something holds; the data that came with them."""
        came = b""
        while not holds(came):
            length, transfer, _, offset, self.digest = HEADER.unpack(self.read(HEADER.size))
            if transfer & CREDIT:
                self.granted[transfer ^ CREDIT] = offset
            came += self.read(length)
        return came

    def frame(self, transfer, data, offset=0):
        return HEADER.pack(len(data), transfer, 0, offset, self.digest) + data

    def grant(self, transfer, upto):
        self.socket.sendall(HEADER.pack(0, transfer | CREDIT, 0, upto, self.digest))

    def close(self):
        self.engine.abort()
        self.socket.close()


@pytest.fixture
def peer(monkeypatch, request):
    made = Peer(monkeypatch, getattr(request, "param", NETWORK))
    yield made
    made.close()


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, HEADER.pack(9, 0, 1, 0, 0)])
def test_an_operation_is_done_whatever_follows_its_last_byte(peer, nonsense):
    operation = peer.submit(0, 8)
    peer.until(lambda _: {peer.second, peer.first_back} <= set(peer.granted))
    peer.grant(peer.first, 16)
    peer.grant(peer.second_back, 16)
    ones = torch.ones(4).numpy().tobytes()
    peer.socket.sendall(peer.frame(peer.second, ones))
    peer.until(lambda came: len(came) == 32)
    assert peer.ended.empty()
    assert peer.failed.empty()
    peer.socket.sendall(peer.frame(peer.first_back, ones) + nonsense)  # in one read
    assert peer.ended.get(timeout=WAIT_S) is operation
    chunk = peer.schedule.phases[0].rounds[0]
    (back,) = [t.chunk for t in chunk if t.src == 0]
    summed = torch.arange(8.0) + 1
    summed[4 * back : 4 * back + 4] = 1
    assert torch.equal(operation.flat, summed)
    peer.submit(1, 8)
    noticed, error = peer.failed.get(timeout=WAIT_S)
    assert "rank 1" in noticed or isinstance(error, Mismatch)
    assert peer.ended.empty()


@pytest.mark.parametrize("peer", [NETWORK, ONE_HOST], indirect=True)
def test_a_place_that_a_send_frees_is_granted_though_nothing_else_happens(peer):
    """What came ahead of its place is let in by the send; then more of it must be asked for."""
    window = peer.engine._sizes.due
    size = window + 2 * peer.engine._sizes.wake
    peer.submit(0, 2 * size // 4)
    peer.until(lambda _: peer.granted.get(peer.first_back) == window)
    for begin in range(0, window, NETWORK.frame):
        peer.socket.sendall(peer.frame(peer.first_back, bytes(NETWORK.frame), begin))
    peer.grant(peer.first, size)
    peer.until(lambda came: len(came) == size)
    peer.until(lambda _: peer.granted[peer.first_back] == size)
