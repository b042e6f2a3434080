"""Shared memory of a block, and its races.

Since the last barrier, no thread may load or store what another one has stored, nor store what
another one has loaded: that is a data race there, too (PTX ISA 8.7.1 and 8.3). At first nobody
knows what is there: to load it is an error.
"""

from __future__ import annotations

import numpy as np

from tests.runtime.device.ptx.order import MANY
from tests.runtime.device.ptx.regions import Wrong

ARRAY_BYTES = 4  # what all builds ask for: one word, for what one thread tells the others


class Shared:
    """A block's shared memory, and who has accessed it since the last barrier."""

    def __init__(self) -> None:
        self.bytes = np.zeros(ARRAY_BYTES, np.uint8)
        self._is_set = False
        self._stored = np.full(ARRAY_BYTES, -1)
        self._loaded = np.full(ARRAY_BYTES, -1)

    def copy(self) -> Shared:
        """Another one, the same."""
        other = Shared()
        other._is_set = self._is_set
        for name in ("bytes", "_stored", "_loaded"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def key(self) -> bytes:
        """All of it."""
        return self.bytes.tobytes() + self._stored.tobytes() + self._loaded.tobytes()

    def barrier(self) -> None:
        """All that was done comes before all that follows."""
        self._stored.fill(-1)
        self._loaded.fill(-1)

    def access(self, thread: int, at: int, size: int, is_store: bool) -> None:
        """Note an access of a thread, or of MANY; Wrong for a race, or beyond the array."""
        if at % size or at < 0 or at + size > ARRAY_BYTES:
            raise Wrong(f"an access of {size} bytes of shared memory, at {at}")
        cells = slice(at, at + size)
        others = [self._stored[cells]]
        if is_store:
            others.append(self._loaded[cells])
        for other in others:
            if ((other != -1) & ((other != thread) | (other == MANY))).any():
                raise Wrong(f"a race in shared memory: thread {thread} and {other.max()}")
        if is_store:
            if thread == MANY:
                raise Wrong("threads store into the same place of shared memory at once")
            self._stored[cells] = thread
            self._is_set = True
        else:
            if not self._is_set:
                raise Wrong("a load of shared memory in which nothing was stored")
            loaded = self._loaded[cells]
            loaded[:] = np.where((loaded == -1) | (loaded == thread), thread, MANY)
