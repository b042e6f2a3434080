"""The example scripts that the README's commands do not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def _torchrun(folder, *arguments, **variables):
    tool = Path(sys.executable).parent / "torchrun"
    return subprocess.run(
        [tool, "--standalone", "--nproc-per-node", "3", *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.long
def test_hybrid_sharding_and_a_profile(tmp_path):
    done = _torchrun(tmp_path, "-m", "runtime", "profile")
    assert done.returncode == 0, done.stderr
    assert "written: profile.json (3 ranks)" in done.stdout
    variables = {"LATECOMER_MODE": "auto", "LATECOMER_PROFILE": "profile.json"}
    done = _torchrun(tmp_path, EXAMPLES / "train_hsdp.py", **variables)
    assert done.returncode == 0, done.stderr
    assert "'mode auto': 20" in done.stdout


@pytest.mark.long
def test_a_schedule_behind_the_hook(tmp_path):
    synth = Path(sys.executable).parent / "synth"
    subprocess.run([synth, "generate", "--n", "3", "-o", "schedule.json"], cwd=tmp_path, check=True)
    done = _torchrun(tmp_path, EXAMPLES / "train_hook.py")
    assert done.returncode == 0, done.stderr
    assert "all-reduces by schedule.json" in done.stdout
