"""Measures alpha and beta of both ways on the running job's own ranks and links.

Two sizes each, the least of a few repeats: with all ranks on time, the native all-reduce is taken
as a ring and the schedule as all its rounds one after the other; a line through the two gives
seconds per message and per byte. It costs a few operations of ``LARGE`` bytes each way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from runtime.policy.cost_model import Candidate, Line, Profile
from verify.errors import ArgumentError

SMALL, LARGE = 2**14, 2**21
"""Bytes."""
REPEATS = 3
LEAST_ALPHA_S, LEAST_BETA_S = 1e-7, 1e-13

Run = Callable[[torch.Tensor], object]
"""Sums a tensor over all ranks, in place, and returns when it is done."""


def measure(size: int, native: Run, schedule: Run, candidate: Candidate) -> Profile:
    """The profile as this rank sees it; all ranks call it together.

    Args:
        size: number of ranks.
        native: the library's all-reduce.
        schedule: the same by the schedule of ``candidate``.
    """
    hops = 2 * (size - 1)
    messages = candidate.waiting.messages + candidate.completion.messages
    share = candidate.waiting.share + candidate.completion.share
    found = {way: [_least_s(native, run, bytes_) for bytes_ in (SMALL, LARGE)]
             for way, run in (("native", native), ("schedule", schedule))}  # fmt: skip
    return Profile(
        size,
        line(*found["native"], messages=hops, share=hops / size),
        line(*found["schedule"], messages=messages, share=share),
    )


def line(small_s: float, large_s: float, *, messages: float, share: float) -> Line:
    """Alpha and beta of something that took ``small_s`` for SMALL and ``large_s`` for LARGE."""
    beta_s = max(LEAST_BETA_S, (large_s - small_s) / (share * (LARGE - SMALL)))
    return Line(max(LEAST_ALPHA_S, (small_s - share * SMALL * beta_s) / messages), beta_s)


def read(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file that ``python -m runtime profile`` wrote.

    Raises:
        ArgumentError: there is none.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError) as error:
        remedy = "Make one with: torchrun ... -m runtime profile"
        raise ArgumentError(
            "profile", os.fspath(path), f"is no profile ({error})", remedy
        ) from None


def write(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write ``profile`` as JSON."""
    data = msgspec.json.format(msgspec.json.encode(profile), indent=2)
    Path(path).write_bytes(data + b"\n")


def _least_s(native: Run, run: Run, size: int) -> float:
    """The shortest of some runs, each begun by all ranks together."""
    data, start = torch.zeros(size // 4), torch.zeros(1)
    found = []
    for _ in range(REPEATS + 1):  # the first one warms connections and buffers
        native(start)
        began = time.monotonic()
        run(data)
        found.append(time.monotonic() - began)
    return min(found[1:])
