"""The command: exit codes, what goes where, and that a crash or a closed pipe is no verdict."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from latecomer.verify import Incast, check, families
from latecomer.verify import __all__ as public
from latecomer.verify.core.programs import programs
from latecomer.verify.symbolic import smt2
from proofs.trusted_lines import COLLECTIVE_CHECKER, ROOT, closure, others
from tests.verify.builders import broken, document, optimal_four, schedule_of, straggler
from tests.verify.pipeline import documents as pipelines

words = str.split
PIPELINE_FIELDS = words(
    "file verdict kind ranks stages microbatches form makespan makespan_in_order lower_bound "
    "gap optimal peak_memory slack sensitivity critical_path properties notes counterexample"
)
PROPERTIES = words("well_formed ports absence exactly_once same_bits hazards deadlock_free claims")
FOUR = optimal_four()
IDLE = straggler(5)
IDLE["phases"][-1]["rounds"].append([])
PIPELINE = pipelines.document(
    pipelines.zero_bubble(4, 12), 12, links=[{"between": [1, 2], "latency": 20}]
)
BACKWARDS = [row[::-1] for row in PIPELINE["programs"]]
FILES: dict[str, tuple[int, Any]] = {  # the exit code, what is in the file
    "proved.json": (0, FOUR),
    "refuted.json": (1, broken(straggler(5))),
    "idle.json": (0, IDLE),
    "unknown.json": (3, {**straggler(6), "meta": {"optimal": True}}),
    "malformed.json": (2, {**FOUR, "colour": "red"}),
    "out_of_range.json": (1, document(4, 3, [("p", [], [[[0, 9, 0, "copy"]]])])),
    "pipeline.json": (0, PIPELINE),
    "pipeline.csv": (0, "\n".join(map(",".join, PIPELINE["programs"]))),
    "wrong_pipeline.json": (1, {**PIPELINE, "programs": BACKWARDS}),
    "claim_pipeline.json": (3, {**PIPELINE, "meta": {"optimal": True}}),
    "bad_pipeline.json": (2, {**PIPELINE, "stages": 0}),
    "bad.csv": (2, "0F0;0F1"),
}
VERDICTS = ["PROVED", "REFUTED", "MALFORMED", "UNKNOWN"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    for name, (_, content) in FILES.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("name", FILES)
def test_exit_code_and_text(verify, name: str) -> None:
    code, out, err = verify(name)
    assert code == FILES[name][0]
    if code == 2:
        assert err.startswith(f"{name}: {VERDICTS[code]}\n")
        assert out == ""
    else:
        assert out.startswith(f"{name}: {VERDICTS[code]}\n")
        assert err == ""


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("malformed.json", ["colour"]),
        ("refuted.json", ["late rank 4", "  exactly_once   REFUTED", "exactly_once fails at"]),
        ("refuted.json", ["expected:"]),
        ("proved.json", ["4 rounds, lower bound 4: optimal (theorem: at the lower bound)"]),
        ("idle.json", ["not optimal (theorem: a round of the completion moves nothing)"]),
        ("refuted.json", ["not right, so not optimal"]),
        ("pipeline.json", ["4 stages, 12 microbatches, compute only, delay on 1-2: 20"]),
        ("pipeline.json", ["makespan ", "lower bound ", "link takes at no cost: 0-1: "]),
        ("pipeline.json", ["peak memory per rank: 4, 3.5, 3, 2.5 activations"]),
        ("pipeline.json", ["critical path: 0F0 1F0 ~20~ 2F0"]),
    ],
)
def test_the_text_says(verify, name: str, parts: list[str]) -> None:
    _, out, err = verify(name)
    assert all(part in out + err for part in parts)
    assert ("fails" in out) == (FILES[name][0] == 1)


@pytest.mark.parametrize(
    "several",
    ["pipeline proved", "unknown proved", "refuted unknown proved", "malformed refuted unknown"],
)
def test_of_several_files_the_worst(verify, several: str) -> None:
    """In these lists it is the first one."""
    names = [f"{name}.json" for name in several.split()]
    worst, _ = FILES[names[0]]
    code, _, _ = verify("-q", *names)
    assert code == worst
    code, _, _ = verify("-q", *reversed(names))
    assert code == worst


@pytest.mark.parametrize("name", list(FILES)[:5])
@pytest.mark.parametrize("flags", [["-q"], ["--quiet", "--json"], ["-q", "--z3"]])
def test_quiet_prints_nothing(verify, name: str, flags: list[str]) -> None:
    assert verify(name, *flags) == (FILES[name][0], "", "")


def test_json_is_one_object_per_line(verify) -> None:
    proved = json.loads(
        """{"file": "proved.json", "verdict": "proved", "kind": "allreduce", "ranks": 4,
        "chunks": 3, "rounds": 6, "completion_rounds": 4, "lower_bound": 4, "optimal": true,
        "staging": 1, "properties": {}, "notes": {}, "counterexample": null}"""
    )
    proved["properties"] = dict.fromkeys(PROPERTIES, "proved")

    code, out, err = verify("--json", *FILES)
    assert (code, err) == (2, "")
    answers = {name: json.loads(line) for name, line in zip(FILES, out.splitlines(), strict=True)}
    for name, answer in answers.items():
        code, _ = FILES[name]
        assert answer["file"] == name
        assert answer["verdict"] == VERDICTS[code].lower()
        if code == 2:
            assert list(answer) == ["file", "verdict", "error"]
            continue
        assert answer["kind"] == ("pipeline" if "pipeline" in name else "allreduce")
        assert list(answer) == (PIPELINE_FIELDS if "pipeline" in name else list(proved))
        assert set(answer["properties"].values()) <= {"proved", "refuted", "unknown"}
        assert (answer["counterexample"] is not None) == (code == 1)

    assert answers["proved.json"] == proved
    assert "colour" in answers["malformed.json"]["error"]

    refuted = answers["refuted.json"]
    assert refuted["optimal"] is False
    evidence = words("property phase round rank chunk expected found transfers")
    assert list(refuted["counterexample"]) == evidence
    transfer = answers["out_of_range.json"]["counterexample"]["transfers"][0]
    assert list(transfer) == words("phase round src dst chunk op")

    unknown = answers["unknown.json"]
    assert unknown["optimal"] == "unknown"
    assert list(unknown["notes"]) == ["claims"]

    right = answers["pipeline.json"]
    assert list(right["slack"]) == ["0-1", "1-2", "2-3"]
    assert right["peak_memory"] == [4, 3.5, 3, 2.5]
    assert right["critical_path"][-1]["end"] == right["makespan"] >= right["lower_bound"] > 0
    assert right["sensitivity"]["1-2"]["growth"][0] == [right["slack"]["1-2"], right["makespan"]]

    wrong = answers["wrong_pipeline.json"]
    assert wrong["makespan"] is None
    assert wrong["counterexample"]["property"] == "dependencies"


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [("proved", [], 0), ("refuted", [], 1), ("proved", ["--timeout", "1e-9"], 3)],
)
def test_z3_adds_a_property(verify, name: str, options: list[str], code: int) -> None:
    ended, out, _ = verify("--json", "--z3", *options, f"{name}.json")
    assert ended == code
    assert json.loads(out)["properties"]["symbolic_sum"] == VERDICTS[code].lower()


# the question for another solver


def test_the_question_goes_to_a_file_or_has_stdout_for_itself(verify, tmp_path: Path) -> None:
    code, out, _ = verify("refuted.json", "--smt2", "question.smt2")
    assert (code, "REFUTED" in out) == (1, True)
    code, out, err = verify("refuted.json", "--smt2", "-")
    assert (code, "REFUTED" in err) == (1, True)
    assert (tmp_path / "question.smt2").read_text() == smt2(schedule_of(broken(straggler(5))))
    assert out.strip() == (tmp_path / "question.smt2").read_text().strip()
    assert verify("-q", "out_of_range.json", "--smt2", "none.smt2")[0] == 1
    assert not (tmp_path / "none.smt2").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("proved.json --json --smt2 -", "--smt2 = '-': can't share stdout with --json"),
        ("proved.json proved.json --smt2 q", "needs exactly one schedule file"),
        ("proved.json --smt2 /no/such/folder/q", "can't be written"),
        ("proved.json --timeout 0", "--timeout"),
        ("proved.json --timeout -1", "--timeout"),
        ("proved.json --timeout nan", "--timeout"),
        ("proved.json --timeout inf", "--timeout"),
        ("pipeline.json --z3", "not for pipeline schedules"),
        ("pipeline.json --smt2 q", "not for pipeline schedules"),
        ("proved.json --loss 0", "--loss"),
        ("proved.json --loss -1", "--loss"),
        ("refuted.json --loss 17", "--loss"),
        ("pipeline.csv --loss 1", "--loss"),
        ("proved.json --draw s.svg", "--draw"),
        ("proved.json --loss 1 --draw s.png", "--draw"),
        ("proved.json unknown.json --loss 1 --draw s.svg", "--draw"),
        ("proved.json --loss 1 --draw missing/s.svg", "missing"),
    ],
)
def test_unusable_options(verify, tmp_path: Path, arguments: str, named: str) -> None:
    code, out, err = verify(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err
    assert not list(tmp_path.glob("*.svg"))


def test_a_question_beyond_all_measure(verify, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({**FOUR, "ranks": 8192, "chunks": 2**20}))
    code, _, err = verify("s.json", "--smt2", "q")
    assert (code, "8589934592 unknowns" in err) == (2, True)


@pytest.mark.parametrize("arguments", [[], ["--colour"], ["x.json", "--timeout", "soon"]])
def test_usage_errors(verify, arguments: list[str]) -> None:
    code, out, err = verify(*arguments)
    assert (code, out, "Usage" in err) == (2, "", True)
    code, out, _ = verify("--help")
    assert (code, "0 proved, 1 refuted, 2 malformed" in out) == (0, True)


# what is not a verdict must not look like one


def test_a_crash_is_unknown(verify, monkeypatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(families, "check_collective", crash)
    code, _, err = verify("proved.json")
    assert (code, "MemoryError: no room" in err) == (3, True)


def _spawn(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=False, text=True, timeout=500, **options)


@pytest.mark.parametrize(("name", "code"), [("proved", 0), ("refuted", 1)])
@pytest.mark.parametrize("flags", [[], ["--json"], ["--smt2", "-"]])
def test_a_reader_that_has_gone(tmp_path: Path, name: str, code: int, flags: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    arguments = ["-m", "latecomer.verify", str(tmp_path / f"{name}.json"), *flags]
    fatal = partial(signal.signal, signal.SIGPIPE, signal.SIG_DFL)
    ended = _spawn(*arguments, stdout=writer, preexec_fn=fatal)
    os.close(writer)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_odd_file_names(tmp_path: Path, flags: list[str]) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xce\xbb.json")
    Path(name).write_text(json.dumps(FOUR))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    answer = _spawn("-m", "latecomer.verify", *flags, name, env=environment)
    assert (answer.returncode, "proved" in answer.stdout.lower()) == (0, True)


# the public face


def test_public_names() -> None:
    types = words("Counterexample Incast Phase Report Schedule Transfer Verdict")
    assert public == [*types, *words("check decode encode read write")]


def test_what_was_checked_can_not_be_changed_or_mixed_up() -> None:
    """No field is set again, and those of many fields are made by name."""
    schedule = schedule_of(FILES["out_of_range.json"][1])
    report = check(schedule)
    phase = schedule.phases[0]
    table = schedule.table
    counterexample = report.counterexample
    assert counterexample is not None
    of_the_schedule = [schedule, phase, phase.rounds[0][0], Incast(2), table, programs(schedule)]
    evidence = [counterexample, counterexample.transfers[0]]
    for value in [*of_the_schedule, report, report.results["ports"], *evidence]:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(value, type(value).__struct_fields__[0], 0)
    for value in (schedule, report, counterexample):
        with pytest.raises(TypeError, match="positional"):
            type(value)(*msgspec.structs.astuple(value))


def test_verify_stands_alone() -> None:
    """The ground floor imports no other floor, and the solver only when it is asked."""
    program = (
        "import sys, latecomer.verify.cli; "
        "others = {'torch', 'latecomer.synth', 'latecomer.runtime', 'z3', 'ortools'}; "
        "print(sorted(others & set(sys.modules)))"
    )
    assert _spawn("-c", program).stdout == "[]\n"


def test_what_is_believed_is_small() -> None:
    """What the checker of collectives imports is verify/core, all of it, and three libraries."""
    assert others(*COLLECTIVE_CHECKER) == {"msgspec", "numpy", "zstandard"}
    core = ROOT / "verify" / "core"
    assert closure(*COLLECTIVE_CHECKER) == {*core.glob("*.py")} - {core / "__init__.py"}
