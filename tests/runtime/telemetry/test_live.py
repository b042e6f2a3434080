"""Files of a running job: what they say, how large they get, and what a disk's faults do to it."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latecomer import runtime
from latecomer.runtime.telemetry import writer
from latecomer.runtime.telemetry.follower import Follower
from latecomer.runtime.telemetry.live import Periodic
from latecomer.runtime.telemetry.origin import job_name, local_rank, new_watch
from latecomer.runtime.telemetry.writer import RankFiles
from latecomer.verify.errors import ArgumentError, FormatError
from tests.runtime.telemetry.ranks import MadeUpRank, lines_of, watch_two_ranks

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0  # against hangs


@pytest.fixture
def rank():
    made = MadeUpRank()
    yield made
    made.source.close()


def _until(is_so):
    """Wait for what another thread or process is about to do."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_s
        time.sleep(0.02)


def test_what_happens_is_written_while_it_happens(rank, tmp_path, monkeypatch):
    monkeypatch.setenv("LATECOMER_JOB", "night run")
    directory = tmp_path / "made" / "on the way"
    rank.reduce()  # before the block
    with runtime.watch(directory=directory) as watched:
        rank.reduce()
        rank.reduce(way="one late", late=(3,))
        _until(lambda: [line for line in lines_of(directory, 0) if "operation" in line])
        assert not lines_of(directory, 0)[-1].get("state", {}).get("over")

    origin, *others = lines_of(directory, 0)
    assert origin["origin"]["job"] == "night run"
    assert origin["origin"]["host"]
    assert (origin["origin"]["rank"], origin["origin"]["ranks"]) == (0, 1)
    operations = [line["operation"] for line in others if "operation" in line]
    assert [each["operation"] for each in operations] == [0, 1]
    assert operations[1]["late"] == [3]
    state = others[-1]["state"]
    assert (state["over"], state["entered"], state["done"], state["error"]) == (True, 2, 2, "")

    follower = Follower(directory)
    follower.read()
    (told,) = follower.last_ranks(100)
    assert told.records == watched.ranks[0].records
    assert told.origin == watched.ranks[0].origin
    assert follower.totals.ways == {"native": 1, "one late, late: 3": 1}


def test_the_environment_says_where_unless_the_program_does(rank, tmp_path, monkeypatch):
    monkeypatch.setenv("LATECOMER_WATCH", str(tmp_path / "environment"))
    for directory in (None, tmp_path / "program"):
        with runtime.watch(rank, directory=directory):
            rank.reduce()
        assert lines_of(directory or tmp_path / "environment", 0)[-1]["state"]["done"] == 1
    assert len(list((tmp_path / "environment").iterdir())) == 1


def test_a_watch_can_be_entered_again(rank, tmp_path):
    watched = runtime.watch(directory=tmp_path, prometheus_port=0, on_step=print)
    names = []
    for operations in (1, 2):
        with watched:
            for _ in range(operations):
                rank.reduce()
        follower = Follower(tmp_path)
        follower.read()
        names.append(follower.watch)
        assert follower.totals.operations == operations == len(watched.ranks[0].records)
    assert names[0] < names[1]


def test_an_exception_that_leaves_the_block_is_told(rank, tmp_path):
    with pytest.raises(KeyError), runtime.watch(directory=tmp_path):
        raise KeyError("loss is NaN")
    state = lines_of(tmp_path, 0)[-1]["state"]
    assert state["over"]
    assert state["error"] == "KeyError: 'loss is NaN'"


@pytest.mark.parametrize(
    ("argument", "value"),
    [("file_bytes", 100), ("files", 1), ("prometheus_port", 70_000), ("overdue_s", 1.0)],
)
def test_arguments_out_of_their_range_are_refused(argument, value):
    with pytest.raises(ArgumentError, match=f"{argument} = {value}: must be"):
        runtime.watch(**{argument: value})
    runtime.watch(file_bytes=4096, files=2, prometheus_port=65_535)


def test_files_are_bounded_and_each_says_whose_it_is(tmp_path):
    head = b'{"origin": 0}\n'
    for most in (50, 3):
        files = RankFiles(tmp_path, 3, head, file_bytes=100, files=most)
        for number in range(0, 50, 10):  # in some files there is room for a part of them
            files.write([b'{"number": %d}\n' % each for each in range(number, number + 10)])
        files.close()
        sizes = [path.stat().st_size for path in tmp_path.iterdir()]
        assert max(sizes) <= 100
        assert len(sizes) == min(most, 10)
    (tmp_path / "rank33-000000.jsonl").write_text("of another rank\n")
    left = sorted(tmp_path.glob("rank3-*.jsonl"))
    assert len(left) == 3
    for path in left:
        assert path.read_bytes().startswith(head)
    numbers = [line["number"] for line in lines_of(tmp_path, 3) if "number" in line]
    assert numbers == [*range(50 - len(numbers), 50)]
    assert len(numbers) > 5


