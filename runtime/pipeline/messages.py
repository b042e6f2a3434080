"""Messages between stages: their bytes, and the mailbox where they wait for the compute.

    prefix   magic (4 bytes), length of the header (u32)
    header   JSON: step, action (the receive, ``2RECV_F5``), times, type and shape of each tensor
    payload  the elements of each tensor, contiguous, one after the other

PyTorch's own messages carry no name; here one that is out of order, doubled or for no stage here is
found by its receiver. Shapes may differ between microbatches.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from typing import NamedTuple

import msgspec
import torch

from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.host import MSG_DONTWAIT, Socket, host
from latecomer.runtime.pipeline.staging import Staged, Tensors
from latecomer.verify.errors import LatecomerError, TensorError
from latecomer.verify.pipeline import Action, parse_action
from latecomer.verify.pipeline.measured import Transit

MAGIC = b"LCP1"
PREFIX = struct.Struct("!4sI")
MAX_HEADER = 2**16  # bytes; whoever announces more is no stage of ours, and is not read any further


class WireError(Exception):
    """What came over a connection is no message, or the connection ended."""


class Meta(msgspec.Struct, frozen=True):
    """Type and shape of one tensor, and whether its sender tracked gradients for it."""

    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Meta:
        """TensorError if it is no dense tensor."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            kind = type(tensor).__name__
            raise TensorError(f"a stage hands over {kind}, must be dense tensors (torch.strided)")
        name = str(tensor.dtype).removeprefix("torch.")
        return Meta(name, tuple(tensor.shape), tensor.requires_grad)


class MessageHeader(msgspec.Struct, frozen=True):
    """What a message is: the RECV it answers (as in schedule files), and its tensors."""

    step: int
    action: str
    ready_s: float  # the sender's ``time.monotonic()`` when it was handed over for sending
    tensors: tuple[Meta | None, ...]

    @staticmethod
    def of(step: int, receive: Action, tensors: Tensors) -> MessageHeader:
        """For what is handed over now; TensorError if something is no dense tensor."""
        metas = tuple(None if tensor is None else Meta.of(tensor) for tensor in tensors)
        return MessageHeader(step, str(receive), host.monotonic(), metas)


_header = msgspec.json.Decoder(MessageHeader)  # with the module: see latecomer.verify.core.format


class Name(NamedTuple):
    """A message's name: the step, and the RECV it answers."""

    step: int
    receive: Action

    @property
    def content(self) -> str:
        """What travels."""
        return "activation" if self.receive.kind == "RECV_F" else "gradient"

    def __str__(self) -> str:
        stage, _, microbatch = self.receive
        return f"the {self.content} of microbatch {microbatch} for stage {stage}, step {self.step}"


def write(
    connection: Socket, header: MessageHeader, tensors: Tensors, *, wait: bool = True
) -> bytes:
    """Send one message, of tensors in host memory, by one call; what the kernel did not take.

    OSError if the connection has ended (without ``wait`` nothing was taken, then); TensorError for
    so many tensors that no receiver would take their header.
    """
    text = msgspec.json.encode(header)
    if len(text) > MAX_HEADER:
        raise TensorError(
            f"a stage hands over {len(header.tensors)} tensors, whose header takes {len(text)} "
            f"bytes; must be at most {MAX_HEADER}"
        )
    payload = (_bytes(t) for t in tensors if t is not None and t.numel())
    parts: list[bytes | memoryview] = [PREFIX.pack(MAGIC, len(text)) + text, *payload]
    try:
        # mostly all of it by one call, so that the interpreter's lock is handed over once
        sent = connection.sendmsg(parts, [], 0 if wait else MSG_DONTWAIT)
    except OSError:
        if wait:
            raise
        sent = 0  # no room now; or it has ended, which its own thread will notice
    return b"".join(parts)[sent:] if sent < sum(map(len, parts)) else b""


