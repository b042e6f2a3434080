"""Streams and events: who does the work of a device, in order, and what tells how far it is.

A stream does what is launched on it, one after the other, while the host goes on; an event is a
place in a stream, and another stream can wait for it. This module has them as a protocol, so that
the same engine runs on a GPU and, in tests, on the simulated device
(``latecomer.runtime.device.simulated``), and as CUDA has them.

While a graph is being captured nothing runs. Work on streams that have waited for an event of the
capture is written down, and must be joined to the stream that captures before it ends. No event may
be asked for meanwhile whether it was reached, by any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist


class StreamEvent(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """Whether its stream is past it; raises why the device has failed, if it has."""


class Stream(Protocol):
    """Does what is launched on it, in order."""

    def launch(self, call: Callable[[], object]) -> None:
        """Enqueue all that ``call`` does with tensors; the host does not wait for it."""

    def record(self) -> StreamEvent:
        """The place behind all that was launched so far."""

    def wait(self, event: Any) -> None:
        """Go on, with what is launched from now on, only when ``event`` is reached."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Give the memory of ``tensor`` to nobody else before what was launched so far is done."""

    def synchronize(self) -> None:
        """Wait on the host until all that was launched so far is done; raises as a query."""


class Device(Protocol):
    """A device with streams; ``tensors`` is where its tensors live, ``backend`` moves them.

    ``machine`` tells those apart that are on one machine, and are to be taken for several.
    """

    tensors: torch.device
    backend: str
    machine: str

    def current(self) -> Stream:
        """The stream on which the calling thread works."""

    def stream(self) -> Stream:
        """A new one."""

    def aside(self) -> Stream:
        """One for what must not queue behind a kernel that waits: to mark, to look, to stop it."""

    def is_capturing(self) -> bool:
        """Whether the calling thread's current stream is captured in a graph."""

    def abort(self, group: dist.ProcessGroup) -> None:
        """End all that is under way in a process group of ``backend``, here and on the peers."""


class CudaStream:
    """A stream of CUDA."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def launch(self, call: Callable[[], object]) -> None:
        """Call it now, with this stream as the current one: what it enqueues is enqueued here."""
        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            call()

    def record(self) -> torch.cuda.Event:
        """A CUDA event."""
        event: torch.cuda.Event = self._stream.record_event()
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        """The host does not wait."""
        self._stream.wait_event(event)

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell the caching allocator."""
        stream: Any = self._stream  # the stub asks for a base class
        tensor.record_stream(stream)

    def synchronize(self) -> None:
        """The host waits."""
        self._stream.synchronize()


class CudaDevice:
    """A GPU; default: the current one."""

    backend = "nccl"
    machine = ""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        index = torch.device(device).index
        if index is None:
            index = torch.cuda.current_device()
        self.tensors = torch.device("cuda", index)

    def current(self) -> CudaStream:
        """The calling thread's."""
        return CudaStream(torch.cuda.current_stream(self.tensors))

    def stream(self) -> CudaStream:
        """From torch's pool."""
        make: Any = torch.cuda.Stream  # untyped
        return CudaStream(make(self.tensors))

    def aside(self) -> CudaStream:
        """From the pool of high priority: torch's pools have 32 streams, and then give them again.

        So one of the other pool may be the very stream on which a kernel waits.
        """
        make: Any = torch.cuda.Stream  # untyped
        return CudaStream(make(self.tensors, priority=-1))

    def is_capturing(self) -> bool:
        """Asked of CUDA."""
        with torch.cuda.device(self.tensors):
            return bool(torch.cuda.is_current_stream_capturing())

    def abort(self, group: dist.ProcessGroup) -> None:
        """By NCCL."""
        group.abort()


def take_gpu(rank: int, size: int) -> None:
    """For tests of a machine: make one of its GPUs the current one, and share them if need be.

    Where there are more ranks than GPUs, NCCL takes the ranks for different hosts, and symmetric
    memory is allowed on a GPU that it has already: neither is meant for jobs.
    """
    count = torch.cuda.device_count()
    if size > count:
        os.environ["NCCL_HOSTID"] = f"latecomer-{rank}"
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    torch.cuda.set_device(rank % count)


def device_of(device: Device | torch.device | str) -> Device | None:
    """What has the streams of ``device``; nothing for the CPU."""
    if not isinstance(device, torch.device | str):
        return device
    return CudaDevice(device) if torch.device(device).type == "cuda" else None
