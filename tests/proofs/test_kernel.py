"""The extracted checker agrees with ``verify``, reads files strictly, and no lie of it goes unseen.

``LATECOMER_DIFFERENTIAL`` sets the number of random schedules (see ``differential.py``).
"""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from latecomer.synth.answer import Basis
from latecomer.synth.arrivals.generate import search
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.standard import direct, ring
from latecomer.synth.transpose.generate import transpose
from latecomer.verify import encode
from latecomer.verify.cli import app
from latecomer.verify.core.schedule import Incast, Schedule
from latecomer.verify.core.verdict import Result, Verdict
from latecomer.verify.errors import ArgumentError
from latecomer.verify.kernel import VARIABLE, judge, opinion
from proofs import closed_form
from tests.proofs.device_programs import device_programs
from tests.proofs.differential import compare
from tests.verify.builders import Document, all_right, broken, optimal_four, report_of, straggler
from tests.verify.builders import ring as ring_document
from tests.verify.pipeline import documents as pipelines
from tests.verify.test_cheap_optimal import gaming

PIPELINE = pipelines.all_right()["1f1b"]
COUNT = int(os.environ.get("LATECOMER_DIFFERENTIAL", "3000"))


def test_agrees_with_verify(kernel: Path) -> None:
    counts, wrong = compare("collective", COUNT, seed=20260118)
    assert not wrong, wrong[0]
    for name in ("well_formed", "ports", "absence", "exactly_once", "same_bits", "hazards"):
        assert counts[name] >= COUNT // 100, f"{name} is hardly ever refuted: {counts}"
    assert counts["accepted"] >= COUNT // 50
    assert counts["optimal"] >= COUNT // 100
    assert counts["optimal but for absences"] >= COUNT // 1000


def test_nobody_is_absent_again_where_it_says_optimal(kernel: Path, tmp_path: Path) -> None:
    """There are three ways to "optimal": at the bound, for given arrivals, and by a refutation."""
    doc = gaming()
    answer = _judged(json.dumps(doc))
    assert answer["accepted"]
    assert answer["completion_rounds"] == answer["lower_bound"] == 0
    assert answer["optimal"] == "unknown"

    path = tmp_path / "gaming.json"
    path.write_text(json.dumps(doc))
    for option in ("--optimal", "--optimal-for-arrivals"):
        done = subprocess.run([kernel, option, path], input=b"", capture_output=True, check=False)
        assert json.loads(done.stdout) == {"optimal": "unknown"}, option


