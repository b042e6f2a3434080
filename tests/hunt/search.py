"""Looks for programs on which ``verify`` and an oracle contradict each other, and shrinks them."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.hunt.kinds import Kind, disagreement, overall
from tests.hunt.outcome import Seen
from verify.core.verdict import Verdict
from verify.errors import FormatError

SHRINKING_S = 20.0


class Finding(NamedTuple):
    """A contradiction: the seed, in which way, and what the oracle saw."""

    seed: int
    way: str
    seen: Seen


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
        of = sum(many for (one, _), many in self.verdicts.items() if one == verdict.value)
        return of / max(1, self.count)

    def __str__(self) -> str:
        shares = ", ".join(f"{100 * self.share(v):.0f} % {v.value}" for v in Verdict)
        each = 1000 * self.seconds / max(1, self.count)
        return f"{self.count} programs, {shares}; {each:.1f} ms each"


def judge(kind: Kind, draft: Any) -> tuple[str, str, Seen]:
    """(verify's verdict, the contradiction or an empty string, what the oracle saw)."""
    try:
        results = kind.verdict(draft)
    except FormatError:
        return "refused", "", Seen(decided=False)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return "crashed", f"CRASH ({type(error).__name__})", Seen(decided=False)
    said = overall(results)
    thorough = said is not Verdict.REFUTED or results["race_free"].verdict is Verdict.PROVED
    seen = kind.look(draft, thorough)
    return said.value, disagreement(results, seen), seen


def _in_a_word(seen: Seen) -> str:
    if seen.hangs:
        return "hangs"
    if seen.fault:
        return "fault"
    if seen.wrong:
        return "wrong"
    if seen.races:
        return "races"
    return "right" if seen.decided else "undecided"


def search(
    kind: Kind, seeds: range, seconds: float | None = None, most_findings: int | None = None
) -> Tally:
    """Judge the programs of ``seeds``, for so long at most."""
    tally = Tally()
    started = time.process_time()
    for seed in seeds:
        said, way, seen = judge(kind, kind.make(seed))
        tally.verdicts[said, _in_a_word(seen)] += 1
        if way:
            tally.findings.append(Finding(seed, way, seen))
        tally.seconds = time.process_time() - started
        if seconds is not None and tally.seconds > seconds:
            break
        if most_findings is not None and len(tally.findings) >= most_findings:
            break
    return tally


def shrink(kind: Kind, draft: Any, way: str, seconds: float = SHRINKING_S) -> Any:
    """A smaller program on which both contradict each other in the same way."""
    ends = time.process_time() + seconds
    going = True
    while going:
        going = False
        for smaller in kind.smaller(draft):
            if time.process_time() > ends:
                return draft
            if judge(kind, smaller)[1] == way:
                draft = smaller
                going = True
                break
    return draft
