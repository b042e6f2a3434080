"""Schedules in stages: what is decided, against the definition and against running them so."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from latecomer.verify import Phase, Schedule, Transfer, write
from latecomer.verify.cli import app
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.device.stages import check_stages, faithful, in_stages, parts
from latecomer.verify.errors import ArgumentError
from tests.runtime.device.machines import hierarchical, mixed
from tests.runtime.device.machines import in_stages as made_in_stages
from tests.runtime.schedules import by_rounds, ring
from tests.verify.device.machine import Machine, explore

PROVED = Verdict.PROVED
REFUTED = Verdict.REFUTED
NODES = 2
PER_NODE = 2
RANKS = NODES * PER_NODE
CHUNKS = 2


@st.composite
def any_rounds(draw):
    """A schedule that computes something or other; in a round no chunk of a rank is written twice.

    In half of the rounds all transfers are inside nodes, or all between them.
    """
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["inside", "between", "any", "any"]))
        pairs = []
        for src, dst in itertools.permutations(range(RANKS), 2):
            is_inside = src // PER_NODE == dst // PER_NODE
            if kind == "any" or is_inside == (kind == "inside"):
                pairs.append((src, dst))
        written = set()
        transfers = []
        for src, dst in draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=3)):
            chunk = draw(st.integers(0, CHUNKS - 1))
            if (dst, chunk) not in written:
                written.add((dst, chunk))
                op = draw(st.sampled_from(["copy", "reduce"]))
                transfers.append(Transfer(src, dst, chunk, op))
        rounds.append(tuple(transfers))
    return Schedule(ranks=RANKS, chunks=CHUNKS, phases=(Phase("any", (), tuple(rounds)),))


def by_definition(schedule, stage_of):
    """Whether these are stages: every transfer of its kind, all ranks in the order of rounds."""
    transfers = []
    for number, (_, _, round_of_transfers) in enumerate(schedule.located_rounds()):
        transfers += [(number, transfer) for transfer in round_of_transfers]
    for (_, transfer), stage in zip(transfers, stage_of, strict=True):
        is_inside = transfer.src // PER_NODE == transfer.dst // PER_NODE
        if stage < 0 or is_inside != (stage % 2 == 0):
            return False
    for first, second in itertools.permutations(range(len(transfers)), 2):
        (earlier, a), (later, b) = transfers[first], transfers[second]
        if not {a.src, a.dst} & {b.src, b.dst}:
            continue
        if earlier == later and stage_of[first] != stage_of[second]:
            return False
        if earlier < later and stage_of[first] > stage_of[second]:
            return False
    return True


def run_by_stages(schedule, stage_of):
    """What the ranks hold after all of stage 0, then of stage 1, and so on, each in its rounds."""
    rounds = {}
    index = 0
    for number, (_, _, transfers) in enumerate(schedule.located_rounds()):
        for transfer in transfers:
            rounds.setdefault((int(stage_of[index]), number), []).append(transfer)
            index += 1
    in_order = tuple(tuple(rounds[key]) for key in sorted(rounds))
    phases = (Phase("stages", (), in_order),)
    return held_after(Schedule(ranks=schedule.ranks, chunks=schedule.chunks, phases=phases))


def held_after(schedule):
    """Expressions: what is added to what, in which order."""
    start = {}
    for rank, chunk in itertools.product(range(schedule.ranks), range(schedule.chunks)):
        start[rank, chunk] = f"{rank}.{chunk}"
    return by_rounds(schedule, start, lambda own, received: f"({own} + {received})")


@settings(max_examples=300, deadline=None)
@given(any_rounds(), st.data())
def test_stages_of_any_maker_are_what_the_definition_says(schedule, data):
    count = len(schedule.table)
    stage_of = np.array(data.draw(st.lists(st.integers(-1, 5), min_size=count, max_size=count)))
    verdict = faithful(schedule, NODES, stage_of).verdict
    assert (verdict is PROVED) == by_definition(schedule, stage_of)
    if verdict is PROVED:
        assert run_by_stages(schedule, stage_of) == held_after(schedule)


@settings(max_examples=300, deadline=None)
@given(any_rounds())
def test_stages_that_are_found_are_right_and_there_are_none_else(schedule):
    """None are overlooked where no rank has both kinds in a round; what they give is the same."""
    stage_of = in_stages(schedule, NODES)
    is_right = by_definition(schedule, stage_of)
    assert (faithful(schedule, NODES, stage_of).verdict is PROVED) == is_right

    has_both = False
    for _, _, transfers in schedule.located_rounds():
        kinds = {}
        for transfer in transfers:
            is_inside = transfer.src // PER_NODE == transfer.dst // PER_NODE
            for node in (transfer.src // PER_NODE, transfer.dst // PER_NODE):
                kinds.setdefault(node, set()).add(is_inside)
        has_both |= any(len(kinds_of_node) > 1 for kinds_of_node in kinds.values())
    assert is_right or has_both
    if is_right:
        assert run_by_stages(schedule, stage_of) == held_after(schedule)


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (2, 4), (3, 2), (3, 3), (2, 8)])
def test_schedules_in_stages_are_proved(nodes, per_node):
    schedules = [hierarchical(nodes, per_node)]
    for late in range(0, nodes * per_node, per_node + 1):
        schedules.append(made_in_stages(nodes, per_node, late=late, chunks=nodes - 1))
    for schedule in schedules:
        report = check_stages(schedule, nodes)
        assert report.verdict is PROVED
        assert report.stages == 3
        assert [place for place, _ in report.parts] == [
            (stage, node) for stage in (0, 2) for node in range(nodes)
        ]


def test_a_kernel_for_each_part_in_turn_against_all_interleavings():
    """Two operations of two stages each, of the node with the late rank and of the other."""
    schedule = made_in_stages(2, 2, chunks=1)
    stage_of = in_stages(schedule, 2)
    of_node = {0: [], 1: []}
    for part in parts(schedule, 2, stage_of):
        of_node[part.node].append([rows.tolist() for rows in part.program.rows])
    for turns in of_node.values():
        explored = explore(Machine(turns * 2, 2, 2, first=6, bits=3, refresh=True))
        assert not explored.wrong_take
        assert not explored.stuck
        assert len(explored.results) == 1


def test_what_is_refuted_and_where():
    one_way = check_stages(mixed(2, 2), 2)
    assert one_way.verdict is REFUTED
    assert one_way.results["in_stages"].verdict is PROVED
    assert one_way.results["stage 4, node 0: all_heard"].verdict is REFUTED

    report = check_stages(made_in_stages(2, 4), 4)  # nodes of two, and it was made for four
    assert report.results["in_stages"].verdict is REFUTED
    assert "stages 0 and 1 in one round" in report.counterexample.found
    assert not report.parts

    for nodes in (1, 0, 3):
        with pytest.raises(ArgumentError, match="divide the 4 ranks"):
            check_stages(ring(4), nodes)


def test_the_command(tmp_path):
    path = tmp_path / "stages.json"
    write(made_in_stages(2, 2), path)

    def verify(*options):
        return CliRunner().invoke(app, [str(path), *options])

    result = verify("--device", "2", "--nodes", "2")
    assert result.exit_code == 0
    assert "kernels inside 2 nodes, transfers between them: PROVED" in result.stdout
    assert "stage 2 of node 1: PROVED" in result.stdout
    facts = json.loads(verify("--device", "2", "--nodes", "2", "--json").stdout)["device"]
    assert facts["verdict"] == "proved"
    assert [part["stage"] for part in facts["parts"]] == [0, 0, 2, 2]
    assert verify("--device", "1", "--nodes", "2").exit_code == 1  # one set: overwritten too early
    for options in (("--nodes", "2"), ("--device", "2", "--nodes", "3")):
        assert isinstance(verify(*options).exception, ArgumentError)

    write(mixed(2, 2), path)
    assert verify("--device", "2", "--nodes", "2").exit_code == 1
