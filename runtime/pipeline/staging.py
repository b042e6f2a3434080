"""Host memory between a stage's device and its links, so that no transfer touches the compute.

Sending takes a copy: autograd may go on adding to a gradient that aliases the one on its way.

On CUDA the copy to pinned memory runs on a side stream behind what is computed so far, and the
sending thread waits for it; what arrives is copied from pinned memory on another side stream, and
the compute stream waits for that copy on the device. The host never waits for the device here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensors = Sequence[torch.Tensor | None]  # None: the gradient of an input that has none
DENSE = torch.contiguous_format  # a message has the elements in order, whatever the strides were


@dataclass(frozen=True)
class Staged:
    """Tensors on their way, and a CUDA event after which they are there (CUDA only)."""

    tensors: list[torch.Tensor | None]
    event: Any = None


class HostStaging:
    """CPU tensors: a copy on the way out, nothing on the way in."""

    direct = True  # the tensors are in host memory as they are

    def take(self, tensors: Tensors) -> Staged:
        """Compute thread: start copying to host memory."""
        return Staged([t if t is None else t.detach().clone(memory_format=DENSE) for t in tensors])

    def host(self, staged: Staged) -> Tensors:
        """Sending thread: the copies, complete."""
        return staged.tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Receiving thread: host memory for a message."""
        return torch.empty(shape, dtype=dtype)

    def land(self, tensors: Tensors) -> Staged:
        """Receiving thread: start copying to the device."""
        return Staged(list(tensors))

    def use(self, staged: Staged) -> list[torch.Tensor | None]:
        """Compute thread: the tensors on the device, safe to compute with."""
        return staged.tensors


class _CudaStaging(HostStaging):
    """CUDA tensors: pinned memory and two side streams."""

    direct = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._outgoing = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._incoming = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def take(self, tensors: Tensors) -> Staged:
        self._outgoing.wait_stream(torch.cuda.current_stream(self._device))

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            pinned.copy_(tensor.detach(), non_blocking=True)
            tensor.record_stream(self._outgoing)  # its memory is not reused before
            return pinned

        return self._copies(self._outgoing, copy, tensors)

    def host(self, staged: Staged) -> Tensors:
        staged.event.synchronize()  # without the interpreter's lock
        return staged.tensors

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with torch.cuda.device(self._device):  # a thread begins on device 0
            return torch.empty(shape, dtype=dtype, pin_memory=True)

    def land(self, tensors: Tensors) -> Staged:
        # torch keeps pinned memory until the copies from it are done
        return self._copies(
            self._incoming, lambda t: t.to(self._device, non_blocking=True), tensors
        )

    def use(self, staged: Staged) -> list[torch.Tensor | None]:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(staged.event)
        for tensor in staged.tensors:
            if tensor is not None:
                tensor.record_stream(stream)
        return staged.tensors

    def _copies(
        self, stream: Any, copy: Callable[[torch.Tensor], torch.Tensor], tensors: Tensors
    ) -> Staged:
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            copies = [None if tensor is None else copy(tensor) for tensor in tensors]
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        return Staged(copies, event)


def staging_for(device: torch.device) -> HostStaging:
    """Host memory for stages on ``device``."""
    return _CudaStaging(device) if device.type == "cuda" else HostStaging()
