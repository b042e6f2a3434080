"""PyTorch's own tests of torch.distributed pass on the backend where they pass on Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.frameworks.jobs import AUTO, GLOO, SCHEDULE
from tests.frameworks.pytorch_suite import RANKS

ROOT = Path(__file__).parents[2]
KNOWN = tomllib.loads(Path(__file__).with_name("pytorch_differences.toml").read_text())
LEAST_PASSING = 90  # of 280; most of the others need GPUs
UNSTABLE = {"test_new_subgroups_with_group_param"}
"""Tests that Gloo fails now and then, and that have to pass here: who destroys a group at once ends
the connecting of ranks that are not as far, since Gloo's groups don't wait for each other."""


def _passed(outcomes: dict[str, str]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome == "passed"}


def _differing(gloo: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """What came out of the tests that pass in one of both only."""
    return {name: ours.get(name, "missing") for name in _passed(gloo) ^ _passed(ours)}


@pytest.fixture(scope="module")
def outcomes(schedules, tmp_path_factory) -> dict[str, dict[str, str]]:
    """By way, what came out of each test. The three runs share the processors."""
    folder = tmp_path_factory.mktemp("pytorch")
    variables_of = {
        GLOO: {},
        AUTO: {"LATECOMER_MODE": "auto"},
        SCHEDULE: {"LATECOMER_SCHEDULE": schedules[RANKS]},
    }
    running = {way: _start(way, variables, folder) for way, variables in variables_of.items()}
    try:
        for way, process in running.items():
            log = folder / f"{way}.log"
            assert process.wait(timeout=480) == 0, log.read_text()[-5000:]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return {way: json.loads((folder / f"{way}.json").read_text()) for way in running}


def _start(way: str, variables: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start the suite in one way; it writes WAY.json, and prints to WAY.log, in ``folder``."""
    temporary = folder / way
    temporary.mkdir()
    backend = "gloo" if way == GLOO else "latecomer"
    command = [sys.executable, "-W", "ignore", "-m", "tests.frameworks.pytorch_suite"]
    command += [backend, str(folder / f"{way}.json")]
    with (folder / f"{way}.log").open("w") as log:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | variables | {"TMPDIR": str(temporary)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [AUTO, SCHEDULE])
def test_what_passes_on_gloo_passes_here(outcomes, way):
    assert len(_passed(outcomes[GLOO])) >= LEAST_PASSING
    failed = {name for name, outcome in outcomes[GLOO].items() if outcome.startswith("failed")}
    assert failed <= UNSTABLE

    expected = outcomes[GLOO] | dict.fromkeys(UNSTABLE, "passed")
    differing = _differing(expected, outcomes[way])
    unknown = {name: outcome for name, outcome in differing.items() if name not in KNOWN}
    assert not unknown, "\n".join(f"{name}\n{outcome}" for name, outcome in unknown.items())
    assert set(differing) == set(KNOWN), "these pass now: take them off the list"


def test_differences_are_found():
    gloo = {"a": "passed", "b": "passed", "c": "skipped: no GPU", "d": "passed"}
    ours = {"a": "passed", "b": "failed: x", "c": "passed"}
    assert _differing(gloo, gloo) == {}
    assert _differing(gloo, ours) == {"b": "failed: x", "c": "passed", "d": "missing"}
