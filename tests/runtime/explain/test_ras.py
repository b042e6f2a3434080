"""Reports of NCCL's RAS: what is read, who is named, and that nobody is named without evidence."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.explain import ras
from latecomer.runtime.explain.launches import verdicts_of_reports
from latecomer.verify.errors import FormatError
from tests.runtime.explain.ras_jobs import KINDS, RasJob

SEEDS = st.integers(0, 10**6)
DATA = Path(__file__).with_name("data")
"""Reports in all that NCCL 2.28.9 writes, as it lays them out: made up, for no GPU ran them."""


def job(seed, ranks=8):
    """A healthy job on a grid: communicators of all, of rows and of columns; and its dice."""
    dice = random.Random(seed)
    row = 4
    groups = {"world": tuple(range(ranks))}
    for first in range(0, ranks, row):
        groups[f"row{first}"] = tuple(range(first, first + row))
    for column in range(row):
        groups[f"column{column}"] = tuple(range(column, ranks, row))
    plan = [
        (dice.choice(["world", "row", "column"]), dice.choice(KINDS))
        for _ in range(dice.randint(4, 12))
    ]
    plan.append(("world", "AllReduce"))
    programs = {
        rank: [
            (
                next(name for name in groups if name.startswith(family) and rank in groups[name]),
                kind,
            )
            for family, kind in plan
        ]
        for rank in range(ranks)
    }
    return RasJob(groups, programs, ahead=dice.randint(1, 5)), dice


def read(job, form):
    without_comma = form == "JSON of 2.28"
    data = job.as_text() if form == "text" else job.as_json(without_comma=without_comma)
    assert ras.is_report(data)
    return ras.parse(data, "report")


def named(verdict, job):
    """The culprits' ranks in the job: a verdict has those in a communicator, which it names."""
    (members,) = [
        ranks for name, ranks in job.groups.items() if f"{job.hash_of(name):016x}" == verdict.group
    ]
    return tuple(sorted(members[rank] for rank in verdict.ranks))


FORMS = ("JSON", "JSON of 2.28", "text")


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_job_that_is_through_is_not_explained(form, seed):
    healthy, _ = job(seed)
    (verdict,) = verdicts_of_reports([read(healthy.run(), form)])
    assert verdict.kind == "ok"


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_who_sleeps_is_named_and_nobody_who_waits_for_it(form, seed):
    faulty, dice = job(seed)
    culprit = dice.randrange(8)
    program = faulty.programs[culprit]
    program.insert(dice.randrange(len(program)), ("world", "sleep"))
    (verdict,) = verdicts_of_reports([read(faulty.run(), form)])
    if form == "text" and not verdict.ranks:
        return  # it does not always list who is behind
    assert (verdict.kind, named(verdict, faulty)) == ("absent", (culprit,))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("how", "kind"), [("dead", "absent"), ("unresponsive", "nodump")], ids=["dead", "silent"]
)
@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_who_is_gone_is_named_and_nobody_who_waits_for_it(form, how, kind, seed):
    faulty, dice = job(seed)
    culprits = tuple(sorted(dice.sample(range(8), dice.choice([1, 1, 2]))))
    for rank in culprits:
        program = faulty.programs[rank]
        program.insert(dice.randrange(len(program)), ("world", "sleep"))
        faulty.lost[rank] = how
    (verdict,) = verdicts_of_reports([read(faulty.run(), form)])
    if form == "text" and how == "unresponsive":
        assert "nothing from it" in "".join(verdict.witness)
    assert (verdict.kind, named(verdict, faulty)) == (kind, culprits)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(FORMS))
def test_who_does_another_collective_is_named(seed, form):
    faulty, dice = job(seed)
    culprit = dice.randrange(8)
    program = faulty.programs[culprit]
    place = dice.choice([at for at, (name, _) in enumerate(program) if "column" not in name])
    name, kind = program[place]
    program[place] = (name, dice.choice([other for other in KINDS if other != kind]))
    for rank in faulty.groups[name]:  # NCCL does not get out of it
        del faulty.programs[rank][place + 1 :]
    (verdict,) = verdicts_of_reports([read(faulty.run(), form)])
    if form == "text" and not verdict.ranks:
        return
    assert (verdict.kind, named(verdict, faulty)) == ("mismatch", (culprit,))


