"""What a kind of program offers to the search: it is made, judged by both, and made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from latecomer.verify.core.verdict import Result, Verdict
from tests.hunt.outcome import Outcome

STRUCTURE = ("connections_match", "signals_match", "bounds", "synchronized")
"""Properties that say what a program is; where one is refuted, the others mean little."""

Results = dict[str, Result]


class Kind(Protocol):
    """One kind of program: the file, or what files are lowered to."""

    name: str
    suffix: str

    def make(self, seed: int) -> Any:
        """The program of a seed."""

    def text(self, draft: Any) -> bytes:
        """The program for people, or as a file."""

    def verdict(self, draft: Any) -> Results:
        """What ``verify`` says, by property."""

    def look(self, draft: Any, thorough: bool) -> Outcome:
        """What the oracle says; not thorough: a race is enough, whatever it does to values."""

    def smaller(self, draft: Any) -> Iterator[Any]:
        """Programs with something less, the largest steps first."""


def overall(results: Results) -> Verdict:
    """The verdict on all properties together."""
    verdicts = {result.verdict for result in results.values()}
    for verdict in (Verdict.REFUTED, Verdict.UNKNOWN):
        if verdict in verdicts:
            return verdict
    return Verdict.PROVED


LENIENT = ("HARSH", "PART")
"""How contradictions begin that are counted and shown, and do not fail: ``verify`` refutes how a
right program is put together, or proves that a program ends which does not, but refutes it anyway.
"""


def disagreement(results: Results, outcome: Outcome) -> str:
    """In which way ``verify`` and the oracle contradict each other; empty: they do not."""
    if overall(results) is Verdict.PROVED:
        return _against_proof(outcome)
    return _against_properties(results, outcome)


def _against_proof(outcome: Outcome) -> str:
    """What contradicts that all properties are proved."""
    if outcome.hangs:
        return "WRONG PROVED (hang)"
    if outcome.wrong:
        return "WRONG PROVED (wrong sums)"
    if outcome.fault:
        return "WRONG PROVED (fault)"
    return "RACE OVERLOOKED" if outcome.races else ""


def _against_properties(results: Results, outcome: Outcome) -> str:
    """What contradicts the verdict on one property, where not all are proved."""

    def says(name: str, verdict: Verdict) -> bool:
        return name in results and results[name].verdict is verdict

    if any(says(name, Verdict.REFUTED) for name in STRUCTURE):
        unsure = says("synchronized", Verdict.REFUTED)
        if outcome.right and not outcome.races and not unsure:
            return "HARSH (structure)"
        return ""

    if says("deadlock_free", Verdict.REFUTED):
        if outcome.decided and not outcome.hangs and not outcome.fault:
            return "WRONG REFUTED (deadlock_free)"
        return ""

    if says("deadlock_free", Verdict.PROVED) and outcome.hangs:
        if overall(results) is Verdict.REFUTED:
            return "PART PROVED (deadlock_free)"
        return "WRONG PROVED (deadlock_free)"

    if says("race_free", Verdict.PROVED) and outcome.races:
        return "RACE OVERLOOKED"
    if says("race_free", Verdict.REFUTED) and outcome.right and not outcome.races:
        return "HARSH (race_free)"

    if says("right_values", Verdict.REFUTED) and outcome.right:
        return "WRONG REFUTED (right_values)"
    if says("right_values", Verdict.PROVED) and outcome.wrong:
        return "WRONG PROVED (right_values)"
    return ""
