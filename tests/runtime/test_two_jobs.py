"""Two jobs that start at the same moment, on one host and in one folder, do not meet."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
TORCHRUN = str(Path(PYTHON).parent / "torchrun")
AUTO = (TORCHRUN, "--standalone", "--nproc-per-node", "3", str(ROOT / "examples/train_auto.py"))
OPTIREDUCE = (PYTHON, "-m", "runtime", "selftest", "--algorithm", "optireduce", "--ranks", "2")
SCHEDULES = (PYTHON, "-m", "runtime", "selftest", "--ranks", "2", "--schedule", "ring.json")


@pytest.mark.parametrize(
    ("commands", "says"),
    [
        ((AUTO, AUTO), (r"^loss \S+\n(.*\n)*\s+\d+ operations ran", r"^rank +wait +last")),
        ((OPTIREDUCE, OPTIREDUCE), (r"datagrams lost(.*\n)*selftest of optireduce: passed",)),
        ((SCHEDULES, SCHEDULES), (r"selftest on cpu: passed",)),
    ],
)
def test_two_jobs_at_the_same_moment(commands, says, tmp_path):
    synth = Path(PYTHON).parent / "synth"
    subprocess.run([synth, "ring", "--n", "2", "-o", "ring.json"], cwd=tmp_path, check=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    before = set(tmp_path.iterdir())
    jobs = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    try:
        told = [job.communicate(timeout=500) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
    for job, (said, complained) in zip(jobs, told, strict=True):
        assert job.returncode == 0, said + complained
        assert all(re.search(line, said, re.MULTILINE) for line in says), said
    if commands[0] is AUTO:
        losses = {re.search(r"^loss (\S+)", said, re.MULTILINE).group(1) for said, _ in told}
        assert len(losses) == 1  # the same job twice
    assert set(tmp_path.iterdir()) == before  # nothing that they could have shared is left
