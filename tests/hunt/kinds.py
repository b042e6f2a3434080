"""What a kind of program offers to the search: it is made, judged by both, and made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from tests.hunt.outcome import Seen
from verify.core.verdict import Result, Verdict

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

    def look(self, draft: Any, thorough: bool) -> Seen:
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


def disagreement(results: Results, seen: Seen) -> str:
    """In which way ``verify`` and the oracle contradict each other; empty: they do not."""

    def says(name: str, verdict: Verdict) -> bool:
        return name in results and results[name].verdict is verdict

    if overall(results) is Verdict.PROVED:
        if seen.broken:
            kind = "hang" if seen.hangs else "wrong sums" if seen.wrong else "fault"
            return f"WRONG PROVED ({kind})"
        return "RACE OVERLOOKED" if seen.races else ""
    if any(says(name, Verdict.REFUTED) for name in STRUCTURE):
        others = [name for name in results if name not in STRUCTURE]
        unsure = says("synchronized", Verdict.REFUTED)
        if seen.right and not seen.races and not unsure and len(others) < len(results):
            return "HARSH (structure)"
        return ""
    if says("deadlock_free", Verdict.REFUTED):
        if seen.decided and not seen.hangs and not seen.fault:
            return "WRONG REFUTED (deadlock_free)"
        return ""
    if says("deadlock_free", Verdict.PROVED) and seen.hangs:
        refuted = overall(results) is Verdict.REFUTED
        return f"{'PART' if refuted else 'WRONG'} PROVED (deadlock_free)"
    if says("race_free", Verdict.PROVED) and seen.races:
        return "RACE OVERLOOKED"
    if says("race_free", Verdict.REFUTED) and seen.right and not seen.races:
        return "HARSH (race_free)"
    if says("right_values", Verdict.REFUTED) and seen.right:
        return "WRONG REFUTED (right_values)"
    if says("right_values", Verdict.PROVED) and seen.wrong:
        return "WRONG PROVED (right_values)"
    return ""
