"""The command: what it writes and prints, how it exits, what "optimal" rests on."""

import json
import re
import subprocess
import sys
from unittest.mock import Mock

import pytest

from latecomer.synth.answer import Basis
from latecomer.synth.arrivals.generate import CERTIFIED
from latecomer.synth.solvers.choice import Solving
from latecomer.synth.straggler import generate as generate_module
from latecomer.verify import Counterexample, Verdict, check, read
from latecomer.verify.core.verdict import refuted
from proofs.certificates.check import FOLDER


def test_generate_writes_and_explains(synth, tmp_path) -> None:
    code, out, err = synth("generate", "--n", "8")
    assert (code, err) == (0, "")
    schedule = read(tmp_path / "schedule.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert schedule.late == (7,)
    for fact in [
        "6 reduce_scatter (without rank 7) + 9 completion",
        "9 rounds, lower bound 9: optimal (theorem: ",
        "z3, staged form",
        "9 alpha + 1.286 S*beta",
        "6 alpha + 0.8571 S*beta",
        "14 alpha + 1.75 S*beta",
    ]:
        assert fact in out
    assert "chosen" not in out
    assert " ms" not in out


def test_bytes_choose_the_chunks_and_give_times(synth, tmp_path) -> None:
    command = "generate --n 8 --bytes 1GiB --alpha 3us --bandwidth 450GB/s --json"
    code, out, _ = synth(*command.split())
    assert code == 0

    facts = json.loads(out)
    chunks = read(tmp_path / "schedule.json").chunks
    considered = {c["chunks"]: c["predicted_s"] for c in facts["candidates"]}
    assert min(considered, key=considered.__getitem__) == chunks == 40
    for k, seconds in considered.items():
        assert seconds == pytest.approx((k + 2) * (3e-6 + 2**30 / k / 450e9))  # at the bound
    assert facts["predicted"]["completion"]["seconds"] == pytest.approx(min(considered.values()))
    assert facts["optimal"] is True


@pytest.mark.parametrize(
    ("options", "chunks", "late"),
    [
        ("--n 6 --bytes 1kB --alpha 1ms --bandwidth 1GB/s", 1, 5),  # a small buffer wants few
        ("--n 256 --bytes 64KiB --alpha 3us --bandwidth 450GB/s", 1, 255),
        ("--n 5 --bytes 1GiB --chunks 3 --late 1", 3, 1),
        ("--n 5 --bytes 1GiB --m 2 --late 0", 8, 0),  # a given m is kept
    ],
)
def test_how_many_chunks(synth, tmp_path, options: str, chunks: int, late: int) -> None:
    code, out, _ = synth("generate", *options.split())
    assert code == 0
    assert " ms" in out or " us" in out
    schedule = read(tmp_path / "schedule.json")
    assert (schedule.chunks, schedule.late) == (chunks, (late,))


@pytest.mark.parametrize("command", ["generate", "ring", "transpose"])
def test_quiet(synth, tmp_path, command: str) -> None:
    assert synth(command, "--n", "4", "--quiet") == (0, "", "")
    assert read(tmp_path / "schedule.json").ranks == 4


def test_time_out_writes_nothing(synth, tmp_path) -> None:
    command = "generate --n 64 --owners balanced --time-limit 0.05"
    code, out, err = synth(*command.split())
    assert (code, out) == (3, "")
    assert "Whether one exists is unknown" in err
    assert "Raise --time-limit" in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_proved_is_not_written(synth, tmp_path, monkeypatch) -> None:
    wrong = Counterexample(property="ports", expected="a", found="b")
    monkeypatch.setitem(check.__globals__["PROPERTIES"], "ports", lambda schedule: refuted(wrong))
    for command in ("generate", "ring"):
        code, out, err = synth(command, "--n", "4")
        assert (code, out) == (1, "")
        assert err.startswith("error: internal error")
        assert list(tmp_path.iterdir()) == []


def test_interrupt_leaves_no_file(synth, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Solving, "ask", Mock(side_effect=KeyboardInterrupt))
    assert synth("generate", "--n", "8") == (130, "", "interrupted: nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_command_is_light() -> None:
    heavy = ["ortools", "z3", "torch", "scipy"]
    code = f"import sys, latecomer.synth.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_progress_names_what_is_tried() -> None:
    messages: list[str] = []
    generate_module.search(4, progress=messages.append)
    assert messages == ["n = 4, 3 chunks: z3, staged form, 4 rounds (lower bound 4 rounds)"]


QUICK = "--seed 0 --effort 2"
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
        ("generate --n 4 --delay 2 --m 2", Basis.THEOREM, "lower bound"),
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
    is_optimal = basis is not Basis.UNKNOWN
    code, out, _ = synth(*arguments.split(), "--json", "-o", "it.json.gz")
    assert code == 0
    facts = json.loads(out)
    assert facts["basis"] == basis
    assert facts["basis_reason"]
    if "optimal" in facts:
        assert facts["optimal"] == (True if is_optimal else "unknown")
    if not arguments.startswith("pipeline"):
        assert check(read(tmp_path / "it.json.gz")).verdict is Verdict.PROVED

    code, text, err = synth(*arguments.split())
    assert (code, err) == (0, "")
    assert fact in text
    assert re.findall(r"optimal \((\w+):", text) == ([basis] if is_optimal else [])
    assert len(re.findall(r"\boptimal\b", text)) == (1 if is_optimal else 0)


def test_rows_of_a_comparison_tell_it_too(synth) -> None:
    command = f"{PIPE} --slow 0-1:4 --compare --method heuristic --json"
    _, out, _ = synth(*command.split())
    for row in json.loads(out)["rows"]:
        assert (row["optimal"] is True) == (row["basis"] == "paper")


def test_the_certificates_are_those_of_the_repository() -> None:
    certified = {}
    for path in FOLDER.glob("*.json"):
        chunks, arrivals = re.fullmatch(r"n\d+-k(\d+)-arrivals-([\d-]+)", path.stem).groups()
        key = int(chunks), *sorted(map(int, arrivals.split("-")))
        certified[key] = read(path).completion_rounds
    assert certified == CERTIFIED


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("straggler", "--n 6 --late 2 --m 2 --owners free"),
        ("straggler", "--n 5 --bytes 1MiB"),
        ("arrivals", "--n 4 --delay 1 --exact --effort 0.1"),
        ("arrivals", "--n 6 --late 4,5 --arrivals 1,3 --seed 1 --effort 0.1"),
        ("nodes", "--nodes 2 --per-node 2 --bytes 1MiB --late 1"),
    ],
)
def test_generate_picks_the_family_by_the_options(
    synth, tmp_path, family: str, options: str
) -> None:
    by_family = synth(family, *options.split(), "--quiet", "-o", "by_family.json")
    by_generate = synth("generate", *options.split(), "--quiet", "-o", "by_generate.json")

    assert by_family == by_generate == (0, "", "")
    file_of_family = (tmp_path / "by_family.json").read_bytes()
    file_of_generate = (tmp_path / "by_generate.json").read_bytes()
    assert file_of_family == file_of_generate


@pytest.mark.parametrize(
    ("family", "option"),
    [
        ("straggler --n 8", "--delay"),
        ("straggler --n 8", "--exact"),
        ("straggler --n 8", "--nodes"),
        ("arrivals --n 8 --delay 1", "--ports"),
        ("arrivals --n 8 --delay 1", "--owners"),
        ("nodes --nodes 2 --per-node 2 --bytes 1MiB", "--arrivals"),
        ("nodes --nodes 2 --per-node 2 --bytes 1MiB", "--n"),
    ],
)
def test_a_family_does_not_have_the_options_of_others(synth, family: str, option: str) -> None:
    code, out, err = synth(*family.split(), option, "1")

    assert (code, out) == (2, "")
    assert f"No such option: {option}" in err
