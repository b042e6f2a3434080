"""Messages on the wire: every kind of tensor comes as it went; what is no message is refused."""

from __future__ import annotations

import socket
import threading
from io import BufferedReader
from typing import cast

import msgspec
import pytest
import torch

from runtime.pipeline.messages import MAGIC, PREFIX, MessageHeader, Meta, WireError, read, write
from runtime.pipeline.staging import HostStaging
from verify.errors import TensorError
from verify.pipeline import parse_action

empty = HostStaging().empty
TENSORS = [
    torch.arange(6.0).view(2, 3).requires_grad_(),
    None,
    torch.tensor(3, dtype=torch.int64),
    torch.empty(0, 4),
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.randn(300_000),  # more than a connection's buffers
]


@pytest.fixture
def ends():
    """One end to write to, the other to read from."""
    one, other = socket.socketpair()
    with one, other:
        one.settimeout(20)
        other.settimeout(20)
        yield one, cast(BufferedReader, other.makefile("rb"))


def test_tensors_come_as_they_went(ends):
    one, stream = ends
    header = MessageHeader.of(7, parse_action("2RECV_F5"), TENSORS)

    def send():
        for _ in range(2):
            one.sendall(write(one, header, TENSORS))
        one.close()

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(2):
        message = read(stream, empty)
        assert message is not None
        assert message[0] == header
        for sent, found in zip(TENSORS, message[1], strict=True):
            assert (sent is None) == (found is None)
            if sent is not None and found is not None:
                assert (sent.dtype, sent.shape) == (found.dtype, found.shape)
                assert torch.equal(sent, found)
    assert read(stream, empty) is None
    thread.join()
    flags = [meta is not None and meta.requires_grad for meta in header.tensors]
    assert flags == [True] + [False] * 6


def _framed(text, magic=MAGIC, length=None):
    return PREFIX.pack(magic, len(text) if length is None else length) + text


def _header(action="1RECV_F0", dtype="float32"):
    return msgspec.json.encode(MessageHeader(0, action, 0.0, (Meta(dtype, (4,), False),)))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"GET / HTTP/1.1\r\n", "not a message"),
        (_framed(b"{}", length=2**20), "not a message"),
        (_framed(b"{}"), "makes no sense"),
        (_framed(_header(action="hello")), "makes no sense"),
        (_framed(_header(dtype="nn")), "nn is no dtype"),
        (_framed(_header()) + b"1234", "ended within"),
        (_framed(b"{}", length=9), "ended within"),
        (MAGIC, "ended within"),
    ],
)
def test_what_is_no_message(data, problem, ends):
    one, stream = ends
    one.sendall(data)
    one.close()
    with pytest.raises(WireError, match=problem):
        read(stream, empty)


def test_what_cannot_travel(ends):
    action = parse_action("1RECV_F0")
    with pytest.raises(TensorError, match="must be dense"):
        MessageHeader.of(0, action, [torch.eye(3).to_sparse()])
    few = [torch.ones(1)] * 100
    many = [torch.ones(1)] * 3000
    assert write(ends[0], MessageHeader.of(0, action, few), few) == b""
    with pytest.raises(TensorError, match="3000 tensors"):  # nobody would take such a header
        write(ends[0], MessageHeader.of(0, action, many), many)
