"""What travels on a connection: frames of a header and, for data, so many bytes of a chunk.

    grant    the receiver of a transfer allows its sender to send it up to byte ``offset``
    data     ``length`` bytes of a transfer, from byte ``offset``; never beyond what was granted

A sender that has nothing granted sends nothing, so what arrives always has a place, no connection
is ever blocked by bytes that can't be taken yet, and a rank that has not entered the operation
receives none of it. Each header carries a digest of what the sender takes the operation to be:
ranks that submit different things find out at the first frame.

Header (32 bytes, little endian): length u32, transfer u32 (the highest bit set: a grant),
operation u64, offset u64, digest u64.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<IIQQQ")
GRANT = 0x80000000
