"""The report on a schedule: worst cases as found by trying all sets, and verdicts on time-out."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings

from latecomer.verify import Verdict
from latecomer.verify.errors import ArgumentError
from latecomer.verify.loss.examine import examine
from latecomer.verify.loss.report import Answer, LossReport
from tests.verify.builders import (
    Document,
    broken,
    document,
    moves,
    recursive_doubling,
    ring,
    schedule_of,
)
from tests.verify.loss.test_harm import RELAY, RIGHT, odd
from tests.verify.oracle import Entry, ending, transfers

LONG_S = 60.0


def _all_sets(doc: Document, most_losses: int) -> tuple[int, bool, bool]:
    """The most missing entries, and whether twice and differ are possible, by trying all sets."""
    numbers = range(len(transfers(doc)))
    ends = []
    for size in range(1, most_losses + 1):
        ends += [ending(doc, set(lost)) for lost in itertools.combinations(numbers, size)]
    worst = max(len(end.missing) for end in ends)
    return worst, any(end.twice for end in ends), any(end.differ for end in ends)


def _numbers(doc: Document, lost: Iterable[Any]) -> set[int]:
    """The numbers, in file order, of transfers that a report names."""
    in_file_order = []
    for phase in doc["phases"]:
        for number, moves_of_round in enumerate(phase["rounds"]):
            in_file_order += [(phase["name"], number, *move) for move in moves_of_round]
    return {in_file_order.index((x.phase, x.round, x.src, x.dst, x.chunk, x.op)) for x in lost}


def _entries(blocks: Iterable[Any]) -> set[Entry]:
    entries: set[Entry] = set()
    for block in blocks:
        entries.update(itertools.product(block.ranks, [block.chunk], block.contributions))
    return entries


def _agrees(doc: Document, report: LossReport, most_losses: int) -> None:
    missing, twice, differ = _all_sets(doc, most_losses)
    assert report.verdict is Verdict.PROVED
    assert report.worst.entries == report.worst.bound == missing
    assert (report.twice.possible, report.differ.possible) == (twice, differ)
    end = ending(doc, _numbers(doc, report.worst.lost))
    assert len(report.worst.lost) <= most_losses
    assert end.missing == _entries(report.worst.missing)
    if twice:
        assert ending(doc, _numbers(doc, report.twice.lost)).twice
    if differ:
        assert ending(doc, _numbers(doc, report.differ.lost)).differ


@settings(max_examples=60, deadline=None)
@given(odd(4))
@example(RELAY)
def test_all_sets_of_odd_schedules(doc: Document) -> None:
    _agrees(doc, examine(schedule_of(doc), 2, LONG_S), 2)


@pytest.mark.parametrize(
    ("name", "most_losses"),
    [
        ("ring-3", 4),
        ("ring-5", 2),
        ("direct-4-incast-2", 2),
        ("halving-4", 3),
        ("doubling-4x2", 3),
        ("optimal-4-duplex", 3),
        ("straggler-4-duplex", 3),
        ("two-late-4", 4),
    ],
)
def test_all_sets_of_textbook_schedules(name: str, most_losses: int) -> None:
    report = examine(schedule_of(RIGHT[name]), most_losses, LONG_S)
    _agrees(RIGHT[name], report, most_losses)


def test_one_by_one() -> None:
    """Each single loss is listed in file order, with what the oracle sees."""
    for doc in RIGHT.values():
        report = examine(schedule_of(doc), 1, LONG_S)
        assert report.each is not None
        assert len(report.each) == len(transfers(doc)) == report.transfers
        for number, single in enumerate(report.each):
            end = ending(doc, {number})
            assert _numbers(doc, [single.lost]) == {number}
            assert (single.entries, single.differ) == (len(end.missing), end.differ)
            assert _entries(single.missing) == end.missing
        for kind in report.kinds:
            of_kind = []
            for single in report.each:
                if (single.lost.phase, single.lost.op) == (kind.phase, kind.op):
                    of_kind.append(single)
            entries = [single.entries for single in of_kind]
            assert (kind.least, kind.most) == (min(entries), max(entries))
            assert kind.mean == pytest.approx(sum(entries) / len(entries))
            assert kind.transfers == len(of_kind)
            assert kind.differ == sum(single.differ for single in of_kind)
            assert kind.twice == sum(bool(single.twice) for single in of_kind)
        assert sum(kind.transfers for kind in report.kinds) == report.transfers


@pytest.mark.parametrize("name", ["ring-3", "direct-3-incast-2", "halving-4", "optimal-4-duplex"])
def test_mean_way_bounds_the_average(name: str) -> None:
    """The average over all sets of losses, each with its probability; near p = 0 nearly met."""
    doc = {**RIGHT[name]}
    report = examine(schedule_of(doc), 1, LONG_S)
    alone = _first_chunk_of(doc)  # chunks are alike: one will do
    mean_way = examine(schedule_of(alone), 1, LONG_S).mean_way
    if name != "optimal-4-duplex":
        assert mean_way == pytest.approx(report.mean_way)

    count = len(transfers(alone))
    missing: dict[tuple[int, ...], int] = {}
    for size in range(count + 1):
        for lost in itertools.combinations(range(count), size):
            missing[lost] = len(ending(alone, set(lost)).missing)

    for p in (0.001, 0.1, 0.5, 1.0):
        average = 0.0
        for lost, entries in missing.items():
            probability = p ** len(lost) * (1 - p) ** (count - len(lost))
            average += probability * entries
        bound = mean_way * p * doc["ranks"] ** 2
        assert average <= bound * (1 + 1e-9)
        if p == 0.001:
            assert average > 0.6 * bound


def _first_chunk_of(doc: Document) -> Document:
    phases = []
    for phase in doc["phases"]:
        rounds = []
        for moves_of_round in phase["rounds"]:
            rounds.append([move for move in moves_of_round if move[2] == 0])
        phases.append({**phase, "rounds": rounds})
    return {**doc, "chunks": 1, "phases": phases}


REPEATED = document(2, 1, [("all", [], [moves("0+1:0"), *[moves("1=0:0")] * 3])])
"""The result is sent three times: three losses have to meet for it not to arrive."""


def test_harm_that_needs_several_losses() -> None:
    for most_losses in (1, 2, 3):
        report = examine(schedule_of(REPEATED), most_losses, LONG_S)
        assert report.worst.entries == 2  # the reduce
        assert report.differ.possible is (most_losses == 3)
        if most_losses == 3:
            assert len(report.differ.lost) == 3
        else:
            assert report.differ.why == "all sets of losses were tried"


def test_time_out_is_unknown() -> None:
    doc = recursive_doubling(8)
    hurried = examine(schedule_of(doc), 3, 0.0)
    truth = examine(schedule_of(doc), 3, LONG_S)
    assert hurried.verdict is Verdict.UNKNOWN
    assert not hurried.worst.exact
    assert hurried.worst.entries <= truth.worst.entries <= hurried.worst.bound
    assert truth.worst.exact

    repeated = examine(schedule_of(REPEATED), 2, 0.0)
    assert repeated.differ.possible == "unknown"
    assert repeated.verdict is Verdict.UNKNOWN
    assert repeated.differ.lost == ()

    easy = examine(schedule_of(ring(5)), 3, 0.0)  # what was found needs no time
    assert easy.verdict is Verdict.PROVED
    assert easy.twice == Answer(False, why="every copy brings at least what it overwrites")


def test_wrong_schedules_are_refused() -> None:
    doc = broken(ring(3))
    with pytest.raises(ArgumentError, match="exactly_once must hold"):
        examine(schedule_of(doc), 1, LONG_S)
    doc["phases"][0]["rounds"][0][0][0] = 9
    with pytest.raises(ArgumentError, match="well_formed must hold"):
        examine(schedule_of(doc), 1, LONG_S)