def test_agrees_with_verify_on_pipelines(kernel: Path) -> None:
    counts, wrong = compare("pipeline", COUNT // 2, seed=20260119)
    assert not wrong, wrong[0]
    for name in ("exactly_once", "deadlock_free", "loss_order", "memory"):
        assert counts[name] >= COUNT // 200, f"{name} is hardly ever refuted: {counts}"
    assert counts["accepted"] >= COUNT // 10
    assert counts["outside"] < COUNT // 10


def test_agrees_with_verify_on_device_programs(kernel: Path) -> None:
    counts, wrong = compare("device", COUNT // 2, seed=20260121)
    assert not wrong, wrong[0]
    for name in ("slots_match", "deadlock_free", "race_free", "all_heard", "same_sums"):
        assert counts[name] >= COUNT // 100, f"{name} is hardly ever refuted: {counts}"
    assert counts["accepted"] >= COUNT // 10


@pytest.mark.parametrize(("sets", "verdict"), [("2", "proved"), ("1", "refuted")])
def test_device_programs_on_the_command_line(
    kernel: Path, tmp_path: Path, sets: str, verdict: str
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(straggler(4)))
    arguments = ["--json", "--device", sets, "--kernel", "coq", str(tmp_path / "s.json")]
    done = CliRunner().invoke(app, arguments)
    assert json.loads(done.stdout)["device"]["properties"]["coq_kernel"] == verdict


@pytest.mark.parametrize(
    "change",
    [{"sets": 3}, {"extra": 1}, {"ranks": 3}, {"rows": [[[0, 1, 0]], []]}, {"schedule": 1}],
    ids=lambda change: next(iter(change)),
)
def test_malformed_device_programs(kernel: Path, change: dict[str, Any]) -> None:
    doc = next(device_programs(random.Random(4)))
    assert "malformed" not in _judged(json.dumps(doc))
    answer = _judged(json.dumps(doc | change))
    assert "malformed" in answer
    assert not answer["accepted"]


@pytest.mark.parametrize("name", pipelines.all_right())
def test_right_pipelines_are_accepted_or_not_covered(kernel: Path, name: str) -> None:
    doc = pipelines.all_right()[name]
    result = opinion(json.dumps(doc).encode(), pipelines.report_of(doc), 60)
    if any(word in name for word in ("messages", "slow", "waits")):
        assert "do not cover" in result.note
    else:
        assert result.verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("doc", "verdict"),
    [
        (PIPELINE, "proved"),
        ({**PIPELINE, "situation": {**PIPELINE["situation"], "memory": [1] * 4}}, "refuted"),
        (ring_document(5), "proved"),
    ],
)
def test_on_the_command_line(kernel: Path, tmp_path: Path, doc: Any, verdict: str) -> None:
    (tmp_path / "s.json").write_text(json.dumps(doc))
    done = CliRunner().invoke(app, ["--json", "--kernel", "coq", str(tmp_path / "s.json")])
    assert json.loads(done.stdout)["properties"]["coq_kernel"] == verdict


def _opinion(doc: Document, timeout_s: float = 60) -> Result:
    return opinion(json.dumps(doc).encode(), report_of(doc), timeout_s)


def _judged(text: str) -> dict[str, Any]:
    (answer,) = judge([text.encode()])
    return answer


@pytest.mark.parametrize("name", all_right())
def test_accepts_right_schedules(kernel: Path, name: str) -> None:
    assert _opinion(all_right()[name]).verdict is Verdict.PROVED


def test_refutation_is_shown(kernel: Path) -> None:
    result = _opinion(broken(optimal_four()))
    assert result.verdict is Verdict.REFUTED
    assert result.counterexample is not None
    assert result.counterexample.expected == "exactly_once to hold"


ROUNDS = '"phases": [{"name": "a", "absent": [], "rounds": %s}]'
MALFORMED = {
    "a field twice": '{"format": "latecomer/1", "format": "latecomer/1"}',
    "an unknown field": '"extra": 1',
    "a fraction": '"ranks": 3.0',
    "an exponent": '"ranks": 3e0',
    "one rank": '"ranks": 1',
    "too many chunks": '"chunks": 1048577',
    "a late rank twice": '"late": [1, 1]',
    "an absent late rank that is none": '"late": [3]',
    "other ports": '"ports": "simplex"',
    "incast zero": '"ports": {"incast": 0}',
    "another kind": '"kind": "broadcast"',
    "rounds that are no list": ROUNDS % "1",
    "five fields in a transfer": ROUNDS % '[[[0, 1, 0, "copy", 1]]]',
    "another op": ROUNDS % '[[[0, 1, 0, "swap"]]]',
    "an index that is no number": ROUNDS % '[[[0, true, 0, "copy"]]]',
    "text after the object": "}",
    "no end": '"meta": {"a": ',
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed(kernel: Path, fault: str) -> None:
    malformed = MALFORMED[fault]
    doc = {name: value for name, value in ring_document(3).items() if f'"{name}":' not in malformed}
    text = json.dumps(doc)[:-1] + ", " + malformed + "}"
    answer = _judged(text)
    assert "malformed" in answer
    assert not answer["accepted"]


@pytest.mark.parametrize("index", [-1, 3, 2**62, 2**63, 10**30])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_index_out_of_range(kernel: Path, field: int, index: int) -> None:
    doc = ring_document(3)
    doc["phases"][0]["rounds"][0][0][field] = index
    answer = _judged(json.dumps(doc))
    assert answer["properties"]["well_formed"] == "refuted"


def test_long_schedule(kernel: Path) -> None:
    """Lists far longer than the default stack."""
    doc = ring_document(2)
    doc["phases"].append({"name": "idle", "absent": [], "rounds": [[]] * 400_000})
    answer = _judged(json.dumps(doc))
    assert answer["accepted"]
    assert answer["optimal"] is False


def _rounds(schedule: Schedule) -> list[list[list[Any]]]:
    """By round and transfer, as the extracted program prints them."""
    rounds = []
    for _, _, transfers in schedule.located_rounds():
        rounds.append([[t.src, t.dst, t.chunk, t.op] for t in transfers])
    return rounds


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 13])
def test_theorems_are_about_what_synth_makes(kernel: Path, n: int) -> None:
    """The closed forms that are proved for all n print the rounds that synth writes."""

    def proved(name: str, *sizes: int) -> Any:
        argv = [kernel, "--closed-form", name, *map(str, sizes)]
        return json.loads(subprocess.check_output(argv))

    assert proved("ring", n) == _rounds(ring(n))
    for incast in {1, (n + 1) // 2, n - 1}:
        assert proved("transpose", n, incast) == _rounds(transpose(n, incast=incast))
        assert transpose(n, incast=incast).ports == Incast(incast)
    # the order within a round has no influence on the sum (Structure.v)
    assert list(map(sorted, proved("transpose", n, n - 1))) == list(map(sorted, _rounds(direct(n))))


def test_bound_for_arrivals_is_that_of_synth(kernel: Path) -> None:
    rng = random.Random(20260120)
    for _ in range(60):
        n = rng.randint(2, 12)
        k = rng.randint(1, 30)
        arrival = [0, *(rng.choice([0, rng.randint(0, 40)]) for _ in range(n - 1))]
        rng.shuffle(arrival)
        arrivals_text = ",".join(map(str, arrival))
        command = [str(kernel), "--arrivals-bound", str(n), str(k), arrivals_text]
        proved = subprocess.check_output(command)
        assert int(proved) == Arrivals(k, tuple(arrival), ()).bound, command


def test_optimal_for_arrivals(kernel: Path, tmp_path: Path) -> None:
    """At the bound for its arrivals it says so; with an idle round more, or wrong, it does not."""

    def claimed(doc: Any) -> Any:
        path = tmp_path / "s.json"
        path.write_text(json.dumps(doc))
        argv = [kernel, "--optimal-for-arrivals", path]
        done = subprocess.run(argv, check=False, capture_output=True)
        return json.loads(done.stdout)["optimal"]

    for arrivals in ({7: 6}, {6: 3, 7: 9}):
        answer = search(8, arrivals, m=3)
        doc = json.loads(encode(answer.schedule))
        assert (answer.basis, claimed(doc)) == (Basis.THEOREM, True)

        rounds = doc["phases"][-1]["rounds"]
        rounds.append([])
        assert claimed(doc) == "unknown"

        last_with_transfers = rounds[-2]
        rounds[-2:] = [last_with_transfers[1:]]
        assert claimed(doc) == "unknown"


@pytest.mark.parametrize(("n", "k"), [(2, 1), (2, 5), (3, 2), (5, 3), (8, 1), (13, 6), (22, 4)])
def test_the_closed_form_that_is_proved_is_the_one_that_is_shipped(
    kernel: Path, n: int, k: int
) -> None:
    """Both phases, and every rank's own program; ``python -m proofs.closed_form`` has the rest."""
    assert closed_form.same(n, k, list(range(n)))
    assert closed_form.proved("straggler", n, k) != closed_form.shipped(n, k + 1)


# -- a program that lies, fails or is not there; none of these needs Coq -------------------------


def _fake(tmp_path: Path, script: str) -> str:
    path = tmp_path / "kernel"
    path.write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    path.chmod(0o755)
    return str(path)


def _answer(**changed: Any) -> str:
    names = ("well_formed", "ports", "absence", "exactly_once", "same_bits", "hazards")
    answer: dict[str, Any] = {
        "accepted": True,
        "properties": dict.fromkeys(names, "proved"),
        "completion_rounds": 4,
        "lower_bound": 4,
        "optimal": True,
    }
    return f"echo '{json.dumps(answer | changed)}'"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_answer(lower_bound=3), "lower_bound is 4 here, 3 there"),
        (_answer(completion_rounds=5), "completion_rounds is 4 here, 5 there"),
        (_answer(optimal="unknown"), "optimal is True here, unknown there"),
        (_answer(properties={"ports": "refuted"}, accepted=False), "ports is proved here"),
        ('echo \'{"accepted": false, "malformed": "no"}\'', "can't read the file"),
        ("echo gone >&2; exit 3", "crashed: gone"),
        ("sleep 30", "no answer in"),
    ],
)
def test_disagreement_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    monkeypatch.setenv(VARIABLE, _fake(tmp_path, script))
    result = _opinion(optimal_four(), timeout_s=1)
    assert result.verdict is Verdict.UNKNOWN
    assert reason in result.note


def test_missing_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(ArgumentError, match=VARIABLE):
        list(judge([b"{}"]))
