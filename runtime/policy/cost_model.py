"""How long an operation takes by each method, from measured latency and bandwidth.

Legend: S bytes of the buffer; a line is ``messages * alpha + share * S * beta``. With a late rank
that comes L seconds after the others, from the others' arrival on:

    native      L + N                 nothing can be done before it comes
    schedule    max(L, W) + C         W: the waiting phases, C: the completion after its arrival

Source: docs/cost.md. Deviation: native and schedules have an alpha and a beta each, since they run
on different transports, and both are corrected by what was seen (``history.ModelCorrection``).
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from verify.errors import ArgumentError

LEAST_GAIN = 0.02
"""Of the native time: a schedule must promise so much more, or the native all-reduce runs."""


class Line(msgspec.Struct, frozen=True):
    """Seconds per message and seconds per byte."""

    alpha_s: float
    beta_s: float

    def seconds(self, messages: float, share: float, nbytes: int) -> float:
        """The time of so many messages and that share of ``nbytes`` bytes."""
        return messages * self.alpha_s + share * nbytes * self.beta_s


class Profile(msgspec.Struct, frozen=True):
    """What ``python -m runtime profile`` measures: the library's all-reduce, and our executor."""

    ranks: int
    native: Line
    schedule: Line

    def native_s(self, nbytes: int) -> float:
        """N: the native all-reduce of ``nbytes`` bytes, taken as a ring."""
        hops = 2 * (self.ranks - 1)
        return self.native.seconds(hops, hops / self.ranks, nbytes)


def read(path: str | os.PathLike[str]) -> Profile:
    """The profile in a file that ``python -m runtime profile`` wrote; else ArgumentError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError) as error:
        remedy = "Make one with: torchrun ... -m runtime profile"
        problem = f"is no profile ({error})"
        raise ArgumentError("profile", os.fspath(path), problem, remedy) from None


class Phase(msgspec.Struct, frozen=True):
    """What a part of a schedule costs: messages one after the other, share of the buffer."""

    messages: float
    share: float


class Candidate(msgspec.Struct, frozen=True):
    """A schedule for so many late ranks; its cost before and after the last one's arrival."""

    name: str
    late: int
    waiting: Phase
    completion: Phase


class Times(msgspec.Struct, frozen=True):
    """One candidate and one buffer size: W and C, in seconds."""

    candidate: int
    waiting_s: float
    completion_s: float

    def total_s(self, lateness_s: float) -> float:
        """From the others' arrival to the end, if it is started at once."""
        return max(lateness_s, self.waiting_s) + self.completion_s


def times(
    candidates: tuple[Candidate, ...], profile: Profile, late: int, nbytes: int, factor: float
) -> list[Times]:
    """W and C of every candidate for ``late`` late ranks, multiplied by ``factor``."""

    def seconds(phase: Phase) -> float:
        return factor * profile.schedule.seconds(phase.messages, phase.share, nbytes)

    return [
        Times(index, seconds(candidate.waiting), seconds(candidate.completion))
        for index, candidate in enumerate(candidates)
        if candidate.late == late
    ]
