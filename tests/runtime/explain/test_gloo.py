"""Dumps of Gloo's recorder, which has no members of groups, no sends and receives."""

from __future__ import annotations

from latecomer.runtime.explain.dumps import Dump, Entry, RecordedGroup
from latecomer.runtime.explain.job import job_of
from latecomer.runtime.explain.records import record_of
from latecomer.runtime.explain.verdicts import verdicts


def dump(*operations):
    """Of (group, sequence, kind, whether it has ended), as Gloo's recorder has them."""
    entries = [
        Entry(
            record_id=number,
            process_group=(group, "default_pg" if group == "0" else "undefined"),
            profiling_name=f"gloo:{kind}",
            collective_seq_id=sequence,
            time_created_ns=1_000 * number,
            input_sizes=[[8]],
            input_dtypes=["Float"],
            output_sizes=[[8]],
            output_dtypes=["Float"],
            state="scheduled",
            retired=has_ended,
        )
        for number, (group, sequence, kind, has_ended) in enumerate(operations)
    ]
    return Dump(version="2.10", entries=entries, pg_config={"": RecordedGroup()})


def told(dumps, world_size):
    records = {rank: record_of(each) for rank, each in dumps.items()}
    return verdicts(job_of(records, world_size))


def test_who_waits_in_a_broadcast_for_a_rank_that_was_stopped_is_not_blamed():
    """Of ranks 2, 3 and 4 the last was stopped and has no dump: nobody tells that it is there.

    Rank 3 is through the broadcast, in which it is not the root; rank 2 waits in it for rank 4.
    """
    together = ("0", 1, "barrier", True)
    dumps = {
        0: dump(together, ("3", 1, "broadcast", False)),
        1: dump(together, ("4", 1, "broadcast", False)),
        2: dump(together, ("2", 1, "broadcast", False)),
        3: dump(together, ("2", 1, "broadcast", True), ("2", 2, "all_reduce", False)),
    }
    (verdict,) = told(dumps, world_size=5)
    assert (verdict.kind, verdict.ranks) == ("nodump", (4,))


def test_who_does_not_come_to_a_barrier_is_named():
    before = ("0", 1, "all_reduce", True)
    waits = dump(before, ("0", 2, "barrier", False))
    (verdict,) = told({0: waits, 1: waits, 2: dump(before)}, world_size=3)
    assert (verdict.kind, verdict.ranks) == ("absent", (2,))


def test_an_all_reduce_that_has_ended_without_a_rank_has_failed():
    """Gloo marks the end after an error, too."""
    before = ("0", 1, "all_reduce", True)
    failed = dump(before, ("0", 2, "all_reduce", True))
    (verdict,) = told({0: failed, 1: failed, 2: dump(before)}, world_size=3)
    assert (verdict.kind, verdict.ranks) == ("absent", (2,))
