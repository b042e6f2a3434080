"""``verify`` on pipeline files: exit codes, JSON, text, next to files of the other families."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.verify.builders import optimal_four
from tests.verify.pipeline.documents import all_right, document, zero_bubble
from verify import cli

FIELDS = [
    "file", "verdict", "kind", "ranks", "stages", "microbatches", "form", "makespan",
    "makespan_in_order", "lower_bound", "gap", "optimal", "peak_memory", "slack", "sensitivity",
    "critical_path", "properties", "notes", "counterexample",
]  # fmt: skip


def _run(*arguments: str) -> object:
    with patch.object(sys, "argv", ["verify", *arguments]), pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    right = document(zero_bubble(4, 12), 12, links=[{"between": [1, 2], "latency": 20}])
    wrong = {**right, "programs": [row[::-1] for row in right["programs"]]}
    texts = {
        "right.json": json.dumps(right),
        "wrong.json": json.dumps(wrong),
        "bad.json": json.dumps({**right, "stages": 0}),
        "claim.json": json.dumps({**right, "meta": {"optimal": True}}),
        "right.csv": "\n".join(",".join(row) for row in right["programs"]),
        "bad.csv": "0F0;0F1",
        "collective.json": json.dumps(optimal_four()),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts}


@pytest.mark.parametrize(
    ("name", "code"),
    {
        "right.json": 0,
        "right.csv": 0,
        "wrong.json": 1,
        "bad.json": 2,
        "bad.csv": 2,
        "claim.json": 3,
    }.items(),
)
def test_exit_code(files: dict[str, str], name: str, code: int, capsys) -> None:
    assert _run(files[name]) == code
    out, err = capsys.readouterr()
    assert (out == "") == (code == 2)
    assert (err != "") == (code == 2)


def test_families_side_by_side(files: dict[str, str], capsys) -> None:
    assert _run("--json", files["collective.json"], files["right.json"], files["right.csv"]) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert kinds == ["allreduce", "pipeline", "pipeline"]


def test_json(files: dict[str, str], capsys) -> None:
    assert _run("--json", files["right.json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == FIELDS
    assert set(answer["properties"].values()) == {"proved"}
    assert list(answer["slack"]) == ["0-1", "1-2", "2-3"]
    assert answer["peak_memory"] == [4, 3.5, 3, 2.5]
    assert answer["makespan"] >= answer["lower_bound"] > 0
    assert answer["critical_path"][-1]["end"] == answer["makespan"]
    corner = [answer["slack"]["1-2"], answer["makespan"]]
    assert answer["sensitivity"]["1-2"]["growth"][0] == corner
    assert _run("--json", files["wrong.json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == FIELDS
    assert answer["makespan"] is None
    assert answer["counterexample"]["property"] == "dependencies"


def test_text(files: dict[str, str], capsys) -> None:
    assert _run(files["right.json"]) == 0
    out = capsys.readouterr().out
    for part in (
        "pipeline of 4 stages, 12 microbatches, compute only, delay on 1-2: 20",
        "makespan ",
        "lower bound ",
        "peak memory per rank: 4, 3.5, 3, 2.5 activations",
        "delay that each link takes at no cost: 0-1: ",
        "critical path: 0F0 1F0 ~20~ 2F0",
    ):
        assert part in out


@pytest.mark.parametrize("option", [["--z3"], ["--smt2", "q.smt2"]])
def test_z3_is_for_collectives(files: dict[str, str], option: list[str], capsys) -> None:
    assert _run(files["right.json"], *option) == 2
    assert "not for pipeline schedules" in capsys.readouterr().err


def test_every_right_document(tmp_path: Path, capsys) -> None:
    for name, doc in all_right().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(doc))
    assert _run("-q", *map(str, tmp_path.iterdir())) == 0
    assert capsys.readouterr() == ("", "")
