"""The command: exit codes, what goes where, and that a crash or a closed pipe is no verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proofs.trusted_lines import COLLECTIVE_CHECKER, ROOT, closure, counts, others
from tests.verify.builders import Document, optimal_four, straggler
from verify import __all__ as public
from verify import cli
from verify.errors import ArgumentError

words = str.split
FIELDS = words(
    "file verdict kind ranks chunks rounds completion_rounds lower_bound optimal staging "
    "properties notes counterexample"
)
PROPERTIES = words("well_formed ports absence exactly_once same_bits hazards deadlock_free claims")


def _wrong() -> Document:
    doc = straggler(5)
    doc["phases"][1]["rounds"][-1].pop()
    return doc


DOCUMENTS: dict[str, Any] = {
    "proved": optimal_four(),
    "refuted": _wrong(),
    "unknown": {**straggler(6), "meta": {"optimal": True}},
    "malformed": {**optimal_four(), "colour": "red"},
    "out_of_range": {
        **optimal_four(),
        "phases": [{"name": "p", "absent": [], "rounds": [[[0, 9, 0, "copy"]]]}],
    },
}
CODES = {"proved": 0, "refuted": 1, "malformed": 2, "unknown": 3, "out_of_range": 1}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    for name, doc in DOCUMENTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(doc))
    return {name: str(tmp_path / f"{name}.json") for name in DOCUMENTS}


def _run(*arguments: str) -> int:
    """The exit code of the command, run in this process."""
    old, sys.argv = sys.argv, ["verify", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = old
    assert isinstance(ended.value.code, int)
    return ended.value.code


def _spawn(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "verify", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, **options
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_exit_code_and_text(files: dict[str, str], name: str, capsys) -> None:
    assert _run(files[name]) == CODES[name]
    out, err = capsys.readouterr()
    if name == "malformed":
        assert out == ""
        assert err.startswith(f"{files[name]}: MALFORMED\n")
        assert "colour" in err
    else:
        verdict = "REFUTED" if CODES[name] == 1 else name.upper()
        assert out.startswith(f"{files[name]}: {verdict}\n")
        assert err == ""


def test_the_text_names_the_fault(files: dict[str, str], capsys) -> None:
    _run(files["refuted"])
    out = capsys.readouterr().out
    for part in ("late rank 4", "  exactly_once   REFUTED", "exactly_once fails at", "expected:"):
        assert part in out
    _run(files["proved"])
    out = capsys.readouterr().out
    assert "completion: 4 rounds, lower bound 4: optimal" in out
    assert "fails" not in out


@pytest.mark.parametrize(
    ("several", "code"),
    [
        (["proved", "proved"], 0),
        (["proved", "unknown"], 3),
        (["unknown", "refuted", "proved"], 1),
        (["malformed", "refuted", "unknown"], 2),
        (["refuted", "unknown"], 1),
    ],
)
def test_of_several_files_the_worst(files: dict[str, str], several: list[str], code: int) -> None:
    assert _run("-q", *(files[name] for name in several)) == code
    assert _run("-q", *(files[name] for name in reversed(several))) == code


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("flags", [["-q"], ["--quiet", "--json"], ["-q", "--z3"]])
def test_quiet_prints_nothing(files: dict[str, str], name: str, flags: list[str], capfd) -> None:
    assert _run(files[name], *flags) == CODES[name]
    assert capfd.readouterr() == ("", "")


def test_json_is_one_object_per_line(files: dict[str, str], capsys) -> None:
    assert _run("--json", *files.values()) == 2
    out, err = capsys.readouterr()
    assert err == ""
    answers = {name: json.loads(line) for name, line in zip(files, out.splitlines(), strict=True)}
    for name, answer in answers.items():
        assert answer["file"] == files[name]
        if name == "malformed":
            assert list(answer) == ["file", "verdict", "error"]
            assert answer["verdict"] == "malformed"
            assert "colour" in answer["error"]
            continue
        assert list(answer) == FIELDS
        assert list(answer["properties"]) == PROPERTIES
        assert set(answer["properties"].values()) <= {"proved", "refuted", "unknown"}
        assert (answer["counterexample"] is not None) == (CODES[name] == 1)
    proved, refuted, unknown = (answers[name] for name in ("proved", "refuted", "unknown"))
    assert proved == {
        "file": files["proved"],
        "verdict": "proved",
        "kind": "allreduce",
        "ranks": 4,
        "chunks": 3,
        "rounds": 6,
        "completion_rounds": 4,
        "lower_bound": 4,
        "optimal": True,
        "staging": 1,
        "properties": dict.fromkeys(PROPERTIES, "proved"),
        "notes": {},
        "counterexample": None,
    }
    assert unknown["optimal"] == "unknown"
    assert list(unknown["notes"]) == ["claims"]
    assert refuted["optimal"] is False
    evidence = words("property phase round rank chunk expected found transfers")
    assert list(refuted["counterexample"]) == evidence
    transfer = answers["out_of_range"]["counterexample"]["transfers"][0]
    assert list(transfer) == words("phase round src dst chunk op")


@pytest.mark.parametrize(
    ("name", "options", "verdict"),
    [
        ("proved", [], "proved"),
        ("refuted", [], "refuted"),
        ("proved", ["--timeout", "1e-9"], "unknown"),
    ],
)
def test_z3_adds_a_property(files, name: str, options: list[str], verdict: str, capsys) -> None:
    assert _run("--json", "--z3", *options, files[name]) == CODES[verdict]
    assert json.loads(capsys.readouterr().out)["properties"]["symbolic_sum"] == verdict


# the question for another solver


def test_the_question_goes_to_a_file_or_has_stdout_for_itself(
    files, tmp_path: Path, capsys
) -> None:
    question = tmp_path / "question.smt2"
    assert _run(files["refuted"], "--smt2", str(question)) == 1
    assert "REFUTED" in capsys.readouterr().out
    assert _run(files["refuted"], "--smt2", "-") == 1
    out, err = capsys.readouterr()
    assert out.strip() == question.read_text().strip()
    assert "x_0_0" in out
    assert out.endswith("(check-sat)\n\n")
    assert "REFUTED" in err


def test_no_question_without_sense(files: dict[str, str], tmp_path: Path) -> None:
    assert _run("-q", files["out_of_range"], "--smt2", str(tmp_path / "q")) == 1
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["{proved}", "--json", "--smt2", "-"], "--smt2 = '-': can't share stdout with --json"),
        (["{proved}", "{proved}", "--smt2", "q"], "needs exactly one schedule file"),
        (["{proved}", "--smt2", "/no/such/folder/q"], "can't be written"),
        (["{proved}", "--timeout", "0"], "--timeout"),
        (["{proved}", "--timeout", "-1"], "--timeout"),
        (["{proved}", "--timeout", "nan"], "--timeout"),
        (["{proved}", "--timeout", "inf"], "--timeout"),
    ],
)
def test_unusable_options(files: dict[str, str], arguments: list[str], named: str, capsys) -> None:
    assert _run(*(argument.format(**files) for argument in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err


def test_a_question_beyond_all_measure(tmp_path: Path, capsys) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({**optimal_four(), "ranks": 8192, "chunks": 2**20}))
    assert _run(str(path), "--smt2", str(tmp_path / "q")) == 2
    assert "8589934592 unknowns" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--colour"], ["x.json", "--timeout", "soon"]])
def test_usage_errors(arguments: list[str], capsys) -> None:
    assert _run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Usage" in err


def test_help(capsys) -> None:
    assert _run("--help") == 0
    assert "0 proved, 1 refuted, 2 malformed" in capsys.readouterr().out


def test_run_reports_an_input_error_of_any_command(capsys) -> None:
    def application() -> None:
        raise ArgumentError("--late", 9, "must be a rank", "Use 0..7.")

    with pytest.raises(SystemExit) as ended:
        cli.run(application)  # type: ignore[arg-type]
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: --late = 9: must be a rank. Use 0..7.\n"


# what is not a verdict must not look like one


def test_a_crash_is_unknown(files: dict[str, str], monkeypatch, capsys) -> None:
    def broken(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(cli, "check", broken)
    assert _run(files["proved"]) == 3
    assert "MemoryError: no room" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "code"), [("proved", 0), ("refuted", 1)])
@pytest.mark.parametrize("flags", [[], ["--json"], ["--smt2", "-"]])
def test_a_reader_that_has_gone(
    files: dict[str, str], name: str, code: int, flags: list[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-m", "verify", files[name], *flags],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=500,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL),
    )
    os.close(writer)
    assert process.returncode == code
    assert "Traceback" not in process.stderr


def test_odd_file_names(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9 \xce\xbb.json"
    with open(name, "wb") as stream:
        stream.write(json.dumps(optimal_four()).encode())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert _spawn(os.fsdecode(name), env=environment).returncode == 0
    answer = _spawn("--json", os.fsdecode(name), env=environment)
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["verdict"] == "proved"


def test_the_installed_command(files: dict[str, str]) -> None:
    command = Path(sys.executable).with_name("verify")
    if not command.exists():
        pytest.skip("the project is not installed")
    ended = subprocess.run([command, "-q", files["refuted"]], timeout=500, check=False)
    assert ended.returncode == 1


# the public face


def test_public_names() -> None:
    types = words("Counterexample Incast Phase Report Schedule Transfer Verdict")
    assert public == [*types, *words("check decode encode read write")]


def test_verify_stands_alone() -> None:
    """The ground floor imports no other floor, and the solver only when it is asked."""
    program = (
        "import sys, verify, verify.cli; "
        "print(sorted({'torch', 'synth', 'runtime', 'z3', 'ortools'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True
    )
    assert ended.stdout == "[]\n"


def test_what_is_believed_is_small() -> None:
    """docs/trust.md states the number; what the checker of collectives imports is all of it."""
    assert counts()["verify, collectives"] <= 750
    assert others(*COLLECTIVE_CHECKER) == {"msgspec", "numpy", "zstandard"}
    core = ROOT / "verify" / "core"
    assert closure(*COLLECTIVE_CHECKER) == {*core.glob("*.py")} - {core / "__init__.py"}
