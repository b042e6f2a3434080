"""How MSCCL's executor cuts a step into messages: by what a slot of the stock buffers holds."""

from __future__ import annotations

from bench.corpus.parse import File

MAX_COUNT = 71
"""Chunks that travel together at most."""

IN_FLIGHT = {"LL": 8, "LL128": 8, "Simple": 2}
"""Messages of a connection that are sent and not yet received, at most."""

_SLOT_BYTES = {"LL": 8 * 640 * 16 // 2, "LL128": 120 * 640 * 8 // 16 * 15, "Simple": 2**22 // 8}
_SIMPLE_SLOTS = {"reduce": 1, "broadcast": 1}
"""Slots that the executor reckons with for a message of Simple; 4 where not named."""


def _room(file: File) -> int:
    slots = _SIMPLE_SLOTS.get(file.collective, 4) if file.protocol == "Simple" else 1
    return slots * _SLOT_BYTES[file.protocol]


def chunks_per_message(file: File, nbytes: int) -> int:
    """How many chunks travel together in a buffer of ``nbytes``, all shares together."""
    return min(MAX_COUNT, max(1, _room(file) // max(1, -(-nbytes // file.chunks))))


def declared(file: File) -> range:
    """All numbers of chunks that travel together at the sizes that a file declares, rising."""
    low = chunks_per_message(file, file.max_bytes) if file.max_bytes > 0 else 1
    return range(low, chunks_per_message(file, file.min_bytes) + 1)
