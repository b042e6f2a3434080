"""The pages on theorems, claims, lines and certificates say what is there, and how long it is."""

import json
import re
from pathlib import Path

import pytest

from latecomer.verify import check, decode
from proofs import trusted_lines
from proofs.certificates.check import FOLDER
from proofs.certificates.formula import shorter
from proofs.trusted_lines import counts

ROOT = Path(__file__).resolve().parents[2]
COQ = ROOT / "proofs" / "coq"
NAMED = re.compile(r"`([A-Z]\w+)\.([a-z]\w*)`")
HEADLINES = re.findall(
    r"^Print Assumptions (\w+)\.(\w+)\.$", (ROOT / "proofs/headlines.v").read_text(), re.MULTILINE
)


def _named(page: str) -> set[tuple[str, str]]:
    names = set(NAMED.findall((ROOT / page).read_text()))
    return {(theory, name) for theory, name in names if name != "v"}


def test_every_headline_is_explained_and_the_other_way_round() -> None:
    assert len(HEADLINES) > 40
    assert _named("proofs/theorems.md") == set(HEADLINES)
    assert _named("proofs/claims.md") <= set(HEADLINES)
    assert _named("docs/explanation/trust.md") <= set(HEADLINES)


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
    """``python -m proofs.trusted_lines --write`` makes them so."""
    text = trusted_lines.PAGE.read_text()
    rows = re.findall(r"^\| (\d+) \| ([a-z][^|]+) \|", text, re.MULTILINE)
    assert {name: int(lines) for lines, name in rows} == counts()
    assert trusted_lines.rendered(text) == text
    assert trusted_lines.rendered(text.replace("| 30 |", "| 31 |")) == text

    picture = trusted_lines.PICTURE.read_text()
    assert f"{counts()['verify, collectives']} lines of Python" in picture
    assert trusted_lines.drawn(picture) == picture


def _uncounted(theories: set[str], modules: set[str]) -> set[str]:
    """Theories and modules that are neither counted nor named with a reason."""
    read = {name for names, _ in trusted_lines.THEORIES.values() for name in names}
    exempt = trusted_lines.DECIDES_NOTHING
    counted = trusted_lines.counted()
    uncounted = theories - read - trusted_lines.NOT_TO_BE_READ.keys()

    for module in modules:
        exempt_packages = {package for package in exempt if module.startswith(f"{package}.")}
        exempt_packages -= {"latecomer.verify"}
        path = trusted_lines.file_of(module)
        if module not in exempt and not exempt_packages and path not in counted:
            uncounted.add(module)
    return uncounted


def test_all_that_a_verdict_rests_on_is_counted() -> None:
    theories = {theory for theory, _ in HEADLINES}
    paths = [path for path in (ROOT / "verify").rglob("*.py") if path.stem != "__init__"]
    modules = {
        ".".join(("latecomer", *path.relative_to(ROOT).with_suffix("").parts)) for path in paths
    }
    assert len(modules) > 60
    assert not _uncounted(theories, modules)
    assert _uncounted(theories | {"Belief"}, {"latecomer.verify.oracle"}) == {
        "Belief",
        "latecomer.verify.oracle",
    }


def test_no_module_is_both_counted_and_excused() -> None:
    counted = trusted_lines.counted()
    excused = {name: trusted_lines.file_of(name) for name in trusted_lines.DECIDES_NOTHING}
    assert all(path is not None for path in excused.values())
    assert not [
        name for name, path in excused.items() if path in counted and name != "latecomer.verify"
    ]
    read = {name for names, _ in trusted_lines.THEORIES.values() for name in names}
    assert not read & trusted_lines.NOT_TO_BE_READ.keys()


def test_every_certificate_is_in_the_table() -> None:
    text = (ROOT / "docs/reference/certificates.md").read_text()
    rows = {}
    for name, numbers in re.findall(r"^\| `(n\d[^`]*)` (\|.*)$", text, re.MULTILINE):
        rows[name] = tuple(int(number) for number in re.findall(r"\d+", numbers))

    expected = {}
    for path in FOLDER.glob("*.json"):
        question = shorter(json.loads(path.read_text()))
        report = check(decode(path.read_bytes()))
        sizes = question.ranks, question.chunks, *question.arrival
        rounds = report.completion_rounds
        expected[path.stem] = (*sizes, rounds, rounds - 1, report.lower_bound)
    assert rows == expected
