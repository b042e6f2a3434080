"""What "optimal" rests on, in every family, and that it is never said without it."""

import json
import re

import pytest

from proofs.certificates.check import FOLDER
from synth.answer import Basis, answered
from synth.arrivals.generate import CERTIFIED
from synth.standard import rhd, ring
from verify import read

QUICK = ["--seed", "0", "--time-limit", "20"]
TINY = ["generate", "--n", "3", "--late", "1,2", "--m", "1", "--bytes", "1KiB"]
PIPE = ["pipeline", "--stages", "4", "--microbatches", "6"]
SLOW = ["--forward", "8", "--backward", "10", "--weight", "5", "--slow", "1-2:30,2-3:12"]


@pytest.mark.parametrize(
    ("arguments", "basis"),
    [
        (["generate", "--n", "6"], Basis.THEOREM),
        (["generate", "--n", "7", "--ports", "matching", *QUICK], Basis.THEOREM),
        (["generate", "--n", "3", "--m", "2", "--owners", "balanced"], Basis.UNKNOWN),
        (["generate", "--n", "4", "--delay", "2", "--m", "2"], Basis.PAPER),
        ([*TINY, "--delay", "1"], Basis.CERTIFICATE),
        ([*TINY, "--delay", "3"], Basis.SOLVER),
        (["generate", "--nodes", "2", "--per-node", "2", "--bytes", "1MiB"], Basis.UNKNOWN),
        (["ring", "--n", "6"], Basis.THEOREM),
        (["rhd", "--n", "6"], Basis.UNKNOWN),
        (["transpose", "--n", "8"], Basis.THEOREM),
        (["transpose", "--n", "8", "--incast", "2"], Basis.UNKNOWN),
        ([*PIPE, *SLOW, "--method", "best", "--workers", "1"], Basis.PAPER),
        ([*PIPE, "--method", "gpipe"], Basis.UNKNOWN),
    ],
)
def test_every_command_tells_its_basis(synth, arguments: list[str], basis: Basis) -> None:
    code, out, _ = synth(*arguments, "--json")
    assert code == 0
    facts = json.loads(out)
    assert facts["basis"] == basis
    assert facts["basis_reason"]
    if "optimal" in facts:
        assert facts["optimal"] == (True if basis is not Basis.UNKNOWN else "unknown")
    code, text, _ = synth(*arguments)
    assert code == 0
    assert re.findall(r"optimal \((\w+):", text) == [basis] * (basis is not Basis.UNKNOWN)
    assert len(re.findall(r"\boptimal\b", text)) == (basis is not Basis.UNKNOWN)


def test_rows_of_tables_tell_it_too(synth) -> None:
    code, out, _ = synth("table", "--n", "3", "--m", "1,2", "--owners", "balanced", "--json")
    assert code == 0
    assert [json.loads(line)["basis"] for line in out.splitlines()[:2]] == ["theorem", "unknown"]
    compared = [*PIPE, "--slow", "0-1:4", "--compare", "--method", "heuristic", "--json"]
    for row in json.loads(synth(*compared)[1])["rows"]:
        assert (row["optimal"] is True) == (row["basis"] == "paper")


def test_the_certificates_are_those_of_the_repository() -> None:
    found = {}
    for path in FOLDER.glob("*.json"):
        chunks, arrivals = re.fullmatch(r"n\d+-k(\d+)-arrivals-([\d-]+)", path.stem).groups()
        key = int(chunks), *sorted(map(int, arrivals.split("-")))
        found[key] = read(path).completion_rounds
    assert found == CERTIFIED


def test_what_is_at_no_bound_is_unknown() -> None:
    assert answered(ring(4)).claim.startswith("optimal (theorem: ")
    assert answered(rhd(5)).claim.startswith("gap ")
