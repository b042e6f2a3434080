"""The extracted checker agrees with ``verify``, reads files strictly, and no lie of it goes unseen.

``LATECOMER_DIFFERENTIAL`` sets the number of random schedules (see ``differential.py``).
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from synth.standard import direct, ring
from synth.transpose.generate import transpose
from tests.proofs.differential import compare
from tests.verify.builders import all_right, optimal_four
from tests.verify.builders import ring as ring_document
from tests.verify.pipeline.documents import all_right as all_right_pipelines
from verify import check, decode, encode
from verify.cli import app
from verify.core.schedule import Schedule
from verify.core.verdict import Verdict
from verify.errors import ArgumentError
from verify.kernel import VARIABLE, judge, opinion
from verify.pipeline.check import check as check_pipeline
from verify.pipeline.format import decode as decode_pipeline

COUNT = int(os.environ.get("LATECOMER_DIFFERENTIAL", "3000"))


def test_agrees_with_verify(kernel: Path) -> None:
    seen, wrong = compare("collective", COUNT, seed=20260118)
    assert not wrong, wrong[0]
    for name in ("well_formed", "ports", "absence", "exactly_once", "same_bits", "hazards"):
        assert seen[name] >= COUNT // 100, f"{name} is hardly ever refuted: {seen}"
    assert seen["accepted"] >= COUNT // 50
    assert seen["optimal"] >= COUNT // 100


def test_agrees_with_verify_on_pipelines(kernel: Path) -> None:
    seen, wrong = compare("pipeline", COUNT // 2, seed=20260119)
    assert not wrong, wrong[0]
    for name in ("exactly_once", "deadlock_free", "loss_order", "memory"):
        assert seen[name] >= COUNT // 200, f"{name} is hardly ever refuted: {seen}"
    assert seen["accepted"] >= COUNT // 10
    assert seen["outside"] < COUNT // 10


@pytest.mark.parametrize("name", all_right_pipelines())
def test_right_pipelines_are_accepted_or_not_covered(kernel: Path, name: str) -> None:
    text = json.dumps(all_right_pipelines()[name]).encode()
    found = opinion(text, check_pipeline(decode_pipeline(text)), 60)
    if "messages" in name or "slow" in name:
        assert "do not cover" in found.note
    else:
        assert found.verdict is Verdict.PROVED


@pytest.mark.parametrize("memory", [None, 1])
def test_pipelines_on_the_command_line(kernel: Path, tmp_path: Path, memory: int | None) -> None:
    doc = all_right_pipelines()["1f1b"]
    if memory is not None:
        doc["situation"]["memory"] = [memory] * len(doc["programs"])
    assert _said(tmp_path, json.dumps(doc).encode()) == ("refuted" if memory else "proved")


def test_collectives_on_the_command_line(kernel: Path, tmp_path: Path) -> None:
    assert _said(tmp_path, encode(ring(5))) == "proved"


def _said(folder: Path, data: bytes) -> str:
    (folder / "s.json").write_bytes(data)
    done = CliRunner().invoke(app, ["--json", "--kernel", "coq", str(folder / "s.json")])
    return str(json.loads(done.stdout)["properties"]["coq_kernel"])


@pytest.mark.parametrize("name", all_right())
def test_accepts_right_schedules(kernel: Path, name: str) -> None:
    text = json.dumps(all_right()[name]).encode()
    assert opinion(text, check(decode(text)), 60).verdict is Verdict.PROVED


def test_refutation_is_shown(kernel: Path) -> None:
    doc = optimal_four()
    doc["phases"][1]["rounds"][0].pop()
    text = json.dumps(doc).encode()
    result = opinion(text, check(decode(text)), 60)
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
    doc = {k: v for k, v in ring_document(3).items() if f'"{k}":' not in MALFORMED[fault]}
    text = json.dumps(doc)[:-1] + ", " + MALFORMED[fault] + "}"
    (answer,) = judge([text.encode()])
    assert "malformed" in answer
    assert not answer["accepted"]


@pytest.mark.parametrize("index", [-1, 3, 2**62, 2**63, 10**30])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_index_out_of_range(kernel: Path, field: int, index: int) -> None:
    doc = ring_document(3)
    doc["phases"][0]["rounds"][0][0][field] = index
    (answer,) = judge([json.dumps(doc).encode()])
    assert answer["properties"]["well_formed"] == "refuted"


def test_long_schedule(kernel: Path) -> None:
    """Lists far longer than the default stack."""
    doc = ring_document(2)
    doc["phases"].append({"name": "idle", "absent": [], "rounds": [[]] * 400_000})
    (answer,) = judge([json.dumps(doc).encode()])
    assert answer["accepted"]
    assert answer["optimal"] is False


def _rounds(schedule: Schedule) -> list[list[list[Any]]]:
    return [
        [[t.src, t.dst, t.chunk, t.op] for t in moves]
        for phase in schedule.phases
        for moves in phase.rounds
    ]


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 13])
def test_theorems_are_about_what_synth_makes(kernel: Path, n: int) -> None:
    """The closed forms that are proved for all n print the rounds that synth writes."""

    def proved(name: str) -> Any:
        done = subprocess.run(
            [kernel, "--closed-form", name, str(n)], capture_output=True, check=True
        )
        return json.loads(done.stdout)

    assert proved("ring") == _rounds(ring(n))
    assert proved("one_by_one") == _rounds(transpose(n))
    # the order within a round has no influence on the sum (Structure.v)
    assert list(map(sorted, proved("direct"))) == list(map(sorted, _rounds(direct(n))))


# -- a program that lies, fails or is not there; none of these needs Coq -------------------------


def _fake(tmp_path: Path, script: str) -> str:
    path = tmp_path / "kernel"
    path.write_text(f"#!/bin/sh\ncat >/dev/null\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
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
    text = json.dumps(optimal_four()).encode()
    result = opinion(text, check(decode(text)), timeout_s=1)
    assert result.verdict is Verdict.UNKNOWN
    assert reason in result.note


def test_missing_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(ArgumentError, match=VARIABLE):
        list(judge([b"{}"]))
