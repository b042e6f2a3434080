"""Dumps of NCCL's recorder, of jobs into which NVIDIA has injected faults: see examples/dumps."""

from __future__ import annotations

import ast
import pickle
import random
import sys
import tarfile
from pathlib import Path

import pytest

from latecomer.runtime.explain.findings import findings
from latecomer.runtime.explain.sources import read_sources
from tests.runtime.spawning import execute

ROOT = Path(__file__).parents[3]
ARCHIVE = ROOT / "examples" / "dumps" / "nvidia.tar.gz"
TRUTH = {
    "gpu_error_1st": ("stuck", (12, 14)),
    "gpu_error_2nd": ("stuck", (9, 14)),
    "lock_gil_1st": ("absent", (9, 14)),
    "lock_gil_2nd": ("absent", (10, 15)),
}
RANKS = 16
ALL_GIVEN = list(range(RANKS))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvidia")
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    return folder


def dumps_of(folder, *, without=()):
    return [folder / f"_dump_{rank}" for rank in range(RANKS) if rank not in without]


@pytest.mark.parametrize("name", TRUTH)
def test_exactly_the_culprits_are_named(name, archive):
    (verdict,) = findings(read_sources(dumps_of(archive / name)))
    assert (verdict.kind, verdict.ranks) == TRUTH[name]
    assert verdict.waiting == RANKS - len(verdict.ranks)
    for rank in verdict.ranks:
        assert any(line.startswith(f"rank {rank} ") for line in verdict.witness)


@pytest.mark.parametrize("name", TRUTH)
def test_without_any_one_dump_no_innocent_is_named(name, archive):
    """It is the truth, or that one rank: what decides is in its dump."""
    kind, culprits = TRUTH[name]
    for rank in range(RANKS):
        first, *_ = findings(read_sources(dumps_of(archive / name, without=[rank])), RANKS)
        if first.kind == "nodump":
            assert first.ranks == (rank,)
        else:
            assert first.kind == kind
            assert set(first.ranks) <= set(culprits)


@pytest.mark.parametrize("name", TRUTH)
def test_without_the_culprits_dumps_theirs_are_asked_for(name, archive):
    _, culprits = TRUTH[name]
    (verdict,) = findings(read_sources(dumps_of(archive / name, without=culprits)), RANKS)
    assert (verdict.kind, verdict.ranks) == ("nodump", culprits)


@pytest.mark.parametrize("name", TRUTH)
def test_ranks_are_named_whatever_their_numbers_are(name, archive, tmp_path):
    """The same job with its ranks numbered anew. (Within a group the order of ranks is kept.)"""
    kind, culprits = TRUTH[name]
    shift = random.Random(name).randrange(1, 1000)
    for path in dumps_of(archive / name):
        dump = pickle.loads(path.read_bytes())
        for group in dump["pg_config"].values():
            group["ranks"] = str([rank + shift for rank in ast.literal_eval(group["ranks"])])
        rank = int(path.name.removeprefix("_dump_"))
        (tmp_path / f"_dump_{rank + shift}").write_bytes(pickle.dumps(dump, protocol=2))

    paths = sorted(tmp_path.iterdir())
    (verdict,) = findings(read_sources(paths))
    assert (verdict.kind, verdict.ranks) == (kind, tuple(rank + shift for rank in culprits))


def test_the_picture_of_the_docs_is_what_is_drawn_now(archive, tmp_path):
    arguments = ["explain", archive / "lock_gil_2nd", "--picture", "waits.svg", "--html", "w.html"]
    completed = execute(sys.executable, "-m", "latecomer", *arguments, cwd=tmp_path)
    assert completed.returncode == 1
    drawn = (tmp_path / "waits.svg").read_text()
    assert drawn.split("<svg", 1)[0] == ""
    assert "ranks 10, 15 never entered" in (tmp_path / "w.html").read_text()
    assert drawn == (ROOT / "docs/pictures/waits.svg").read_text()
    assert ">ranks 10, 15<" in drawn
