"""The part of the command ``verify`` that is about programs of thread blocks."""

from __future__ import annotations

import re

from verify.asynchronous.msccl import verify_xml
from verify.asynchronous.msccl_xml import is_xml
from verify.asynchronous.verdict import AsynchronousReport
from verify.errors import ArgumentError

UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
MOST_SLOTS = 2**16


def require_options(max_bytes: str | None, slots: int | None) -> int | None:
    """The size that is meant, in bytes; ArgumentError for what can't be."""
    if slots is not None and not 1 <= slots <= MOST_SLOTS:
        raise ArgumentError("--slots", slots, f"must be in 1 .. {MOST_SLOTS}")
    if max_bytes is None:
        return None
    read = re.fullmatch(r"(\d{1,18})\s*([KMGT]iB)?", max_bytes)
    size = int(read[1]) * UNITS[read[2] or ""] if read else 0
    if not 0 < size < 2**63:
        raise ArgumentError("--max-bytes", max_bytes, "must be a size such as 4096 or 64MiB")
    return size


def report_on(
    data: bytes, name: str, max_bytes: int | None, slots: int | None
) -> AsynchronousReport | None:
    """The report on a file whose content is such a program; None where it is something else.

    Raises:
        FormatError: it is such a program, but malformed.
        ArgumentError: an option for such programs, and it is something else.
    """
    if is_xml(data):
        return verify_xml(data, name, max_bytes, slots)
    for option, given in (("--max-bytes", max_bytes), ("--slots", slots)):
        if given is not None:
            raise ArgumentError(option, given, f"is for programs of thread blocks, not {name}")
    return None
