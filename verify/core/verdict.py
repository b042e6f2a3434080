"""Verdicts and their evidence, for all families of schedules, and the report on a collective."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

import msgspec

from latecomer.verify.core.schedule import Schedule

SHOWN = 12
"""The most transfers that a counterexample shows."""


class Verdict(StrEnum):
    """``UNKNOWN`` means undecided (a time-out, say); it is never a quiet ``REFUTED``."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class LocatedTransfer(msgspec.Struct, frozen=True):
    """A transfer with the phase and the round (within that phase) it belongs to."""

    phase: str
    round: int
    src: int
    dst: int
    chunk: int
    op: str

    def __str__(self) -> str:
        return (
            f"{self.phase} round {self.round}: "
            f"{self.src} -> {self.dst}  chunk {self.chunk}  {self.op}"
        )


class Counterexample(msgspec.Struct, frozen=True, kw_only=True):
    """Where a schedule breaks a property: place, what was expected and what was found.

    Places that have no meaning for a property, or for a family of schedules, are ``None``.

    Attributes:
        property: the property that is broken.
        expected, found: in words.
        rank: at whom.
        phase, round: where in a collective; the round counts within the phase, from 0.
        chunk, contribution: whose contribution to which chunk.
        position, action: where in the rank's program, from 0, and what stands there.
        transfers, actions: the few that matter, in order of execution.
    """

    property: str
    expected: str
    found: str
    rank: int | None = None
    phase: str | None = None
    round: int | None = None
    chunk: int | None = None
    contribution: int | None = None
    position: int | None = None
    action: str | None = None
    transfers: tuple[LocatedTransfer, ...] = ()
    actions: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """The verdict on one property, with a counterexample exactly when it is refuted."""

    verdict: Verdict
    counterexample: Counterexample | None = None
    note: str = ""

    def __post_init__(self) -> None:
        assert (self.verdict is Verdict.REFUTED) == (self.counterexample is not None)


PROVED = Result(Verdict.PROVED)


def refuted(counterexample: Counterexample) -> Result:
    """A refutation with its evidence."""
    return Result(Verdict.REFUTED, counterexample)


def unknown(reason: str) -> Result:
    """Undecided, and why."""
    return Result(Verdict.UNKNOWN, note=reason)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """Refuted if anything is refuted, else unknown if anything is unknown, else proved."""
    present = set(verdicts)
    if Verdict.REFUTED in present:
        return Verdict.REFUTED
    if Verdict.UNKNOWN in present:
        return Verdict.UNKNOWN
    return Verdict.PROVED


class BaseReport:
    """What reports on all families of schedules have in common: what follows from their results.

    Attributes:
        results: property name -> result, in the order of the checks.
    """

    __slots__ = ()
    results: dict[str, Result]

    @property
    def verdict(self) -> Verdict:
        """The verdict over all properties."""
        return overall(result.verdict for result in self.results.values())

    @property
    def counterexample(self) -> Counterexample | None:
        """The counterexample of the first refuted property, if any."""
        for result in self.results.values():
            if result.counterexample is not None:
                return result.counterexample
        return None


class Report(BaseReport, msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` says about one schedule.

    Attributes:
        rounds: in all phases; ``completion_rounds``: those in which no rank is absent.
        lower_bound: on ``completion_rounds``, recomputed (see :mod:`latecomer.verify.core.bounds`).
        optimal: ``True`` at the bound if nobody is absent again after its arrival, ``False`` where
            a shorter right schedule is evident or the schedule is wrong, else ``"unknown"``.
        staging: chunks that some rank must buffer a second time within one round.
        results: property name -> result, in the order of the checks.
    """

    kind: str
    ranks: int
    chunks: int
    rounds: int
    completion_rounds: int
    lower_bound: int
    optimal: bool | Literal["unknown"]
    staging: int
    results: dict[str, Result]


def locate(schedule: Schedule, index: int) -> LocatedTransfer:
    """The transfer at ``index`` of ``schedule.table`` with its place."""
    phase, round_number = schedule.place(int(schedule.table.round[index]))
    transfer = schedule.table.transfer(index)
    return LocatedTransfer(
        phase=phase,
        round=round_number,
        src=transfer.src,
        dst=transfer.dst,
        chunk=transfer.chunk,
        op=transfer.op,
    )
