"""What a caller gets of a sum on a device: its streams wait for it, and its host does not.

As with NCCL's own work handles: ``wait()`` lets the current stream wait for the sum's event, and a
future is completed at once, for streams to wait behind. Only a wait with a time limit holds up the
host, which then learns how the operation ended.

A host that has gone on learns of a failure with its next operation, or with any wait after it.
What its streams have gone on with until then must not pass for a sum: its first element is NaN. So
each operation ends with a multiplication of that element by a word on the device, which is 1, or
NaN from just before the engine is stopped (the kernel does it by itself). It is exact, and changes
no bit of a sum. Integers have no NaN: there every wait holds up the host.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from latecomer.runtime.executor.nccl.streams import Device, StreamEvent
from latecomer.runtime.work import CollectiveWork


class Results:
    """Of one engine."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._behind = device.stream()
        self._aside = device.aside()
        self._sound = torch.ones(1, device=device.tensors)
        self._nan = torch.full((1,), torch.nan)
        if self._sound.is_cuda:  # copied without a kernel, which might have to be loaded first
            self._nan = self._nan.pin_memory()
        # written on this stream, and read on others, which are not ordered behind it
        device.current().synchronize()

    def hand_out(self, work: CollectiveWork, done: StreamEvent) -> None:
        """The sum of ``work`` is there at ``done``; before its caller gets it."""
        if work.flat.is_floating_point():
            work.join = lambda: self._device.current().wait(done)
            work.on_stream = lambda: self._future(work, done)

    def seal(self, flat: torch.Tensor) -> None:
        """On a stream, the last thing that an operation does."""
        if flat.is_floating_point():
            flat[:1].mul_(self._sound)

    def spoil(self) -> None:
        """From now on sums are marked; nothing of an operation may have been cut short before."""
        with contextlib.suppress(RuntimeError):  # a device that is broken runs nothing any more
            self._aside.launch(lambda: self._sound.copy_(self._nan, non_blocking=True))
            self._aside.synchronize()

    def _future(self, work: CollectiveWork, done: StreamEvent) -> torch.futures.Future[Any]:
        """One that streams wait behind: CUDA's is completed now, with an event of our stream."""
        cuda: list[Any] = [self._device.tensors] if self._sound.is_cuda else []
        future: torch.futures.Future[Any] = torch.futures.Future(devices=cuda)

        def complete(error: object = None) -> None:
            with contextlib.suppress(RuntimeError):  # it is complete
                future.set_result(work.tensor)

        self._behind.wait(done)
        self._behind.launch(complete)
        work.then(complete)  # a device that is broken never comes there
        return future
