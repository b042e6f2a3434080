"""``explain`` on the directory of a watch: who holds up the job, or is slow in it."""

from __future__ import annotations

import os
import time

import pytest

from latecomer.runtime.explain.findings import findings
from latecomer.runtime.explain.sources import read_sources
from latecomer.runtime.telemetry.files import DUMPS, FileName, Line, State, encode
from latecomer.runtime.telemetry.origin import Origin
from latecomer.runtime.telemetry.records import NOT_COUNTED, UNSEEN, Collective, Members

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


def write(
    directory,
    rank,
    done,
    open_now=(),
    *,
    over=False,
    error="",
    ago_s=1.0,
    before_s=0.0,
    groups=(WORLD, PAIR),
):
    """A rank's file; the job's last moment was ``ago_s`` ago, the rank's ``before_s`` before."""
    unix_s = time.time() - ago_s - before_s
    origin = Origin("watch", rank, 4, "node7", 100 + rank, "", "0.1.0", "", unix_s, 0.0)
    state = State(
        unix_s=unix_s,
        clock_s=NOW_S - before_s,
        uncertainty_s=0.0001,
        entered=0,
        done=0,
        messages=0,
        unwritten=0,
        over=over,
        error=error,
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


GONE_S = 60.0  # ago; the job is over


def scattered(number, at_s=1.0, **more):
    """A reduce-scatter; of its end nothing is ever told, so it is among those that have ended."""
    return collective(number, at_s, kind="reduce_scatter", **more)


def test_a_reduce_scatter_that_all_have_entered_has_ended(tmp_path):
    """A rank tells of each as if it had ended: also the last one of a job that was stopped."""
    for rank in range(4):
        write(tmp_path, rank, [scattered(0), ended(1, 2.0), scattered(2, NOW_S - 30)], ago_s=GONE_S)
    assert told(tmp_path) == [("ok", set())]


@pytest.mark.parametrize("has_gone_on", [False, True], ids=["the last", "entered before others"])
def test_who_does_not_enter_a_reduce_scatter_is_named(tmp_path, has_gone_on):
    """Nothing was open, as far as files tell, but it has not ended before all came."""
    more = [scattered(1, NOW_S - 20)]
    open_now = [collective(2, NOW_S - 20)] if has_gone_on else []
    for rank in range(4):
        if rank == 2:
            write(tmp_path, rank, [ended(0)])
        else:
            write(tmp_path, rank, [ended(0), *more], open_now)
    assert told(tmp_path) == [("absent", {2})]


def test_who_does_not_enter_the_first_operation_of_a_group_is_named(tmp_path):
    """A watch counts from 0, dumps from 1."""
    for rank in range(4):
        waits = [collective(0, NOW_S - 20, group="1")] if rank == 0 else []
        write(tmp_path, rank, [ended(0)], waits)
    assert told(tmp_path) == [("absent", {1})]


def test_a_job_that_was_ended_while_it_ran_did_not_stand(tmp_path):
    """Each rank was in something then, and has told less or more of its last moment."""
    for rank in range(4):
        done = [ended(number, NOW_S - 10 + number) for number in range(9 - rank)]
        now = [collective(9 - rank, NOW_S - 0.9)]
        write(tmp_path, rank, done, now, ago_s=GONE_S, before_s=0.2 * rank)
    assert told(tmp_path) == [("ok", set())]


@pytest.mark.parametrize("how", ["others wait", "others ended"])
def test_of_a_process_that_is_gone_it_is_not_known_what_it_entered_last(tmp_path, how):
    """Gloo may have aborted it, since another rank sent too much."""
    error = "RuntimeError: connection closed"
    for rank in range(4):
        if rank == 2:
            write(tmp_path, rank, [ended(0)], ago_s=GONE_S, before_s=20.0)
        elif how == "others wait":
            write(tmp_path, rank, [ended(0)], [collective(1, NOW_S - 20)], ago_s=GONE_S)
        else:
            failed = collective(1, NOW_S - 20, failed=True)
            write(tmp_path, rank, [ended(0), failed], over=True, error=error, ago_s=GONE_S)
    assert told(tmp_path) == [("nodump", {2})]
    (verdict,) = findings(read_sources([tmp_path]))
    assert "rank 2, of which it is not known whether it has entered it" in verdict.witness[0]
    assert verdict.witness[-1].endswith(
        "its files end 20.0 s before those of others, and not in order: "
        "process 102 on node7 is gone or stopped"
    )


def test_what_others_have_completed_a_process_that_is_gone_had_entered(tmp_path):
    """Rank 3 is through what needs all, so rank 2 was there; nobody waits for it."""
    for rank in range(4):
        if rank == 2:
            write(tmp_path, rank, [ended(0)], ago_s=GONE_S, before_s=20.0)
        else:
            waits = [collective(0, NOW_S - 19, group="1")] if rank == 0 else []
            write(tmp_path, rank, [ended(0), ended(1, NOW_S - 20)], waits, ago_s=GONE_S)
    assert told(tmp_path) == [("absent", {1})]


def test_who_told_for_long_that_it_entered_nothing_is_absent_also_if_it_was_stopped_then(tmp_path):
    for rank in range(4):
        waits = [collective(1, NOW_S - 60)] if rank != 2 else []
        write(tmp_path, rank, [ended(0)], waits, ago_s=GONE_S, before_s=20.0 * (rank == 2))
    (verdict,) = findings(read_sources([tmp_path]))
    assert (verdict.kind, verdict.ranks) == ("absent", (2,))
    assert "is gone or stopped" in verdict.witness[-1]


def test_a_rank_that_an_error_of_its_own_has_ended_is_named_with_it(tmp_path):
    """The others fail then, and end, too: their errors are not shown."""
    for rank in range(4):
        if rank == 2:
            write(tmp_path, rank, [ended(0)], over=True, error="ValueError: bad batch")
        else:
            failed = collective(1, NOW_S - 0.2, failed=True)
            write(tmp_path, rank, [ended(0), failed], over=True, error="RuntimeError: closed")
    (verdict,) = findings(read_sources([tmp_path]))
    assert (verdict.kind, verdict.ranks) == ("absent", (2,))
    assert verdict.witness[-1].endswith("has ended; it was ended by ValueError: bad batch")


def test_who_comes_when_others_have_given_up_is_named_and_who_waited_for_it_is_not(tmp_path):
    """Rank 0 waits for rank 1 in their pair, and comes as late as it to the operation of all."""
    given_up = {"over": True, "error": "RuntimeError: timed out", "ago_s": GONE_S}
    for rank in (2, 3):
        failed = [ended(0), collective(1, NOW_S - 40, failed=True)]
        write(tmp_path, rank, failed, before_s=10.0, **given_up)
    for rank, came_s in ((0, NOW_S - 40), (1, NOW_S - 5)):
        pair = ended(0, came_s, group="1")
        failed = collective(1, NOW_S - 5, failed=True)
        write(tmp_path, rank, [ended(0), pair, failed], **given_up)
    (verdict,) = findings(read_sources([tmp_path]))
    assert (verdict.kind, verdict.ranks) == ("absent", (1,))
    assert verdict.witness[-1].endswith("it came 5.0 s after another rank had given up")


@pytest.mark.parametrize("goes_on", [False, True])
def test_who_went_on_after_an_error_does_not_stand_there(tmp_path, goes_on):
    """Torch has refused it something, which others never did; the program has caught that."""
    for rank in range(4):
        refused = collective(1, 2.0, failed=True) if rank == 0 else ended(1, 2.0)
        more = [ended(2, 3.0)] if goes_on else []
        write(tmp_path, rank, [ended(0), refused, *more], ago_s=GONE_S)
    assert told(tmp_path) == [("ok", set()) if goes_on else ("absent", {0})]


def test_a_receive_that_is_posted_early_is_nothing_in_which_a_rank_stands(tmp_path):
    for rank in range(4):
        early = [collective(0, NOW_S - 100, kind="recv", peer=1)] if rank == 0 else []
        write(tmp_path, rank, [ended(0), ended(1, NOW_S - 1)], early)
    assert told(tmp_path) == [("ok", set())]


def test_different_collectives_that_went_well_are_told_of_a_job_that_runs(tmp_path):
    """Gloo adds numbers of other types without a word."""
    for rank in range(4):
        dtype = "int32" if rank == 3 else "float32"
        odd = ended(1, 2.0, signature=("all_reduce", dtype, 4, 0))
        write(tmp_path, rank, [ended(0), odd, ended(2, NOW_S - 1)])
    assert told(tmp_path) == [("mismatch", {3})]


def test_a_rank_may_be_in_what_it_entered_in_a_group_before_that_was_watched(tmp_path):
    """Ranks 0 and 1 have entered an operation of a new group; it is not known which."""
    new = Members("2", (0, 1, 2), "undefined", "gloo")
    for rank in range(4):
        waits = []
        if rank < 2:
            waits = [collective(0, NOW_S - 20, group="2", kind=UNSEEN, signature=())]
        elif rank == 3:
            waits = [collective(1, NOW_S - 20)]
        write(tmp_path, rank, [ended(0)], waits, groups=(WORLD, PAIR, new))
    assert told(tmp_path) == [("absent", {2})]


def test_a_rank_that_may_be_in_a_send_that_was_not_seen_is_not_blamed(tmp_path):
    new = Members("2", (0, 1, 2), "undefined", "gloo")
    unseen = collective(NOT_COUNTED, NOW_S - 20, group="2", kind=UNSEEN, signature=())
    for rank in range(4):
        waits = [unseen] if rank == 1 else [collective(1, NOW_S - 20)]
        write(tmp_path, rank, [ended(0)], waits, groups=(WORLD, PAIR, new))
    assert told(tmp_path) == [("nodump", {1})]
