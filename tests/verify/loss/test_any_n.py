"""What `verify --loss 1` finds on transposes is what Transpose.v proves for all of them."""

import copy
import json
import random

import pytest

from synth import direct, generate, rhd, ring
from synth.transpose.generate import transpose
from tests.verify.builders import schedule_of
from tests.verify.mutants import CollectiveChange
from verify import Schedule, Verdict, encode
from verify.core.structure import hazards, well_formed
from verify.errors import ArgumentError
from verify.loss.examine import examine

SIZES = [(n, incast) for n in (*range(2, 14), 24) for incast in (1, 2, 3, n - 1) if incast < n]


def _is_transpose(schedule: Schedule) -> bool:
    """For each chunk: one owner; a reduce from every other rank to it; in later rounds a copy from
    it to every other rank; nothing else.
    """
    table, n = schedule.table, schedule.ranks
    moves: list[list[int]] = [[] for _ in range(schedule.chunks)]
    for index, chunk in enumerate(table.chunk.tolist()):
        moves[chunk].append(index)
    for of_chunk in moves:
        to = [i for i in of_chunk if table.reduce[i]]
        back = [i for i in of_chunk if not table.reduce[i]]
        if len(to) != n - 1 or len(back) != n - 1:
            return False
        owner = int(table.dst[to[0]])
        others = set(range(n)) - {owner}
        if {int(table.dst[i]) for i in to} | {int(table.src[i]) for i in back} != {owner}:
            return False
        if {int(table.src[i]) for i in to} != others or {int(table.dst[i]) for i in back} != others:
            return False
        if max(table.round[to]) >= min(table.round[back]):
            return False
    return True


def _as_the_theorem_says(schedule: Schedule) -> bool:
    """One contribution of one chunk at all ranks, or one chunk at one rank, who keeps its own."""
    report = examine(schedule, 1, 60.0)
    assert report.each is not None
    everybody = tuple(range(schedule.ranks))
    for single in report.each:
        lost, reduce = single.lost, single.lost.op == "reduce"
        others = tuple(rank for rank in everybody if rank != lost.dst)
        blocks = (everybody, (lost.src,)) if reduce else ((lost.dst,), others)
        found = [(block.chunk, block.ranks, block.contributions) for block in single.missing]
        if found != [(lost.chunk, *blocks)] or single.twice or single.differ is reduce:
            return False
    return True


@pytest.mark.parametrize(("n", "incast"), SIZES)
def test_for_each_n(n: int, incast: int) -> None:
    """What is examined is compared with the oracle's runs in ``test_examine``."""
    for schedule in (transpose(n, incast=incast), *([direct(n)] if incast == n - 1 else [])):
        assert _is_transpose(schedule)
        assert _as_the_theorem_says(schedule)


def test_others_are_no_transpose() -> None:
    two_level = transpose(8, groups=2, exchange="transpose")
    for schedule in (ring(5), rhd(8), generate(5), two_level, transpose(8, groups=4)):
        assert not _is_transpose(schedule)
        assert not _as_the_theorem_says(schedule)


def test_mutants() -> None:
    """Whatever is still a transpose after a change obeys the theorem, and so is right."""
    rng = random.Random(7)
    verdicts = {True: 0, False: 0}
    right = json.loads(encode(transpose(5, incast=2)))
    for _ in range(400):
        doc = copy.deepcopy(right)
        CollectiveChange(doc, rng)
        schedule = schedule_of(doc)
        if any(decide(schedule).verdict is not Verdict.PROVED for decide in (well_formed, hazards)):
            continue  # it has no meaning
        try:
            obeys = _as_the_theorem_says(schedule)
        except ArgumentError:
            obeys = False  # wrong without any loss
        transposes = _is_transpose(schedule)
        verdicts[transposes] += 1
        assert obeys or not transposes
    assert min(verdicts.values()) > 40
