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

from runtime.optireduce.udp.socket import MESSAGES, UDP_GRO, UDP_SEGMENT, BatchReader

TIMEOUT_S = 10.0


@contextlib.contextmanager
def sockets(coalesce):
    """(a sender, what reads batches, its socket, a plain socket)."""
    make = functools.partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    with make() as sender, make() as batched, make() as plain:
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


def burst(sender, receivers, sent):
    """Send bursts of so many bytes, as datagrams of so many, the last one perhaps shorter."""
    dice = random.Random(0)
    for size, length in sent:
        control = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", size))]
        data = dice.randbytes(length)
        for receiver in receivers:
            to = receiver.getsockname()
            sender.sendmsg([data], control if length > size else [], 0, to)


def one_by_one(plain):
    """The oracle: on loopback what was sent is there."""
    found = []
    while select.select([plain], [], [], 0)[0]:
        found.append(plain.recv(1 << 16))
    return found


def read_all(batches_of, reader):
    """(every datagram in order, the lengths of the batches, how many calls took messages)."""
    found = []
    batches = []
    calls = 0
    while select.select([reader], [], [], 0)[0]:
        taken, rows = batches_of.read()
        assert taken > 0
        calls += 1
        batches += [len(one) for one in rows]
        found += [row.tobytes() for one in rows for row in one]
    return found, batches, calls


# bytes of a datagram, bytes in the burst
burst_of = st.integers(1, 700).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(1, 20 * size))
)


@pytest.mark.parametrize("coalesce", [False, True])
def test_what_is_read_is_what_came_in_this_order(coalesce):
    with sockets(coalesce) as (sender, batches_of, reader, plain):

        @settings(max_examples=40)
        @given(st.lists(burst_of, min_size=1, max_size=12))
        def check(sent):
            burst(sender, (reader, plain), sent)
            assert read_all(batches_of, reader)[0] == one_by_one(plain)

        check()


FEW = [(1472, 15 * 1472)] * 4 + [(48, 48), (1472, 1472)]  # a credit among bursts


@pytest.mark.parametrize(
    ("coalesce", "sent", "expected"),
    [
        (True, FEW, ([60, 1, 1], 1)),
        (True, [(1000, 3 * 1000 + 48)] * 2, ([3, 1, 3, 1], 1)),  # the last of a burst is shorter
        (False, [(100, 100)] * (2 * MESSAGES + 3), ([MESSAGES, MESSAGES, 3], 3)),
    ],
)
def test_datagrams_of_one_length_are_one_batch(coalesce, sent, expected):
    with sockets(coalesce) as (sender, batches_of, reader, plain):
        burst(sender, (reader, plain), sent)
        found, batches, calls = read_all(batches_of, reader)
        assert found == one_by_one(plain)
        assert (batches, calls) == expected


@pytest.mark.parametrize("coalesce", [False, True])
def test_an_empty_socket_and_an_empty_datagram(coalesce):
    with sockets(coalesce) as (sender, batches_of, reader, _):
        assert batches_of.read() == (0, [])
        sender.sendto(b"", reader.getsockname())
        assert select.select([reader], [], [], TIMEOUT_S)[0]
        assert batches_of.read() == (1, [])
        assert batches_of.read() == (0, [])


def test_a_peer_that_is_gone_is_no_error_and_a_closed_socket_is():
    with sockets(False) as (_, batches_of, reader, plain):
        to = plain.getsockname()
        plain.close()
        reader.connect(to)
        reader.send(b"nobody there")
        assert select.select([reader], [], [], TIMEOUT_S)[0]
        assert batches_of.read() == (1, [])  # the refusal
        assert batches_of.read() == (0, [])
        reader.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            batches_of.read()
