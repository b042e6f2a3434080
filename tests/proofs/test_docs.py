"""The pages theorems.md, trust.md and certificates.md say what is there, and how long it is."""

import json
import re
from pathlib import Path

import pytest

from proofs.certificates.check import FOLDER
from proofs.certificates.formula import shorter
from proofs.trusted_lines import counts
from verify import check, decode

ROOT = Path(__file__).resolve().parents[2]
COQ = ROOT / "proofs" / "coq"
NAMED = re.compile(r"`([A-Z]\w+)\.([a-z]\w*)`")
HEADLINES = re.findall(
    r"^Print Assumptions (\w+)\.(\w+)\.$", (ROOT / "proofs/headlines.v").read_text(), re.MULTILINE
)


def _named(page: str) -> set[tuple[str, str]]:
    found = set(NAMED.findall((ROOT / "docs/explanation" / page).read_text()))
    return {(theory, name) for theory, name in found if name != "v"}


def test_every_headline_is_explained_and_the_other_way_round() -> None:
    assert len(HEADLINES) > 40
    assert _named("theorems.md") == set(HEADLINES)
    assert _named("trust.md") <= set(HEADLINES)


@pytest.mark.parametrize(("theory", "name"), HEADLINES, ids=".".join)
def test_theorem_is_proved(theory: str, name: str) -> None:
    text = (COQ / f"{theory}.v").read_text()
    start = re.search(rf"^ *(?:Theorem|Corollary) {name}\b", text, re.MULTILINE)
    assert start is not None
    end = re.search(r"\b(Qed|Admitted|Abort|Defined)\.", text[start.start() :])
    assert end is not None
    assert end[1] == "Qed"


@pytest.mark.parametrize("path", sorted(COQ.glob("*.v")), ids=lambda path: path.stem)
def test_nothing_is_assumed(path: Path) -> None:
    """``make proofs`` asks Coq; this needs none."""
    assert path.name in (COQ / "_CoqProject").read_text().split()
    words = r"^ *(Axiom|Axioms|Parameter|Parameters|Conjecture|Admitted)\b|\badmit\b"
    assert not re.search(words, path.read_text(), re.MULTILINE)


def test_trusted_lines_are_those_stated() -> None:
    text = (ROOT / "docs/explanation/trust.md").read_text()
    stated = {
        name: int(n) for n, name in re.findall(r"^\| (\d+) \| ([a-z][^|]+) \|", text, re.MULTILINE)
    }
    assert stated == counts()


def test_every_certificate_is_in_the_table() -> None:
    text = (ROOT / "docs/reference/certificates.md").read_text()
    rows = {
        name: tuple(int(n) for n in re.findall(r"\d+", rest))
        for name, rest in re.findall(r"^\| `(n\d[^`]*)` (\|.*)$", text, re.MULTILINE)
    }
    there = {}
    for path in FOLDER.glob("*.json"):
        question = shorter(json.loads(path.read_text()))
        report = check(decode(path.read_bytes()))
        sizes = question.ranks, question.chunks, *question.arrival
        rounds = report.completion_rounds
        there[path.stem] = (*sizes, rounds, rounds - 1, report.lower_bound)
    assert rows == there