class _Disk(io.FileIO):
    """A file on a disk that takes only so many bytes more, in pieces."""

    room = 0

    def write(self, data):
        if _Disk.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = super().write(data[: min(_Disk.room, 50)])
        _Disk.room -= count
        return count


def test_a_full_disk_tears_a_line_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(writer.io, "FileIO", _Disk)
    head = b'{"origin": 0}\n'
    files = RankFiles(tmp_path, 0, head, file_bytes=1000, files=3)
    _Disk.room = 0
    for line in (b'{"number": 0}\n', b"longer than a file" * 100, b"longer than a file" * 100):
        with pytest.raises(OSError, match="No space left"):
            files.write([line])
    assert len(list(tmp_path.iterdir())) == 1  # no empty file for each attempt
    _Disk.room = len(head) + 20
    with pytest.raises(OSError, match="No space left"):
        files.write([b'{"number": 1}\n', b'{"number": 2}\n'])
    _Disk.room = 10_000
    files.write([b'{"number": 3}\n'])
    files.close()
    (path,) = tmp_path.iterdir()
    *whole, torn, last = [line for line in path.read_bytes().split(b"\n") if line]
    assert b"\n".join(whole) == b'{"origin": 0}\n{"number": 1}'
    assert b'{"number": 2}'.startswith(torn)
    assert last == b'{"number": 3}'


def test_training_goes_on_with_a_full_disk_which_is_told_once(rank, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writer.io, "FileIO", _Disk)
    _Disk.room = 0
    with runtime.watch(directory=tmp_path) as watched:
        for _ in range(3):
            rank.reduce()
            time.sleep(0.6)  # so that there are several looks
    assert len(watched.ranks[0].records) == 3
    told = [record for record in caplog.records if "No space left on device" in record.message]
    assert len(told) == 1
    assert str(tmp_path) in told[0].message
    assert "training goes on" in told[0].message


def test_a_directory_that_is_none_is_told_once(rank, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with runtime.watch(directory=tmp_path / "file") as watched:
        rank.reduce()
    assert len(watched.ranks[0].records) == 1
    assert caplog.text.count("FileExistsError") == 1


def test_the_other_looks_go_on_after_one_that_fails(caplog):
    looks = []

    def fail(is_last):
        raise ValueError("always")

    periodic = Periodic("latecomer-test", {"first": fail, "second": looks.append})
    periodic.start()
    _until(lambda: len(looks) >= 2)
    periodic.close()
    assert looks[-1] is True
    assert looks.count(True) == 1
    assert caplog.text.count("first: ValueError: always") == 1


KILLED = """
import sys, time
from latecomer import runtime
from tests.runtime.telemetry.ranks import MadeUpRank

rank = MadeUpRank()
with runtime.watch(directory=sys.argv[1]):
    while True:
        rank.reduce()
        time.sleep(0.001)
"""


def test_a_killed_job_leaves_its_story(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT) as job:
        try:
            _until(lambda: len(lines_of_running(tmp_path)) > 100 or job.poll() is not None)
            told = len(lines_of_running(tmp_path))
            assert job.poll() is None
        finally:
            job.send_signal(signal.SIGKILL)
    follower = Follower(tmp_path)
    follower.read()
    (rank,) = follower.last_ranks(1_000_000)
    assert len(rank.records) >= told - 10  # others: the origin, and states
    assert [record.operation for record in rank.records] == [*range(len(rank.records))]
    assert follower.unreadable == 0
    state = follower.stories[0].state
    assert not state.over
    assert 0 <= state.done <= len(rank.records)


def lines_of_running(directory):
    """Whole lines, of a file that is written."""
    path = directory / "rank0-000000.jsonl"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def test_ranks_are_put_together_and_their_waits_added_up(tmp_path):
    watch_two_ranks(tmp_path)
    follower = Follower(tmp_path)
    follower.read()
    origins = [story.origin for story in follower.stories.values()]
    assert len({origin.watch for origin in origins}) == 1
    totals = follower.totals
    assert totals.operations == 4
    assert totals.times_last == {1: 4}
    assert totals.waited_s[0][1] == pytest.approx(8.0)
    assert 1 not in totals.waited_s


def test_a_follower_reads_each_line_once_and_waits_for_the_rest_of_the_last(tmp_path):
    watch_two_ranks(tmp_path)
    path = tmp_path / "rank0-000000.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    follower = Follower(tmp_path)
    follower.read()
    assert follower.totals.operations == 1
    path.write_bytes(whole)
    for _ in range(2):
        follower.read()
        assert follower.totals.operations == 4
        assert [len(rank.records) for rank in follower.last_ranks(100)] == [4, 4]
    assert [len(rank.records) for rank in follower.last_ranks(3)] == [3, 3]


def test_what_is_missing_or_broken_is_left_out(tmp_path):
    watch_two_ranks(tmp_path)
    (tmp_path / "rank1-000000.jsonl").unlink()
    (tmp_path / "rank7-000000.jsonl").write_text("")  # has not begun
    (tmp_path / "notes.txt").write_text("not ours")
    with (tmp_path / "rank0-000000.jsonl").open("ab") as stream:
        stream.write(b'{"operation": {"opera\n\xff\n[1]\n{"of a later version": 1}\n')
    follower = Follower(tmp_path)
    follower.read()
    assert follower.world_size == 2
    assert [rank.rank for rank in follower.last_ranks(100)] == [0]
    assert follower.unreadable == 3
    assert follower.totals.operations == 4


def test_ranks_of_the_same_number_write_to_files_of_their_own(tmp_path, monkeypatch):
    """Two groups may have one each, and begin at the same moment."""
    monkeypatch.setattr(writer, "files_in", lambda directory: [])
    both = [RankFiles(tmp_path, 0, b"%d\n" % group, 4096, 8) for group in range(2)]
    for files in both:
        files.write([b"x\n"])
        files.close()
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"0\nx\n", b"1\nx\n"]


