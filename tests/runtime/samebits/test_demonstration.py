"""``examples/same_bits.py`` shows one hash, and says so where there is not one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.spawning import execute

EXAMPLES = Path(__file__).parents[3] / "examples"
COMMAND = [sys.executable, str(EXAMPLES / "same_bits.py"), "--quick"]
AT_MOST_S = 200.0


@pytest.mark.slow_first
def test_there_is_one_hash_and_several_without_the_option(tmp_path):
    file = tmp_path / "results.json"
    picture = tmp_path / "losses.svg"
    result = execute(*COMMAND, "--json", file, "--picture", picture)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(file.read_text())
    assert report["faults"] == []
    assert "<svg" in picture.read_text()[:1000]

    by_kind = {}
    for each in report["runs"]:
        kind = each["run"]["bits"], each["run"]["has_spike"]
        by_kind.setdefault(kind, set()).update(each["digests"])
    assert len(by_kind["same", False]) == 1
    assert len(by_kind["same", True]) == 1
    assert len(by_kind["any", False]) > 2
    (the_hash,) = by_kind["same", False]
    assert f"1 hash, {the_hash}" in result.stdout
    assert report["compared"]['bits="same"']["parameters_off"] < 1e-6


def test_ctrl_c_ends_all_processes():
    process = subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout.read(1)  # of the table's head
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(AT_MOST_S) == 130
    until_s = time.monotonic() + AT_MOST_S
    while _is_there(process.pid):
        assert time.monotonic() < until_s
        time.sleep(0.1)


def _is_there(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def job(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import same_bits_job

    return same_bits_job


@pytest.fixture
def results(job):
    """Results as they should be, on four ranks and on five."""
    import same_bits_results

    def result(run, digest, **more):
        return same_bits_results.Result(run, [digest], **more)

    good = []
    for ranks in (4, 5):
        same = job.Run(ranks, "native", "nobody", "same", 20)
        without = replace(same, bits="any", steps=5)
        spiked = replace(same, has_spike=True)
        good += [
            result(same, "one"),
            result(replace(same, is_stopped=True), "one", longest_step_s=1.01),
            result(spiked, "other", repeated=2, repeated_in=[0, spiked.spiked_step]),
            result(without, f"a{ranks}"),
            result(replace(without, pattern="random"), f"b{ranks}"),
            result(replace(without, steps=20), f"c{ranks}"),
        ]
    return good


CHANGES = {
    "ranks end with different": (0, {"digests": ["one", "two"]}),
    "gave 2 hashes: one, two": (6, {"digests": ["two"]}),
    "4 ranks gave one hash: this shows nothing": (3, {"digests": ["b4"]}),
    "there must be one other hash: other, third": (8, {"digests": ["third"]}),
    "made no sum overflow": (2, {"repeated_in": [0]}),
    "no rank stood still": (1, {"longest_step_s": 0.3}),
}


def test_results_that_are_right_have_no_faults(results):
    from same_bits_results import faults

    assert faults(results) == []


@pytest.mark.parametrize("fault", CHANGES)
def test_what_is_not_as_it_should_be_is_said(fault, results):
    from same_bits_results import faults

    index, change = CHANGES[fault]
    results[index] = replace(results[index], **change)
    found = faults(results)
    assert any(fault in text for text in found), found


def test_a_spike_that_changes_nothing_is_no_spike(results):
    from same_bits_results import faults

    for index in (2, 8):
        results[index] = replace(results[index], digests=["one"])
    assert any("one other hash" in text for text in faults(results))
