"""Many datagrams by one call, against an oracle: recvfrom, one by one, on another socket."""

from __future__ import annotations

import contextlib
import functools
import random
import select
import socket
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.optireduce.udp.socket import MESSAGES, UDP_GRO, UDP_SEGMENT, BatchReader

TIMEOUT_S = 10.0  # against hangs


@contextlib.contextmanager
def sockets(coalesce):
    """(a sender, what reads batches, its socket, a plain socket)."""
    udp_socket = functools.partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    with udp_socket() as sender, udp_socket() as batched, udp_socket() as plain:
        for receiver in (batched, plain):
            receiver.bind(("127.0.0.1", 0))
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            receiver.setblocking(False)
        if coalesce:
            try:
                batched.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            except OSError:
                pytest.skip("the kernel does not coalesce")
        yield sender, BatchReader(batched), batched, plain


def send(sender, receivers, bursts):
    """Send bursts of (bytes of a datagram, bytes in all); the last datagram may be shorter."""
    dice = random.Random(0)
    for size, length in bursts:
        segment = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", size))
        control = [segment] if length > size else []
        data = dice.randbytes(length)
        for receiver in receivers:
            sender.sendmsg([data], control, 0, receiver.getsockname())


def read_one_by_one(plain):
    """The oracle: on loopback what was sent is there."""
    datagrams = []
    while select.select([plain], [], [], 0)[0]:
        datagrams.append(plain.recv(1 << 16))
    return datagrams


def read_all(reader, batched):
    """(every datagram in order, the lengths of the batches, how many calls read messages)."""
    datagrams = []
    lengths = []
    calls = 0
    while select.select([batched], [], [], 0)[0]:
        messages, batches = reader.read()
        assert messages > 0
        calls += 1
        for batch in batches:
            lengths.append(len(batch))
            datagrams += [row.tobytes() for row in batch]
    return datagrams, lengths, calls


# bytes of a datagram, bytes in the burst
burst_of = st.integers(1, 700).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(1, 20 * size))
)


@pytest.mark.parametrize("coalesce", [False, True])
def test_what_is_read_is_what_came_in_this_order(coalesce):
    with sockets(coalesce) as (sender, reader, batched, plain):

        @settings(max_examples=40)
        @given(st.lists(burst_of, min_size=1, max_size=12))
        def check(bursts):
            send(sender, (batched, plain), bursts)
            datagrams, _, _ = read_all(reader, batched)
            assert datagrams == read_one_by_one(plain)

        check()


CREDIT_AMONG_BURSTS = [(1472, 15 * 1472)] * 4 + [(48, 48), (1472, 1472)]


@pytest.mark.parametrize(
    ("coalesce", "bursts", "expected"),
    [
        (True, CREDIT_AMONG_BURSTS, ([60, 1, 1], 1)),
        (True, [(1000, 3 * 1000 + 48)] * 2, ([3, 1, 3, 1], 1)),  # the last of a burst is shorter
        (False, [(100, 100)] * (2 * MESSAGES + 3), ([MESSAGES, MESSAGES, 3], 3)),
    ],
)
def test_datagrams_of_one_length_are_one_batch(coalesce, bursts, expected):
    with sockets(coalesce) as (sender, reader, batched, plain):
        send(sender, (batched, plain), bursts)
        datagrams, lengths, calls = read_all(reader, batched)
        assert datagrams == read_one_by_one(plain)
        assert (lengths, calls) == expected


@pytest.mark.parametrize("coalesce", [False, True])
def test_an_empty_socket_and_an_empty_datagram(coalesce):
    with sockets(coalesce) as (sender, reader, batched, _):
        assert reader.read() == (0, [])
        sender.sendto(b"", batched.getsockname())
        assert select.select([batched], [], [], TIMEOUT_S)[0]
        assert reader.read() == (1, [])
        assert reader.read() == (0, [])


def test_a_peer_that_is_gone_is_no_error_and_a_closed_socket_is():
    with sockets(False) as (_, reader, batched, plain):
        address = plain.getsockname()
        plain.close()
        batched.connect(address)
        batched.send(b"nobody there")
        assert select.select([batched], [], [], TIMEOUT_S)[0]
        assert reader.read() == (1, [])  # the refusal
        assert reader.read() == (0, [])
        batched.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            reader.read()
