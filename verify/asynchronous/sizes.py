"""Which sizes of the buffer a program is for, and into how many messages these split its steps.

MSCCL's executor sends a step of ``count`` chunks in messages of as many chunks as fit into one
FIFO slot, at least one and at most 71 (msccl_setup.cc ``mscclSetupCount``, msccl_kernel.cu). Small
buffers give few large messages, large ones many; a chunk beyond a slot's size makes the executor
run the whole program again for each piece of it, one after the other.
"""

from __future__ import annotations

import msgspec

MOST_CHUNKS = 71
"""The executor's MSCCL_MAX_COUNT - 1: chunks that one message holds at most."""


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of the buffer in bytes, over all ranks' parts where the collective divides it.

    Attributes:
        chunks: what the buffer is divided into (nchunksperloop).
        slot_bytes: what one message can hold.
        min_bytes, max_bytes: the sizes meant; ``max_bytes`` None: no bound.
    """

    chunks: int
    slot_bytes: int
    min_bytes: int
    max_bytes: int | None

    @property
    def coarsest(self) -> int:
        """Chunks a message at the smallest size: whole chunks of at least a byte."""
        return self._per_message(self._smallest_chunk)

    @property
    def finest(self) -> int:
        """Chunks a message at the largest size."""
        if self.max_bytes is None:
            return 1
        return min(self.coarsest, self._per_message(max(1, self.max_bytes // self.chunks)))

    @property
    def empty(self) -> bool:
        """Whether no size of whole chunks lies within the bounds."""
        if self.max_bytes is None:
            return False
        return self.max_bytes // self.chunks < self._smallest_chunk

    @property
    def _smallest_chunk(self) -> int:
        """Bytes of a chunk at the smallest size: rounded up, at least one."""
        return max(1, -(-self.min_bytes // self.chunks))

    def _per_message(self, chunk_bytes: int) -> int:
        return min(MOST_CHUNKS, max(1, self.slot_bytes // chunk_bytes))

    def up_to(self, limit: int) -> int | None:
        """The largest size at which a message holds ``limit`` chunks; None if there is none."""
        # A message has one chunk at the least, so at limit 1 any size is meant.
        return None if limit == 1 else self.chunks * (self.slot_bytes // limit)

    def least_with(self, limit: int) -> int:
        """The smallest size meant at which a message holds at most ``limit`` chunks."""
        smallest_not_fitting = self.slot_bytes // (limit + 1) + 1  # chunk, limit + 1 times
        return self.chunks * max(self._smallest_chunk, smallest_not_fitting)


def limits(largest: int, sizes: Sizes | None) -> range:
    """Every number of chunks a message that makes a difference at the sizes meant, falling.

    Args:
        largest: chunks of the largest step that sends or receives.
        sizes: None where messages are not split.
    """
    if sizes is None:
        return range(largest, largest - 1, -1)
    coarsest = min(sizes.coarsest, largest)
    return range(coarsest, min(sizes.finest, coarsest) - 1, -1)


def may_overtake(largest: int, sizes: Sizes | None, sliced: bool) -> bool:
    """Whether chunks of one message may overtake each other.

    Threads move them side by side. Where messages are sliced, the receiver sees a slice only when
    all of it has been moved.
    """
    return not sliced and limits(largest, sizes)[0] > 1


def in_words(nbytes: int | None) -> str:
    """A size as people write it; None is no bound."""
    if nbytes is None:
        return "any size"
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes:,} bytes"
