"""Host memory between a stage's device and its links, so that no transfer touches the compute.

Sending takes a copy: autograd may go on adding to a gradient that aliases the one on its way.

On CUDA the copy to pinned memory runs on a side stream behind what is computed so far, and the
sending thread waits for it; what arrives is copied from pinned memory on another side stream, and
the compute stream waits for that copy on the device. The host never waits for the device here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from runtime.pipeline.messages import Tensors


@dataclass(frozen=True)
class Staged:
    """Tensors on their way, and a CUDA event after which they are there (CUDA only)."""

    tensors: list[torch.Tensor | None]
    event: Any = None


class Staging(Protocol):
    """Between a device and host memory; each method says on which thread it is called.

    Attributes:
        direct: whether the tensors are in host memory as they are.
    """

    direct: bool

    def take(self, tensors: Tensors) -> Staged:
        """Compute thread: start copying to host memory."""

    def host(self, staged: Staged) -> Tensors:
        """Sending thread: the copies, complete."""

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Receiving thread: host memory for a message."""

    def land(self, tensors: Tensors) -> Staged:
        """Receiving thread: start copying to the device."""

    def use(self, staged: Staged) -> list[torch.Tensor | None]:
        """Compute thread: the tensors on the device, safe to compute with."""


class HostStaging:
    """CPU tensors: a copy on the way out, nothing on the way in."""

    direct = True

    def take(self, tensors: Tensors) -> Staged:
        """Compute thread: copies."""
        return Staged(
            [t if t is None else t.detach().clone(memory_format=CONTIGUOUS) for t in tensors]
        )

    def host(self, staged: Staged) -> Tensors:
        """Sending thread: they are there already."""
        return staged.tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Receiving thread: plain memory."""
        return torch.empty(shape, dtype=dtype)

    def land(self, tensors: Tensors) -> Staged:
        """Receiving thread: they are where they belong."""
        return Staged(list(tensors))

    def use(self, staged: Staged) -> list[torch.Tensor | None]:
        """Compute thread: as they are."""
        return staged.tensors


class CudaStaging:
    """CUDA tensors: pinned memory and two side streams.

    Args:
        device: a CUDA device.
    """

    direct = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._outgoing = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._incoming = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def take(self, tensors: Tensors) -> Staged:
        """Compute thread: copies on the outgoing stream, behind what is queued so far."""
        self._outgoing.wait_stream(torch.cuda.current_stream(self._device))
        copies: list[torch.Tensor | None] = []
        with torch.cuda.device(self._device), torch.cuda.stream(self._outgoing):
            for tensor in tensors:
                if tensor is None:
                    copies.append(None)
                    continue
                source = tensor.detach()
                copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
                copy.copy_(source, non_blocking=True)
                source.record_stream(self._outgoing)  # its memory is not reused before
                copies.append(copy)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._outgoing)
        return Staged(copies, event)

    def host(self, staged: Staged) -> Tensors:
        """Sending thread: waits for the copies (without the interpreter's lock)."""
        staged.event.synchronize()
        return staged.tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Receiving thread: pinned memory."""
        with torch.cuda.device(self._device):  # a thread begins on device 0
            return torch.empty(shape, dtype=dtype, pin_memory=True)

    def land(self, tensors: Tensors) -> Staged:
        """Receiving thread: copies on the incoming stream."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._incoming):
            copies = [
                t if t is None else t.to(self._device, non_blocking=True) for t in tensors
            ]  # torch keeps pinned memory until the copies from it are done
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._incoming)
        return Staged(copies, event)

    def use(self, staged: Staged) -> list[torch.Tensor | None]:
        """Compute thread: its stream waits for the copies, the host does not."""
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(staged.event)
        for tensor in staged.tensors:
            if tensor is not None:
                tensor.record_stream(stream)
        return staged.tensors


CONTIGUOUS = torch.contiguous_format


def staging_for(device: torch.device) -> Staging:
    """Host memory for stages on ``device``."""
    return CudaStaging(device) if device.type == "cuda" else HostStaging()
