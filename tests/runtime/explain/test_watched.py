"""``explain`` on the directory of a watch: who holds up the job, or is slow in it."""

from __future__ import annotations

import os
import time

import pytest

from latecomer.runtime.explain.findings import findings
from latecomer.runtime.explain.sources import read_sources
from latecomer.runtime.telemetry.files import DUMPS, FileName, Line, State, encode
from latecomer.runtime.telemetry.origin import Origin
from latecomer.runtime.telemetry.records import Collective, Members

WORLD = Members("0", (0, 1, 2, 3), "default_pg", "gloo")
PAIR = Members("1", (0, 1), "undefined", "gloo")
NCCL = Members("0", (0, 1, 2, 3), "default_pg", "cpu:gloo,cuda:nccl")
NOW_S = 1000.0  # by the clock of the watch


def collective(number, arrived_s, group="0", kind="all_reduce", **more):
    """Of four elements."""
    signature = more.pop("signature", (kind, "float32", 4, 0))
    return Collective(
        group=group,
        number=number,
        kind=kind,
        arrived_s=arrived_s,
        uncertainty_s=0.0001,
        bytes=16,
        signature=signature,
        **more,
    )


def write(directory, rank, done, open_now=(), *, over=False, ago_s=1.0, groups=(WORLD, PAIR)):
    """A rank's file; it was written ``ago_s`` ago."""
    unix_s = time.time() - ago_s
    origin = Origin("watch", rank, 4, "node7", 100 + rank, "", "0.1.0", "", unix_s, 0.0)
    state = State(
        unix_s=unix_s,
        clock_s=NOW_S,
        uncertainty_s=0.0001,
        entered=0,
        done=0,
        messages=0,
        unwritten=0,
        over=over,
        open=tuple(open_now),
    )
    lines = [
        Line(origin=origin),
        *(Line(group=group) for group in groups if rank in group.ranks),
        *(Line(collective=each) for each in done),
        Line(state=state),
    ]
    directory.mkdir(exist_ok=True)
    path = FileName(rank, 0).within(directory)
    path.write_bytes(b"".join(map(encode, lines)))


def told(directory):
    """Kinds and ranks of the verdicts."""
    return [(each.kind, set(each.ranks)) for each in findings(read_sources([directory]))]


def ended(number, at_s=1.0, **more):
    return collective(number, at_s, **more)


@pytest.mark.parametrize("ago_s", [1.0, 3600.0])
def test_who_never_entered_is_named(tmp_path, ago_s):
    for rank in range(4):
        waits = [collective(1, NOW_S - 20)] if rank != 2 else []
        write(tmp_path, rank, [ended(0)], waits, ago_s=ago_s)
    assert told(tmp_path) == [("absent", {2})]


def test_who_is_a_moment_late_in_a_job_that_runs_is_not(tmp_path):
    for rank in range(4):
        waits = [collective(1, NOW_S - 2)] if rank != 2 else []
        write(tmp_path, rank, [ended(0)], waits)
    assert told(tmp_path) == [("ok", set())]


def test_a_job_that_is_gone_stood_where_it_was(tmp_path):
    for rank in range(4):
        waits = [collective(1, NOW_S - 2)] if rank != 2 else []
        write(tmp_path, rank, [ended(0)], waits, ago_s=60.0)
    assert told(tmp_path) == [("absent", {2})]


def test_what_has_ended_since_the_state_was_told_is_not_open(tmp_path):
    for rank in range(4):
        write(tmp_path, rank, [ended(0), ended(1, NOW_S - 20)], [collective(1, NOW_S - 20)])
    assert told(tmp_path) == [("ok", set())]


def test_a_watch_that_is_over_has_nobody_who_hangs(tmp_path):
    for rank in range(4):
        write(tmp_path, rank, [ended(0)], [collective(1, NOW_S - 20)], over=True, ago_s=60.0)
    assert told(tmp_path) == [("ok", set())]


def test_different_collectives_are_a_mismatch(tmp_path):
    for rank in range(4):
        kind = "broadcast" if rank == 3 else "all_reduce"
        write(tmp_path, rank, [ended(0)], [collective(1, NOW_S - 20, kind=kind)])
    assert told(tmp_path) == [("mismatch", {3})]


def test_a_send_that_nobody_receives(tmp_path):
    """Gloo's recorder has no sends; the watch does."""
    sends = [collective(0, NOW_S - 20, kind="send", peer=1)]
    write(tmp_path, 0, [ended(0)], sends)
    for rank in (1, 2, 3):
        write(tmp_path, rank, [ended(0)], [collective(1, NOW_S - 15)])
    ((kind, ranks),) = told(tmp_path)
    assert (kind, ranks) == ("p2p", {0, 1})


def test_an_operation_that_failed_is_where_its_rank_stands(tmp_path):
    """The others gave up by their time-out, and wait for nothing any more."""
    for rank in range(4):
        failed = [collective(1, NOW_S - 20, failed=True)] if rank != 2 else []
        write(tmp_path, rank, [ended(0), *failed], ago_s=60.0)
    assert told(tmp_path) == [("absent", {2})]


def test_a_slow_rank_of_a_job_that_goes_on(tmp_path):
    for rank in range(4):
        done = [ended(number, 0.1 * number + 0.03 * (rank == 1)) for number in range(100)]
        write(tmp_path, rank, done)
    assert told(tmp_path) == [("slow", {1})]


def test_on_a_gpu_the_dumps_decide_unless_they_are_of_an_earlier_trouble(tmp_path):
    """Which a watch sees by when its ranks last entered anything."""
    (tmp_path / DUMPS).mkdir()
    dump = tmp_path / DUMPS / "rank_0.json"
    dump.write_text('{"version": "2.10", "entries": [], "pg_config": {}, "pg_status": {}}')
    for rank in range(4):
        write(tmp_path, rank, [collective(0, NOW_S - 30)], groups=(NCCL,))
    sources = read_sources([tmp_path])
    assert set(sources.records) == {0}
    assert "the dumps decide" in sources.notices[0]
    earlier_s = time.time() - 100
    os.utime(dump, (earlier_s, earlier_s))
    assert not read_sources([tmp_path]).records