def read(
    stream: BufferedReader, empty: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
) -> tuple[MessageHeader, list[torch.Tensor | None]] | None:
    """Receive one message, into tensors that ``empty`` makes; None if the connection has ended.

    WireError if it is no message, or the connection ended within it; OSError if that failed.
    """
    if not (prefix := stream.read(PREFIX.size)):
        return None
    _require(len(prefix), PREFIX.size)
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC or length > MAX_HEADER:
        raise WireError("not a message of a pipeline")
    _require(len(text := stream.read(length)), length)
    try:
        header = _header.decode(text)
        parse_action(header.action)
    except (msgspec.DecodeError, ValueError) as error:
        raise WireError(f"a header that makes no sense: {error}") from None
    tensors: list[torch.Tensor | None] = []
    for meta in header.tensors:
        if meta is None:
            tensors.append(None)
            continue
        if not isinstance(dtype := getattr(torch, meta.dtype, None), torch.dtype):
            raise WireError(f"{meta.dtype} is no dtype")
        tensors.append(tensor := empty(meta.shape, dtype))
        if tensor.numel():
            into = _bytes(tensor)
            _require(stream.readinto(into), len(into))
    return header, tensors


def _require(came: int, expected: int) -> None:
    if came < expected:
        raise WireError("the connection ended within a message")


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True)
class Arrived:
    """A message that is there: its tensors are on their way to the device."""

    transit: Transit
    staged: Staged
    requires_grad: tuple[bool, ...]


class Mailbox:
    """Messages by name, from the receiving threads to the compute thread, a wait of the watchdog's.

    A message that can't be wanted is an error at once: for a stage or microbatch that is not here,
    of a step that is over, or one that has come before.
    """

    def __init__(self, senders: dict[tuple[int, str], int], microbatches: int) -> None:
        self.step = 0
        self.moved_s = host.monotonic()
        self._senders = senders
        self._microbatches = microbatches
        self._there = dict[Name, Arrived]()
        self._taken = set[Name]()
        self._wait: tuple[WaitFor, float] | None = None
        self._failure: LatecomerError | None = None
        self._news = host.Condition()

    def begin(self, step: int) -> None:
        """A step begins; messages of earlier ones are wrong from here on."""
        with self._news:
            self.step = step
            self._taken.clear()

    def waiting(self) -> tuple[WaitFor, float] | None:
        """What the compute thread waits for, and since when."""
        return self._wait

    def put(self, step: int, message: Arrived) -> None:
        """A message of ``step`` is there; WireError if it can't be wanted."""
        name = Name(step, message.transit.receive)
        sender = message.transit.sender
        with self._news:
            if problem := self._problem(name, sender):
                raise WireError(f"rank {sender} sent {name}: {problem}")
            self._there[name] = message
            self._news.notify_all()

    def take(self, receive: Action) -> tuple[Arrived, bool]:
        """Take away a message of this step (or raise the failure); whether it was waited for."""
        name = Name(self.step, receive)
        with self._news:
            if waits := name not in self._there:
                awaited = f"the {name.content} for stage {receive.stage}, microbatch"
                peer = self._senders[receive.stage, receive.kind]
                wait = WaitFor(name.step, awaited, receive.microbatch or 0, peer)
                self._wait = wait, host.monotonic()
                self._news.wait_for(lambda: name in self._there or self._failure is not None)
                self._wait = None
            if self._failure is not None:
                raise self._failure
            self.moved_s = host.monotonic()
            self._taken.add(name)
            return self._there.pop(name), waits

    def fail(self, error: LatecomerError) -> None:
        """End every wait, present and future."""
        with self._news:
            self._failure = error
            self._news.notify_all()

    def _problem(self, name: Name, sender: int) -> str:
        stage, kind, microbatch = name.receive
        expected = self._senders.get((stage, kind))
        if expected is None:
            return "it has no business here"
        if expected != sender:
            return f"rank {expected} does that"
        if microbatch is None or not 0 <= microbatch < self._microbatches:
            return f"there are {self._microbatches} microbatches"
        if name.step < self.step:
            return f"step {self.step} has begun"
        if name in self._there or name in self._taken:
            return "it came a second time"
        return ""
