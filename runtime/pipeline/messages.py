"""Messages between stages as bytes: a header that names the message, then its tensors.

    prefix   magic (4 bytes), length of the header (u32)
    header   JSON: step, action (the receive, ``2RECV_F5``), times, type and shape of each tensor
    payload  the elements of each tensor, contiguous, one after the other

Every message says what it is, so one that is out of order, doubled or for nobody is found by its
receiver; PyTorch's own point-to-point messages carry no name. Shapes travel too: nothing about
them has to be known beforehand, and they may differ between microbatches.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from io import BufferedReader
from typing import NamedTuple

import msgspec
import torch

from verify.errors import TensorError
from verify.pipeline import Action, parse_action

MAGIC = b"LCP1"
PREFIX = struct.Struct("!4sI")
MAX_HEADER = 2**16
BUFFER = 2**16
Tensors = Sequence[torch.Tensor | None]
"""Outputs of a stage, or gradients of its inputs: None for an input that has none."""


class WireError(Exception):
    """What came over a connection is no message, or the connection ended."""


class Meta(msgspec.Struct, frozen=True):
    """Type and shape of one tensor, and whether its sender tracked gradients for it."""

    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool


class Header(msgspec.Struct, frozen=True):
    """What a message is.

    Attributes:
        step: the training step it belongs to.
        action: the RECV that it answers, in the notation of schedule files.
        ready_s: sender's ``time.monotonic()`` when the data was handed over for sending.
        tensors: in order; None where there is no tensor.
    """

    step: int
    action: str
    ready_s: float
    tensors: tuple[Meta | None, ...]


class Name(NamedTuple):
    """A message's name: the step, and the RECV it answers."""

    step: int
    receive: Action

    def __str__(self) -> str:
        kind = "activation" if self.receive.kind == "RECV_F" else "gradient"
        stage, microbatch = self.receive.stage, self.receive.microbatch
        return f"the {kind} of microbatch {microbatch} for stage {stage} in step {self.step}"


def describe(tensors: Tensors) -> tuple[Meta | None, ...]:
    """The metas of what a stage hands over.

    Raises:
        TensorError: something that is no dense tensor.
    """
    return tuple(None if tensor is None else _meta(tensor) for tensor in tensors)


def _meta(tensor: torch.Tensor) -> Meta:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise TensorError(
            f"a stage hands over {type(tensor).__name__}, must be dense tensors (torch.strided)"
        )
    name = str(tensor.dtype).removeprefix("torch.")
    return Meta(name, tuple(tensor.shape), tensor.requires_grad)


def encode(header: Header, tensors: Tensors) -> list[memoryview]:
    """One message in parts, without a copy; ``tensors`` are contiguous, in host memory.

    Raises:
        TensorError: so many tensors that nobody would take their header.
    """
    text = msgspec.json.encode(header)
    if len(text) > MAX_HEADER:
        raise TensorError(
            f"a stage hands over {len(header.tensors)} tensors, whose header takes {len(text)} "
            f"bytes; must be at most {MAX_HEADER}"
        )
    parts = [memoryview(PREFIX.pack(MAGIC, len(text)) + text)]
    return parts + [_bytes(t) for t in tensors if t is not None and t.numel()]


def write(connection: socket.socket, header: Header, tensors: Tensors) -> None:
    """Send one message; ``tensors`` are contiguous, in host memory.

    Raises:
        OSError: the connection ended.
        TensorError: see :func:`encode`.
    """
    parts = encode(header, tensors)
    sent = connection.sendmsg(parts)  # mostly all of it: one call, one hand-over of the lock
    for part in parts:
        if sent < len(part):
            connection.sendall(part[sent:])
        sent = max(0, sent - len(part))


def read(
    stream: BufferedReader, empty: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
) -> tuple[Header, list[torch.Tensor | None]] | None:
    """Receive one message; None if the connection ended between two messages.

    Args:
        stream: a connection's ``makefile("rb", BUFFER)``: a small message is read in one call.
        empty: allocates host memory for a tensor.

    Raises:
        WireError: not a message, or the connection ended within one.
        OSError: the connection failed.
    """
    prefix = bytearray(PREFIX.size)
    if not _fill(stream, memoryview(prefix), may_end=True):
        return None
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC or length > MAX_HEADER:
        raise WireError("not a message of a pipeline")
    text = bytearray(length)
    _fill(stream, memoryview(text))
    try:
        header = msgspec.json.decode(text, type=Header)
        parse_action(header.action)
    except (msgspec.DecodeError, ValueError) as error:
        raise WireError(f"a header that makes no sense: {error}") from None
    tensors: list[torch.Tensor | None] = []
    for meta in header.tensors:
        tensor = None if meta is None else empty(meta.shape, _dtype(meta.dtype))
        if tensor is not None and tensor.numel():
            _fill(stream, _bytes(tensor))
        tensors.append(tensor)
    return header, tensors


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise WireError(f"{name} is no dtype")
    return found


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _fill(stream: BufferedReader, into: memoryview, may_end: bool = False) -> bool:
    """Receive exactly as many bytes; False if there was not one and ``may_end``."""
    done = 0
    while done < len(into):
        count = stream.readinto(into[done:])
        if not count:
            if may_end and not done:
                return False
            raise WireError("the connection ended within a message")
        done += count
    return True
