"""How MSCCL's executor cuts a step into messages: by what a slot of the stock buffers holds."""

from __future__ import annotations

from bench.corpus.parse import File

MAX_COUNT = 71
"""Chunks that travel together at most."""

IN_FLIGHT = {"LL": 8, "LL128": 8, "Simple": 2}
"""Messages of a connection that are sent and not yet received, at most."""

# NCCL's device.h: LL has 8 lines of 16 bytes for each of 512 threads, and half of a line is flags.
# LL128 has 120 elements of 8 bytes for each of 640 threads; one in 16 of them is a flag.
_SLOT_BYTES = {"LL": 8 * 512 * 16 // 2, "LL128": 120 * 640 * 8 // 16 * 15, "Simple": 2**22 // 8}
_SIMPLE_SLOTS = {"reduce": 1, "broadcast": 1}
"""Slots that the executor reckons with for a message of Simple; 4 where not named."""


def _message_bytes(file: File) -> int:
    slots = _SIMPLE_SLOTS.get(file.collective, 4) if file.protocol == "Simple" else 1
    return slots * _SLOT_BYTES[file.protocol]


def chunks_per_message(file: File, nbytes: int) -> int:
    """How many chunks travel together in a buffer of ``nbytes``, all shares together."""
    chunk_bytes = max(1, -(-nbytes // file.chunks))  # rounded up
    return min(MAX_COUNT, max(1, _message_bytes(file) // chunk_bytes))


def declared(file: File) -> range:
    """All numbers of chunks that travel together at the sizes that a file declares, rising."""
    at_least = chunks_per_message(file, file.max_bytes) if file.max_bytes > 0 else 1
    at_most = chunks_per_message(file, file.min_bytes)
    return range(at_least, at_most + 1)
