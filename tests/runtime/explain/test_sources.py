"""Files that are given to ``explain``: which are taken, for what, and as whose."""

from __future__ import annotations

import pickle

import pytest

from latecomer.runtime.explain.findings import findings
from latecomer.runtime.explain.sources import rank_in, read_sources
from latecomer.verify.errors import ArgumentError, FormatError
from tests.runtime.explain.jobs import Model, Step
from tests.runtime.explain.ras_jobs import RasJob

RANKS = 4


def dumps(late=2):
    """By rank, bytes of the dumps of a job in which one rank does not come to an all-reduce."""
    steps = [Step("world", "all_reduce", 8)] * 3
    programs = {rank: list(steps) for rank in range(RANKS)}
    programs[late] = [*steps[:2], Step("world", "sleep", 0)]
    model = Model({"world": tuple(range(RANKS))}, programs)
    model.run()
    return {rank: pickle.dumps(dump, protocol=2) for rank, dump in model.dumps().items()}


def write(folder, names):
    for name, data in names.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("_dump_3", 3),
        ("rank_7.json", 7),
        ("job4-rank12-host3.pkl", 12),
        ("trace.5.pickle", 5),
        ("Rank0", 0),
        ("train.log", None),
    ],
)
def test_ranks_are_found_in_names(name, rank, tmp_path):
    assert rank_in(tmp_path / name) == rank


def test_a_directory_may_hold_other_files(tmp_path):
    named = {f"_dump_{rank}": data for rank, data in dumps().items()}
    write(tmp_path, named | {"train.log": b"step 3\n", "notes.json": b"{}"})
    (tmp_path / "checkpoints_1").mkdir()
    sources = read_sources([tmp_path])
    assert set(sources.records) == set(range(RANKS))
    assert sources.notices == [f"{tmp_path}: not read: notes.json, train.log"]
    assert findings(sources)[0].ranks == (2,)


def test_names_without_ranks_are_numbered(tmp_path):
    write(tmp_path, {"abcd"[rank]: data for rank, data in dumps().items()})
    sources = read_sources([tmp_path])
    (notice,) = sources.notices
    assert notice == "no name has a rank's number: they are numbered in the order of names"
    assert findings(sources)[0].ranks == (2,)


def test_files_have_to_be_told_apart(tmp_path):
    data = dumps()[0]
    write(tmp_path, dict.fromkeys(("_dump_0", "rank_0.json", "dump", "_dump_3"), data))
    with pytest.raises(FormatError, match="has no rank's number in its name, as others have"):
        read_sources([tmp_path / "dump", tmp_path / "_dump_0"])
    with pytest.raises(FormatError, match="is a second dump of rank 0"):
        read_sources([tmp_path / "_dump_0", tmp_path / "rank_0.json"])
    with pytest.raises(ArgumentError, match="there is a dump of rank 3"):
        findings(read_sources([tmp_path / "_dump_3"]), world_size=3)
    with pytest.raises(ArgumentError, match="must be what the ranks of a job have left"):
        read_sources([])
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_sources([tmp_path / "_dump_5"])


def test_a_directory_in_which_nothing_is_known_is_refused(tmp_path):
    write(tmp_path, {"train.log": b"step 3\n"})
    with pytest.raises(ArgumentError, match="nor one that is known"):
        read_sources([tmp_path])


def test_many_files_are_read_by_processes_alike(tmp_path):
    data = dumps()
    write(tmp_path, {f"_dump_{rank}": data[rank % RANKS] for rank in range(40)})
    alone, together = read_sources([tmp_path]), read_sources([tmp_path], processes=2)
    assert len(together.records) == 40
    for rank, record in together.records.items():
        assert vars(record) == vars(alone.records[rank])


def test_a_report_of_ras_tells_what_becomes_of_a_rank_without_a_dump(tmp_path):
    """Its process is gone, and so has left no dump."""
    culprit = 2
    write(tmp_path, {f"_dump_{rank}": dump for rank, dump in dumps(culprit).items()})
    (tmp_path / f"_dump_{culprit}").unlink()
    (undecided,) = findings(read_sources([tmp_path]), RANKS)
    assert (undecided.kind, undecided.ranks) == ("nodump", (culprit,))

    world = tuple(range(RANKS))
    program = [("world", "AllReduce")] * 3
    programs = {rank: program[: 2 if rank == culprit else 3] for rank in world}
    report = RasJob({"world": world}, programs, lost={culprit: "dead"}).run().as_json()
    write(tmp_path, {"ras.json": report})
    (decided,) = findings(read_sources([tmp_path]), RANKS)
    assert (decided.kind, decided.ranks) == ("absent", (culprit,))


@pytest.mark.parametrize("form", ["JSON", "text"])
def test_a_report_that_is_given_twice_is_one_moment(form, tmp_path):
    """Else a job of which there is one report would be one in which nothing moves."""
    world = tuple(range(RANKS))
    job = RasJob({"world": world}, dict.fromkeys(world, [("world", "AllReduce")] * 3)).run()
    report = job.as_json() if form == "JSON" else job.as_text()
    write(tmp_path, {"ras_1": report, "ras_2": report})
    once = findings(read_sources([tmp_path / "ras_1"]))
    assert [verdict.kind for verdict in once] == ["ok"]
    for again in ("ras_1", "ras_2"):
        sources = read_sources([tmp_path / "ras_1", tmp_path / again])
        assert len(sources.reports) == 1
        assert findings(sources) == once
        assert sources.notices == [
            f"{tmp_path / again}: says the same as a report before it: one moment, not two"
        ]


def test_the_same_a_minute_later_is_another_moment(tmp_path):
    world = tuple(range(RANKS))
    job = RasJob({"world": world}, dict.fromkeys(world, [("world", "AllReduce")] * 3)).run()
    for number in (1, 2):
        taken = f"2026-01-01 00:0{number}:00"
        write(tmp_path, {f"ras_{number}": job.as_json(taken=taken)})
    sources = read_sources([tmp_path])
    assert len(sources.reports) == 2
    assert not sources.notices
    assert [verdict.kind for verdict in findings(sources)] == ["hung"]