def test_two_reports_tell_who_is_slow_from_who_stands():
    faulty, _ = job(seed=1)
    faulty.programs[5].insert(4, ("world", "sleep"))
    early = ras.parse(faulty.run(most=3).as_json(taken="2026-01-01 00:00:00"), "early")
    late = ras.parse(faulty.run().as_json(taken="2026-01-01 00:01:00"), "late")
    later = ras.parse(faulty.run().as_json(taken="2026-01-01 00:02:00"), "later")
    (slow,) = verdicts_of_reports([early, late])
    assert (slow.kind, slow.ranks) == ("slow", (5,))
    (absent,) = verdicts_of_reports([late, later])
    assert (absent.kind, absent.ranks) == ("absent", (5,))
    assert "the first report has the same counts" in absent.witness

    healthy = job(seed=1)[0].run()
    once = ras.parse(healthy.as_json(taken="2026-01-01 00:00:00"), "healthy")
    again = ras.parse(healthy.as_json(taken="2026-01-01 00:01:00"), "healthy a minute later")
    (hung,) = verdicts_of_reports([once, again])
    assert (hung.kind, hung.ranks) == ("hung", ())


@pytest.mark.parametrize(
    ("name", "is_json", "kind", "ranks"),
    [
        ("ras_through.json", True, "ok", ()),
        ("ras_missing.json", False, "nodump", (1, 3)),
        ("ras_behind.json", True, "absent", (3,)),
    ],
)
def test_what_nccl_2_28_9_writes(name, is_json, kind, ranks):
    """It leaves out a comma before the status of each rank that does not answer."""
    data = (DATA / name).read_bytes()
    refused = contextlib.nullcontext() if is_json else pytest.raises(json.JSONDecodeError)
    with refused:
        json.loads(data)
    (verdict,) = verdicts_of_reports([ras.parse(data, name)])
    assert (verdict.kind, verdict.ranks) == (kind, ranks)


def test_a_rank_that_is_behind_is_told_by_its_numbers_in_both_communicators():
    report = ras.parse((DATA / "ras_behind.json").read_bytes(), "report")
    (verdict,) = verdicts_of_reports([report])
    assert verdict.group == "1d2c3b4a59687705"
    assert verdict.witness[0] == (
        "communicator 1d2c3b4a59687703: rank 0 has launched AllReduce up to 12, they up to 5: "
        "it waits for rank 1 (rank 3 of communicator 1d2c3b4a59687705)"
    )


def test_errors_of_a_rank_and_of_others():
    faulty, _ = job(seed=2)
    faulty.errors = {3: 2, 4: 6, 5: 6, 6: 7}  # system error, remote errors, in progress
    (verdict,) = verdicts_of_reports([read(faulty.run(), "JSON")])
    assert (verdict.kind, verdict.ranks) == ("stuck", (3,))
    del faulty.errors[3]
    (verdict,) = verdicts_of_reports([read(faulty, "JSON")])
    assert (verdict.kind, verdict.ranks) == ("nodump", ())
    assert "nobody reports an error of its own" in verdict.witness


MAJORITY_BEHIND = b"""NCCL version 2.26.2 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 640
  2 ranks have launched up to operation 641
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124
"""
"""As a user of NCCL shows it (its issue 1911): it lists the two that are ahead."""


def test_those_that_are_ahead_are_not_blamed_nor_all_others():
    (verdict,) = verdicts_of_reports([ras.parse(MAJORITY_BEHIND, "report")])
    assert (verdict.kind, verdict.ranks) == ("hung", ())
    assert any(
        "rank 12 has launched AllGather up to 641, they up to 640" in line
        for line in verdict.witness
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"communicators": [{"ranks": [{"rank": "x"}]}]}',
        b'{"communicators": [{"ranks": [',
        b"NCCL version 2.26.2\nnothing more",
    ],
)
def test_what_is_cut_or_foreign_gets_one_line(data):
    assert ras.is_report(data)
    with pytest.raises(FormatError) as refused:
        ras.parse(data, "report")
    assert str(refused.value).startswith("report: is no report of NCCL's RAS")
    assert "\n" not in str(refused.value)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.data())
def test_a_report_that_is_damaged_is_refused_or_read(seed, data):
    faulty, _ = job(seed)
    whole = data.draw(st.sampled_from([faulty.run().as_json(), faulty.as_text()]))
    cut = data.draw(st.integers(0, len(whole)))
    inserted = data.draw(st.binary(max_size=4))
    with contextlib.suppress(FormatError):
        verdicts_of_reports([ras.parse(whole[:cut] + inserted + whole[cut + 1 :], "report")])


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_circle_is_named_only_where_all_counts_are_known(is_partial):
    """Each of two ranks has launched more than the other in one of their communicators."""
    places = [ras.Place("node0", 1000 + rank, str(rank)) for rank in range(2)]
    report = ras.Report()
    for name, counts in (("a", (2, 1)), ("b", (1, 2))):
        communicator = report.communicators[name] = ras.Communicator(name, 2)
        for rank, count in enumerate(counts):
            member = communicator.member(rank)
            member.place = places[rank]
            member.launched = {"AllReduce": count}
    report.communicators["c"] = ras.Communicator("c", 2, is_partial=is_partial)
    (verdict,) = verdicts_of_reports([report])
    expected = ("nodump", ()) if is_partial else ("cycle", (0, 1))
    assert (verdict.kind, verdict.ranks) == expected
