"""The table of claims: the pages are rendered from it, and each claim is as strong as its basis."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from proofs import claims
from tests.proofs.test_docs import HEADLINES

TABLE = claims.read()
PROVED = {".".join(name) for name in HEADLINES}
BASES = {"theorem", "certificate", "paper", "solver", "measured", "verify", "assumed"}
FIELDS = {"id", "claim", "basis", "extent", "theorems", "by", "believe", "check", "said"}


def _missing(claim: dict[str, Any]) -> list[str]:
    """What keeps a claim from being as strong as its basis, and from saying so where it stands."""
    problems = [f"no field {field}" for field in claim.keys() - FIELDS]
    problems += [f"no theorem {name}" for name in claim.get("theorems", []) if name not in PROVED]
    if claim["basis"] not in BASES:
        problems.append(f"no basis {claim['basis']}")
    if claim["basis"] in ("theorem", "certificate") and not claim.get("theorems"):
        problems.append("a theorem must be named")

    marker = claims.WEAK.get(claim["basis"])
    if marker is not None and not claim.get("said"):
        problems.append("where it is said must be told")
    for page, words in claim.get("said", {}).items():
        if claims.running(words) not in claims.running((claims.ROOT / page).read_text()):
            problems.append(f"not said in {page}: {words}")
        if marker is not None and not re.search(marker, words):
            problems.append(f"{page} must say {marker} beside it")

    for module in re.findall(r"python3? -m ([\w.]+)", claim.get("check", "")):
        if importlib.util.find_spec(module) is None:
            problems.append(f"no module {module}")
    return problems


@pytest.mark.parametrize("claim", TABLE["claim"], ids=lambda claim: claim["claim"][:40])
def test_a_claim_is_as_strong_as_its_basis(claim: dict[str, Any]) -> None:
    assert not _missing(claim)


@pytest.mark.parametrize(
    "changed",
    [
        {"basis": "belief"},
        {"theorems": ["Ring.ring_is_best"]},
        {"theorems": []},
        {"basis": "paper"},
        {"basis": "paper", "said": {"docs/explanation/straggler.md": "every n and every k"}},
        {"said": {"docs/explanation/straggler.md": "no such words, on paper"}},
        {"check": "`python -m proofs.nothing`"},
        {"checks": "`make proofs`"},
    ],
)
def test_a_wrong_claim_is_found(changed: dict[str, Any]) -> None:
    right = next(claim for claim in TABLE["claim"] if claim["basis"] == "theorem")
    assert not _missing(right)
    assert _missing(right | changed)


def test_every_headline_is_in_one_table() -> None:
    names = []
    for part in TABLE["table"]:
        for row in part["theorem"]:
            names += row["names"]
    assert sorted(names) == sorted(PROVED)


def test_pages_are_as_the_table_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["claims"])
    with pytest.raises(SystemExit) as ended:
        claims.main()
    assert (ended.value.code, capsys.readouterr().out) == (False, "")

    changed = tmp_path / "claims.toml"
    changed.write_text(claims.TABLE.read_text().replace('basis = "solver"', 'basis = "theorem"'))
    monkeypatch.setattr(claims, "TABLE", changed)
    with pytest.raises(SystemExit) as ended:
        claims.main()
    assert ended.value.code is True
    assert "proofs/claims.md: is not what" in capsys.readouterr().out
