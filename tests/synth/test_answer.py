"""What "optimal" rests on, in every family, and that it is never said without it."""

import json
import re

import pytest

from proofs.certificates.check import FOLDER
from synth.answer import Basis
from synth.arrivals.generate import CERTIFIED
from verify import Verdict, check, read

QUICK = "--seed 0 --time-limit 20"
TINY = "generate --n 3 --late 1,2 --m 1 --bytes 1KiB"
PIPE = "pipeline --stages 4 --microbatches 6"
SLOW = "--forward 8 --backward 10 --weight 5 --slow 1-2:30,2-3:12"


@pytest.mark.parametrize(
    ("arguments", "basis", "fact"),
    [
        ("generate --n 6", Basis.THEOREM, "6 alpha"),
        ("generate --n 6 --owners free", Basis.THEOREM, "free owners"),
        (f"generate --n 7 --ports matching {QUICK}", Basis.THEOREM, "matching ports"),
        ("generate --n 3 --m 2 --owners balanced", Basis.UNKNOWN, "gap 1: optimality unknown"),
        ("generate --n 4 --delay 2 --m 2", Basis.PAPER, "lower bound"),
        ("generate --n 8 --delay 2", Basis.THEOREM, "2 before 7"),
        ("generate --n 6 --late 4,5 --arrivals 1,3", Basis.THEOREM, "4 at round 1, 5 at round 3"),
        (f"{TINY} --delay 1", Basis.CERTIFICATE, "1 before 1, 2"),
        (f"{TINY} --delay 3", Basis.SOLVER, "3 before 1, 2"),
        ("generate --nodes 2 --per-node 2 --bytes 1MiB", Basis.UNKNOWN, "2 nodes of 2 ranks"),
        ("ring --n 6", Basis.THEOREM, "proved"),
        ("rhd --n 6", Basis.UNKNOWN, "gap 4: optimality unknown"),
        ("direct --n 6", Basis.THEOREM, "proved"),
        ("transpose --n 8", Basis.THEOREM, "proved"),
        ("transpose --n 8 --incast 2", Basis.UNKNOWN, "proved"),
        (f"{PIPE} {SLOW} --method best --workers 1", Basis.PAPER, "proved"),
        (f"{PIPE} --method gpipe", Basis.UNKNOWN, "proved"),
    ],
)
def test_every_command_writes_a_proved_file_and_tells_its_basis(
    synth, tmp_path, arguments: str, basis: Basis, fact: str
) -> None:
    code, out, _ = synth(*arguments.split(), "--json", "-o", "it.json.gz")
    assert code == 0
    facts = json.loads(out)
    assert facts["basis"] == basis
    assert facts["basis_reason"]
    if "optimal" in facts:
        assert facts["optimal"] == (True if basis is not Basis.UNKNOWN else "unknown")
    if not arguments.startswith("pipeline"):
        assert check(read(tmp_path / "it.json.gz")).verdict is Verdict.PROVED
    code, text, err = synth(*arguments.split())
    assert (code, err) == (0, "")
    assert fact in text
    assert re.findall(r"optimal \((\w+):", text) == [basis] * (basis is not Basis.UNKNOWN)
    assert len(re.findall(r"\boptimal\b", text)) == (basis is not Basis.UNKNOWN)


def test_rows_of_a_comparison_tell_it_too(synth) -> None:
    compared = f"{PIPE} --slow 0-1:4 --compare --method heuristic --json"
    for row in json.loads(synth(*compared.split())[1])["rows"]:
        assert (row["optimal"] is True) == (row["basis"] == "paper")


def test_the_certificates_are_those_of_the_repository() -> None:
    found = {}
    for path in FOLDER.glob("*.json"):
        chunks, arrivals = re.fullmatch(r"n\d+-k(\d+)-arrivals-([\d-]+)", path.stem).groups()
        key = int(chunks), *sorted(map(int, arrivals.split("-")))
        found[key] = read(path).completion_rounds
    assert found == CERTIFIED
