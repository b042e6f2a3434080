"""``latecomer whatif``: what it reads, prints and refuses."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from latecomer.runtime.whatif.inputs import read_recorded
from latecomer.verify.errors import ArgumentError, FormatError
from tests.runtime.explain.jobs import Model, Step
from tests.runtime.spawning import execute
from tests.runtime.telemetry.ranks import watch_two_ranks

ROOT = Path(__file__).parents[3]


def whatif(*arguments):
    command = [sys.executable, "-m", "latecomer", "whatif", *map(str, arguments)]
    return execute(*command, cwd=ROOT)


def test_what_it_prints_is_what_it_gives_to_machines():
    text = whatif("examples/traces", "--bytes", "1MiB", "--bandwidth", "200Mbit/s")
    assert text.returncode == 0
    assert "rank 2 is in 100% of 8" in text.stdout
    assert "mend or replace rank 2" in text.stdout
    assert "clocks: one host's" in text.stdout

    asked = ("examples/traces", "--bytes", "1MiB", "--bandwidth", "200Mbit/s", "--json")
    said = json.loads(whatif(*asked).stdout)
    assert said["ranks"] == 4
    assert said["steps"] == said["operations"] == 8
    assert said["often_last"] == {"rank": 2, "share": 1.0}
    (row,) = said["all_reduce"]
    assert 0 < row["gain_now_s"] <= row["gain_limit_s"] <= row["ceiling_s"] < row["native_s"]
    assert 0.03 < said["wait_s"] < 0.05 * 1.2


def test_what_is_needed_is_asked_for(tmp_path):
    missing = whatif("examples/traces", "--bandwidth", "1Gbit/s")
    assert missing.returncode == 2
    assert "--bytes = None: is needed: the recording has no sizes" in missing.stderr
    several = whatif("examples/arrivals/AR.json", "examples/arrivals/SE.json")
    assert several.returncode == 2
    assert "must be one file of arrivals" in several.stderr
    absent = whatif(tmp_path / "absent.json")
    assert absent.returncode == 2
    assert "cannot be read" in absent.stderr
    assert "Traceback" not in absent.stderr


def test_a_watch_is_read(tmp_path):
    watch_two_ranks(tmp_path)
    recording = read_recorded([tmp_path]).collectives
    assert recording.unit == "operation"
    assert len(recording.operations) == 4
    for operation in recording.operations:
        assert operation.size == 2
        assert operation.nbytes > 0


def test_dumps_are_read(tmp_path):
    groups = {"world": (0, 1, 2), "pair": (0, 1)}
    both = [Step("world", numel=16), Step("pair", numel=32, dtype="BFloat16")]
    programs = {0: both * 3, 1: both * 3, 2: [Step("world", numel=16)] * 3}
    for rank, dump in Model(groups, programs).run().dumps().items():
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    recording = read_recorded([tmp_path]).collectives
    assert sorted((each.size, each.nbytes) for each in recording.operations) == [
        *[(2, 64)] * 3,
        *[(3, 64)] * 3,
    ]
    assert recording.clocks.startswith("as they were")
    with pytest.raises(ArgumentError, match="no collective that all ranks of a group"):
        read_recorded([tmp_path / "_dump_2"])


def test_what_is_nothing_of_these_is_refused(tmp_path):
    (tmp_path / "notes").write_text("of a run\n")
    with pytest.raises((ArgumentError, FormatError), match="is no file of arrivals"):
        read_recorded([tmp_path])