def test_files_that_follow_each_other_are_one_story_without_what_was_removed(tmp_path):
    rank = MadeUpRank()
    with runtime.watch(rank, directory=tmp_path, file_bytes=4096, files=2):
        for _ in range(80):
            rank.reduce()
    rank.source.close()
    assert len(list(tmp_path.iterdir())) == 2
    follower = Follower(tmp_path)
    follower.read()
    operations = [record.operation for record in follower.last_ranks(1000)[0].records]
    assert operations == [*range(operations[0], 80)]
    assert operations[0] > 0


def test_the_newest_watch_is_shown_also_when_it_begins_later(tmp_path):
    watch_two_ranks(tmp_path, operations=3)
    follower = Follower(tmp_path)
    follower.read()
    first = follower.watch
    watch_two_ranks(tmp_path, operations=2)
    follower.read()
    assert follower.watch > first
    assert follower.totals.operations == 2
    assert [len(rank.records) for rank in follower.last_ranks(100)] == [2, 2]


def test_a_directory_that_is_emptied_for_the_next_job_is_read_anew(tmp_path):
    watch_two_ranks(tmp_path, operations=9)
    follower = Follower(tmp_path)
    follower.read()
    for path in tmp_path.iterdir():
        path.unlink()
    watch_two_ranks(tmp_path, operations=2)
    for _ in range(2):
        follower.read()
    assert follower.totals.operations == 2
    assert [len(rank.records) for rank in follower.last_ranks(100)] == [2, 2]


def test_a_job_that_begins_is_waited_for_until_all_ranks_have_files(tmp_path):
    watch_two_ranks(tmp_path, ranks=(0,))
    follower = Follower(tmp_path, patience=2)
    for operations in (0, 0, 4):
        follower.read()
        assert follower.totals.operations == operations


def test_a_directory_without_a_watch_is_refused(tmp_path):
    with pytest.raises(FormatError, match="has no files of a watch"):
        Follower(tmp_path).read()
    with pytest.raises(FormatError, match="No such file or directory"):
        Follower(tmp_path / "nowhere").read()


def test_what_names_a_job_and_numbers_a_rank_on_its_host():
    assert job_name({"SLURM_JOB_ID": "17", "TORCHELASTIC_RUN_ID": "none"}) == "17"
    assert job_name({"SLURM_JOB_ID": "17", "TORCHELASTIC_RUN_ID": "exp"}) == "exp"
    assert job_name({"LATECOMER_JOB": "mine", "TORCHELASTIC_RUN_ID": "exp"}) == "mine"
    assert job_name({}) == ""
    assert local_rank({"LOCAL_RANK": "2"}, 10) == 2
    assert local_rank({"SLURM_LOCALID": "1"}, 10) == 1
    assert local_rank({"LOCAL_RANK": "many"}, 10) == 10
    assert new_watch() < new_watch()


def test_lines_are_json_that_has_no_nan(tmp_path):
    watch_two_ranks(tmp_path)
    for path in tmp_path.iterdir():
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)
    assert os.listdir(tmp_path)
