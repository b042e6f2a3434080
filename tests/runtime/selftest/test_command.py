"""``python -m runtime selftest`` as a user runs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runtime.__main__ import app, run
from tests.runtime import schedules
from verify import write


def _runtime(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "runtime", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_selftest_of_a_schedule_file(tmp_path):
    write(schedules.straggler(3), tmp_path / "s.json")
    result = _runtime("selftest", "--ranks", "3", "--schedule", str(tmp_path / "s.json"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("119 cases") == 2 * 3  # two ways in, three late ranks
    assert result.stdout.endswith("selftest on cpu: passed\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "1"), "must be at least 2"),
        (("--schedule", "nowhere.json"), "nowhere.json"),
        (("--device", "tpu"), "tpu"),
    ],
)
def test_bad_arguments_exit_with_2(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["runtime", "selftest", *arguments])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_schedule_for_other_ranks_is_refused(tmp_path):
    write(schedules.ring(3), tmp_path / "s.json")
    result = _runtime("selftest", "--ranks", "4", "--schedule", str(tmp_path / "s.json"))
    assert result.returncode == 2
    assert "synth generate --n 4" in result.stderr
    assert "Traceback" not in result.stderr
