"""Somebody's own DDP script, with two lines added: modules of his have the names of our parts."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.runtime.spawning import execute

FOLDER = Path(__file__).parents[1] / "own_script"
BIN = Path(sys.executable).parent


def train_and_look(bin_folder: Path, folder: Path) -> tuple[str, str]:
    """Train in ``folder`` by the programs of an environment; the page's headline, and the page."""
    shutil.copytree(FOLDER, folder)
    ours = {"LATECOMER_WATCH": "watched", "PYTHONPATH": ""}
    torchrun = str(bin_folder / "torchrun")
    two_ranks = ("--standalone", "--nproc-per-node", "2")
    trained = execute(torchrun, *two_ranks, "train.py", cwd=folder, **ours)
    assert trained.returncode == 0, trained.stderr

    command = str(bin_folder / "latecomer")
    looked = execute(command, "watch", "--html", "run.html", "watched", cwd=folder, **ours)
    assert looked.returncode == 0, looked.stderr
    return looked.stdout, (folder / "run.html").read_text()


def test_two_lines_are_added_by_whom_it_helps():
    lines = (FOLDER / "train.py").read_text().splitlines()
    assert sum(line.endswith("# added") for line in lines) == 2
    own = {path.stem for path in FOLDER.glob("*.py")}
    assert own == {"train", "runtime", "synth", "verify"}


@pytest.mark.slow_first
def test_it_trains_and_a_page_says_who_is_late_and_what_was_saved(tmp_path):
    headline, page = train_and_look(BIN, tmp_path / "job")

    assert "rank 1 wasted most" in headline
    assert re.search(r"; (saved|lost) [\d.]+ s$", headline.strip())  # two ranks: on time, if at all
    assert headline.partition(": ")[2].strip() in page
