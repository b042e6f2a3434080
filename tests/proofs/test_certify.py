"""Certificates: Coq's kernel accepts those of right schedules and refuses doctored ones."""

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latecomer.verify import check, decode
from latecomer.verify.certify import certificate, require_target
from latecomer.verify.cli import app
from latecomer.verify.errors import ArgumentError
from tests.verify.builders import all_right, broken, optimal_four, straggler

TARGET = Path("proof.v")


def text_of(doc: dict[str, object]) -> str:
    data = json.dumps(doc).encode()
    schedule = decode(data)
    return certificate(schedule, check(schedule), hashlib.sha256(data).hexdigest(), TARGET)


def compiles(theories: Path, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / TARGET).write_text(text)
    return subprocess.run(
        ["coqc", "-Q", theories, "Latecomer", folder / TARGET],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_optimality_is_claimed_at_the_bound_only() -> None:
    assert "optimal the_schedule" in text_of(optimal_four())
    assert "optimal the_schedule" not in text_of(straggler(5))


def test_all_of_the_schedule_is_there() -> None:
    doc = optimal_four("matching")
    text = text_of(doc)
    assert "Schedule 4 3 [3] Matching [" in text
    rounds = [moves for phase in doc["phases"] for moves in phase["rounds"]]
    op = {"Add": "reduce", "Send": "copy"}
    in_certificate = re.findall(r"(Send|Add) (\d+) (\d+) (\d+)", text)
    listed = [
        [int(src), int(dst), int(chunk), op[verb]] for verb, src, dst, chunk in in_certificate
    ]
    assert listed == [move for moves in rounds for move in moves]


def test_wrong_schedule_is_refused() -> None:
    with pytest.raises(ArgumentError, match="refuted"):
        text_of(broken(optimal_four()))


@pytest.mark.parametrize("name", ["proof.txt", "two words.v", "8.v", "a-b.v", "é.v"])
def test_target_must_be_a_module_of_coq(name: str) -> None:
    with pytest.raises(ArgumentError, match="--certify"):
        require_target(Path(name))


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    target = tmp_path / "proof.v"
    path.write_text(json.dumps(optimal_four()))
    done = CliRunner().invoke(app, [str(path), "--certify", str(target)])
    assert done.exit_code == 0
    assert hashlib.sha256(path.read_bytes()).hexdigest() in target.read_text()


@pytest.mark.parametrize("name", ["optimal-4-matching", "direct-5-incast-4", "two-late-4"])
def test_kernel_accepts(theories: Path, tmp_path: Path, name: str) -> None:
    done = compiles(theories, tmp_path, text_of(all_right()[name]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Closed under the global context"


DOCTORED = {
    "another sender": ("Add 3 0 0", "Add 2 0 0"),
    "an overwriting": ("Add 3 0 0", "Send 3 0 0"),
    "another chunk": ("Add 3 0 0", "Add 3 0 1"),
    "a transfer less": ("Add 3 0 0; ", ""),
    "fewer chunks in the ports": ("Duplex", "(Incast 0)"),
    "nobody late": ("[3] Duplex", "[] Duplex"),
    "a longer completion called optimal": ("Phase [] [", "Phase [] [[]; "),
}


@pytest.mark.parametrize("change", DOCTORED)
def test_kernel_refuses(theories: Path, tmp_path: Path, change: str) -> None:
    before, after = DOCTORED[change]
    text = text_of(optimal_four())
    assert before in text
    done = compiles(theories, tmp_path, text.replace(before, after, 1))
    assert done.returncode != 0
    assert "Error" in done.stderr
