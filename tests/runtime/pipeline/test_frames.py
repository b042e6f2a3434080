"""Messages on the wire: every kind of tensor comes as it went; what is no message is refused."""

from __future__ import annotations

import socket
import threading
from io import BufferedReader
from typing import cast

import msgspec
import pytest
import torch

from latecomer.runtime.pipeline.messages import (
    MAGIC,
    PREFIX,
    MessageHeader,
    Meta,
    WireError,
    read,
    write,
)
from latecomer.runtime.pipeline.staging import HostStaging
from latecomer.verify.errors import TensorError
from latecomer.verify.pipeline import parse_action

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
    """A socket to write to, and what is read from its peer."""
    sender, receiver = socket.socketpair()
    with sender, receiver:
        sender.settimeout(20)
        receiver.settimeout(20)
        yield sender, cast(BufferedReader, receiver.makefile("rb"))


def test_tensors_come_as_they_went(ends):
    sender, stream = ends
    header = MessageHeader.of(7, parse_action("2RECV_F5"), TENSORS)

    def send():
        for _ in range(2):
            sender.sendall(write(sender, header, TENSORS))
        sender.close()

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(2):
        message = read(stream, empty)
        assert message is not None
        received_header, received_tensors = message
        assert received_header == header
        for sent, received in zip(TENSORS, received_tensors, strict=True):
            assert (sent is None) == (received is None)
            if sent is not None and received is not None:
                assert sent.dtype == received.dtype
                assert sent.shape == received.shape
                assert torch.equal(sent, received)
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
    sender, stream = ends
    sender.sendall(data)
    sender.close()
    with pytest.raises(WireError, match=problem):
        read(stream, empty)


def test_what_cannot_travel(ends):
    sender, _ = ends
    action = parse_action("1RECV_F0")
    with pytest.raises(TensorError, match="must be dense"):
        MessageHeader.of(0, action, [torch.eye(3).to_sparse()])

    tensors = [torch.ones(1)] * 100
    assert write(sender, MessageHeader.of(0, action, tensors), tensors) == b""

    too_many = [torch.ones(1)] * 3000
    with pytest.raises(TensorError, match="3000 tensors"):  # nobody would take such a header
        write(sender, MessageHeader.of(0, action, too_many), too_many)
