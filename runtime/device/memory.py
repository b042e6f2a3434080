"""Symmetric memory: a buffer on every rank that all ranks' kernels load from and store in.

On CUDA it is torch's, within one NVLink domain. Without a GPU, for the interpreter, it is a file in
shared memory that the processes of one machine map; its name is gone as soon as all have.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from latecomer.runtime.device.layout import KEPT, Layout
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import symmetric_buffer
from latecomer.verify.device.program import SETS

SHARED = Path("/dev/shm")


class SymmetricMemory:
    """This rank's buffer, zeroed, and where the others' are.

    Attributes:
        bases: int64[ranks] on the device: the address of each rank's buffer.
        flags: int32[set, slot, block], stamps: int64[KEPT, rank, 2], stop: int32[1], of this rank.
            Behind the stop word is one that nobody reads.
    """

    def __init__(
        self, layout: Layout, buffer: torch.Tensor, addresses: Sequence[int], keeps: object
    ) -> None:
        self.layout = layout
        self._buffer = buffer
        self._keeps = keeps
        buffer.zero_()
        self.bases = torch.tensor(addresses, dtype=torch.int64, device=buffer.device)
        flags = buffer[layout.flags_at :].view(torch.int32)[: SETS * layout.slots * layout.blocks]
        self.flags = flags.view(SETS, layout.slots, layout.blocks)
        stamps = buffer[layout.stamps_at :].view(torch.int64)[: 2 * KEPT * layout.ranks]
        self.stamps = stamps.view(KEPT, layout.ranks, 2)
        self._stop_or_not = buffer[layout.stop_at :].view(torch.int32)[:2]
        self.stop = self._stop_or_not[:1]
        # A kernel that waits never ends by itself: what looks at it must not queue behind it.
        self._aside: Any = None
        self._one = torch.ones(1, dtype=torch.int32)
        if buffer.is_cuda:
            make: Any = torch.cuda.Stream  # untyped
            self._aside = make(buffer.device, priority=-1)  # as ``CudaDevice.aside``
            self._one = self._one.pin_memory()
            torch.cuda.synchronize(buffer.device)

    def read(self, words: torch.Tensor) -> torch.Tensor:
        """A copy on the host of a part of it, while a kernel may be running."""
        with self._beside():
            return words.to("cpu", copy=True)

    def raise_stop(self) -> None:
        """End this rank's kernels as soon as they wait; for good, and before it returns."""
        with self._beside():
            self.stop.copy_(self._one, non_blocking=True)
        if self._aside is not None:
            self._aside.synchronize()

    def raise_stop_if(self, raised: torch.Tensor) -> None:
        """On the current stream: likewise, if one of ``raised`` (int32) is not 0.

        It only stores, a word or the one behind it: the host may raise the word in between.
        """
        place = (raised == 0).all().long().view(1)
        self._stop_or_not.index_fill_(0, place, 1)

    def _beside(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._aside is None else torch.cuda.stream(self._aside)


def join(layout: Layout, group: StoreExchange, device: torch.device) -> SymmetricMemory:
    """Make the memory of all ranks of ``group`` (collective).

    Raises:
        RankFailure: ranks that did not join in time.
        RuntimeError, OSError: torch or the system has none for this rank.
    """
    if device.type == "cuda":
        name = group.all_gather("name", uuid.uuid4().hex)[0]
        store = group.under("rendezvous").store
        buffer, addresses, handle = symmetric_buffer(
            layout.nbytes, device, name, group.rank, group.world_size, store
        )
        return SymmetricMemory(layout, buffer, addresses, handle)
    folder = SHARED if SHARED.is_dir() else Path(tempfile.gettempdir())
    handle, name = tempfile.mkstemp(prefix="latecomer-", dir=folder)
    try:
        with os.fdopen(handle, "r+b") as file:
            file.truncate(layout.nbytes)
        names = group.all_gather("name", name)
        mapped = []
        for _, path in sorted(names.items()):
            with open(path, "r+b") as file:
                mapped.append(mmap.mmap(file.fileno(), layout.nbytes))
        group.all_gather("mapped")  # only then may its name go: see the module
    finally:
        Path(name).unlink()
    views = [torch.frombuffer(memory, dtype=torch.uint8) for memory in mapped]
    return SymmetricMemory(layout, views[group.rank], [v.data_ptr() for v in views], views)
