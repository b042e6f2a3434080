"""Looks for programs on which ``verify`` and an oracle contradict each other, and shrinks them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from tests.hunt.kinds import Kind, disagreement, overall
from tests.hunt.outcome import Outcome

SHRINKING_S = 20.0


class Finding(NamedTuple):
    """A contradiction: the seed, in which way, and what the oracle observed."""

    seed: int
    contradiction: str
    outcome: Outcome


@dataclass
class Tally:
    """What came of many programs; ``verdicts`` counts (verify's, the oracle's)."""

    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Programs looked at."""
        return sum(self.verdicts.values())

    def share(self, verdict: Verdict) -> float:
        """The part of all programs that got a verdict."""
        programs = 0
        for (verdict_of_verify, _), count in self.verdicts.items():
            if verdict_of_verify == verdict.value:
                programs += count
        return programs / max(1, self.count)

    def __str__(self) -> str:
        shares = ", ".join(f"{100 * self.share(v):.0f} % {v.value}" for v in Verdict)
        milliseconds = 1000 * self.seconds / max(1, self.count)
        return f"{self.count} programs, {shares}; {milliseconds:.1f} ms each"


def judge(kind: Kind, draft: Any) -> tuple[str, str, Outcome]:
    """(verify's verdict, the contradiction or an empty string, what the oracle observed)."""
    try:
        results = kind.verdict(draft)
    except FormatError:
        return "refused", "", Outcome(decided=False)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return "crashed", f"CRASH ({type(error).__name__})", Outcome(decided=False)

    verdict = overall(results)
    thorough = verdict is not Verdict.REFUTED or results["race_free"].verdict is Verdict.PROVED
    outcome = kind.look(draft, thorough)
    return verdict.value, disagreement(results, outcome), outcome


def _in_a_word(outcome: Outcome) -> str:
    if outcome.hangs:
        return "hangs"
    if outcome.fault:
        return "fault"
    if outcome.wrong:
        return "wrong"
    if outcome.races:
        return "races"
    return "right" if outcome.decided else "undecided"


def search(
    kind: Kind, seeds: range, seconds: float | None = None, most_findings: int | None = None
) -> Tally:
    """Judge the programs of ``seeds``, for so long at most."""
    tally = Tally()
    started = time.process_time()
    for seed in seeds:
        verdict, contradiction, outcome = judge(kind, kind.make(seed))
        tally.verdicts[verdict, _in_a_word(outcome)] += 1
        if contradiction:
            tally.findings.append(Finding(seed, contradiction, outcome))

        tally.seconds = time.process_time() - started
        if seconds is not None and tally.seconds > seconds:
            break
        if most_findings is not None and len(tally.findings) >= most_findings:
            break
    return tally


def shrink(kind: Kind, draft: Any, contradiction: str, seconds: float = SHRINKING_S) -> Any:
    """A smaller program on which both contradict each other in the same way."""
    ends_at = time.process_time() + seconds
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in kind.smaller(draft):
            if time.process_time() > ends_at:
                return draft
            _, contradiction_of_smaller, _ = judge(kind, smaller)
            if contradiction_of_smaller == contradiction:
                draft = smaller
                shrunk = True
                break
    return draft
