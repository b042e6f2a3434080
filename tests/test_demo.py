"""The demo, shortened: it ends well and shows what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _demo(folder, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--out", str(folder), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.slow_first
def test_demo_with_four_ranks(tmp_path):
    arguments = ("--ranks", "4", "--late", "1", "--epochs", "2", "--delay-ms", "80")
    result = _demo(tmp_path, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    for text in [
        "PROVED",
        "epoch 2: loss",
        "test accuracy",
        "time per step",
        "rank 3 waited",
        "late: rank 1",
        "equal bit for bit on all ranks",
    ]:
        assert text in result.stdout
    picture = tmp_path / re.search(r"picture of one step's rounds: (\S+)", result.stdout).group(1)
    assert picture == tmp_path / "rounds.svg"
    assert "<svg" in picture.read_text()[:1000]
