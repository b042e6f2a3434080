"""A schedule in stages, for nodes with fast links inside: kernels inside them, transfers between.

Stages are numbered from 0. In an even one transfers go between the ranks of one node: there each
node has a device program of its own, and each rank runs its part as one kernel. In an odd one they
go from node to node. A node may have nothing to do in a stage.

That the stages are the schedule is decided for any maker's numbers (``in_stages``): every transfer
is in one stage, of its kind; and on every rank all of a round is in one stage, and stages come in
the order of rounds. So each rank does, stage by stage, the steps of its program
(:mod:`latecomer.verify.core.programs`) in their order, with the same peers. What was proved of
these programs holds then: they end, and with what the schedule says. A kernel's puts wait for
nothing, where a send of these programs waits for its receive.

Of each node's part of a stage the device program is proved as any other
(:mod:`latecomer.verify.device.check`), against the rounds of that part as a schedule of its own:
for whatever the ranks hold when the stage begins. A node's kernels follow each other on two staging
sets. As in each of them all ranks of the node hear from all, no two of different stages or
operations meet in a set.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from latecomer.verify.asynchronous.verdict import EVIDENCE
from latecomer.verify.core.schedule import IntArray, Phase, Schedule, Transfer
from latecomer.verify.core.verdict import (
    PROVED,
    BaseReport,
    Counterexample,
    Result,
    Verdict,
    refuted,
)
from latecomer.verify.device.check import DeviceReport, check
from latecomer.verify.device.program import SETS, DeviceProgram, device_program
from latecomer.verify.errors import ArgumentError


class NodePart(msgspec.Struct, frozen=True, eq=False):
    """What one node does in an even stage.

    Attributes:
        rounds: the part as a schedule of the node's ranks, numbered from 0; no all-reduce.
        program: the device program that carries it out.
    """

    stage: int
    node: int
    rounds: Schedule
    program: DeviceProgram


class StagesReport(BaseReport, msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` says about a schedule in stages.

    Attributes:
        nodes: how many; stages: how many.
        parts: of each node in each even stage: (stage, node) and its report.
        results: property name -> result; those of parts by ``stage S, node V: name``.
    """

    nodes: int
    stages: int
    parts: tuple[tuple[tuple[int, int], DeviceReport], ...]
    results: dict[str, Result]

    def to_json(self) -> dict[str, Any]:
        """The object ``device`` that ``verify --device SETS --nodes M --json`` prints."""
        wrong = self.counterexample
        return {
            "verdict": self.verdict.value,
            "nodes": self.nodes,
            "stages": self.stages,
            "properties": {name: result.verdict.value for name, result in self.results.items()},
            "parts": [
                {"stage": stage, "node": node, **report.to_json()}
                for (stage, node), report in self.parts
            ],
            "counterexample": wrong and {name: getattr(wrong, name) for name in EVIDENCE},
        }


def ranks_per_node(schedule: Schedule, nodes: int) -> int:
    """How many ranks each node has; ranks are numbered node by node.

    Raises:
        ArgumentError: there are fewer than two nodes, or they would not have equally many ranks.
    """
    if nodes < 2 or schedule.ranks % nodes:
        requirement = f"must be 2 or more, and divide the {schedule.ranks} ranks"
        raise ArgumentError("nodes", nodes, requirement)
    return schedule.ranks // nodes


def in_stages(schedule: Schedule, nodes: int) -> IntArray:
    """The stage of each transfer (by its place in ``schedule.table``), as early as can be.

    A round in which a rank takes part in transfers of both kinds has no place: :func:`faithful`
    refutes what comes out then.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.cost import Link
        >>> from latecomer.synth.twolevel.machine import Machine
        >>> from latecomer.synth.twolevel.ring import hierarchical_ring
        >>> from latecomer.verify.device.stages import in_stages
        >>> link = Link(alpha_s=0.0, bandwidth=1.0)
        >>> ring = hierarchical_ring(Machine(2, 2, 2, inner=link, outer=link))
        >>> sorted(set(in_stages(ring, nodes=2).tolist()))  # inside, between, inside
        [0, 1, 2]
    """
    per_node = ranks_per_node(schedule, nodes)
    table = schedule.table
    source = table.src // per_node
    target = table.dst // per_node
    crosses = source != target

    stage_of = np.zeros(len(table), np.int64)
    latest = np.zeros(nodes, np.int64)  # of each node: the stage of what it did last
    starts = np.flatnonzero(np.diff(table.round, prepend=-1))
    for transfers in np.split(np.arange(len(table)), starts[1:]):
        inside = transfers[~crosses[transfers]]
        stage_of[inside] = latest[source[inside]] + latest[source[inside]] % 2
        between = transfers[crosses[transfers]]
        taking_part = np.union1d(source[between], target[between])
        if len(between):
            stage_of[between] = latest[taking_part].max() // 2 * 2 + 1
        for ends in (source, target):
            np.maximum.at(latest, ends[transfers], stage_of[transfers])
    return stage_of


def faithful(schedule: Schedule, nodes: int, stage_of: IntArray) -> Result:
    """Whether stages of any maker are the schedule, and each of its kind; see the module."""
    per_node = ranks_per_node(schedule, nodes)
    table = schedule.table
    assert len(stage_of) == len(table)
    is_inside = table.src // per_node == table.dst // per_node
    for index in np.flatnonzero((stage_of < 0) | (is_inside != (stage_of % 2 == 0)))[:1].tolist():
        where = "inside a node" if is_inside[index] else "from node to node"
        expected = "even stages inside nodes, odd ones between them"
        return _refuted(schedule, index, expected, f"{where} in stage {stage_of[index]}")

    index = np.tile(np.arange(len(table)), 2)
    rank = np.concatenate([table.src, table.dst])
    order = np.lexsort((stage_of[index], table.round[index], rank))
    follows = np.diff(rank[order]) == 0
    same_round = np.diff(table.round[index[order]]) == 0
    stage_step = np.diff(stage_of[index[order]])
    wrong = follows & ((stage_step < 0) | (same_round & (stage_step != 0)))
    for at in np.flatnonzero(wrong)[:1].tolist():
        before = int(index[order[at]])
        after = int(index[order[at + 1]])
        owner = int(rank[order[at]])
        expected = f"all of a round of rank {owner} in one stage, and stages in the order of rounds"
        found = f"stage {stage_of[after]} after stage {stage_of[before]}"
        if same_round[at]:
            found = f"stages {stage_of[before]} and {stage_of[after]} in one round"
        return _refuted(schedule, after, expected, found, owner)
    return PROVED


def parts(
    schedule: Schedule, nodes: int, stage_of: IntArray, sets: int = SETS
) -> tuple[NodePart, ...]:
    """What each node does in each even stage, in their order, by faithful stages."""
    per_node = ranks_per_node(schedule, nodes)
    table = schedule.table
    node_of = table.src // per_node
    found = []
    inside = np.flatnonzero(stage_of % 2 == 0)
    stages_and_nodes = np.stack([stage_of[inside], node_of[inside]], axis=1)
    for stage, node in np.unique(stages_and_nodes, axis=0).tolist():
        transfers = np.flatnonzero((stage_of == stage) & (node_of == node))
        rounds = _rounds(schedule, transfers, first_rank=node * per_node)
        part = Schedule(
            ranks=per_node,
            chunks=schedule.chunks,
            phases=(Phase(f"stage {stage} of node {node}", (), rounds),),
            ports=schedule.ports,
        )
        found.append(NodePart(stage, node, part, device_program(part, sets)))
    return tuple(found)


def check_stages(schedule: Schedule, nodes: int, sets: int = SETS) -> StagesReport:
    """Check the stages of a well formed schedule, and each node's program in each of them.

    Args:
        schedule: whatever it computes; ``latecomer.verify.check`` proves that of the whole.
        nodes: of equally many ranks, numbered node by node; sets: staging sets of the programs.

    Raises:
        ArgumentError: such nodes there are not, or the number of sets is no power of two.

    Examples:
        >>> from latecomer.synth.cost import Link
        >>> from latecomer.synth.twolevel.machine import Machine
        >>> from latecomer.synth.twolevel.ring import hierarchical_ring
        >>> from latecomer.verify.device.stages import check_stages
        >>> link = Link(alpha_s=0.0, bandwidth=1.0)
        >>> ring = hierarchical_ring(Machine(2, 2, 2, inner=link, outer=link))
        >>> report = check_stages(ring, nodes=2)  # a StagesReport
        >>> report.verdict, report.stages, len(report.parts)
        (<Verdict.PROVED: 'proved'>, 3, 4)
    """
    stage_of = in_stages(schedule, nodes)
    results = {"in_stages": faithful(schedule, nodes, stage_of)}
    reports = []
    if results["in_stages"].verdict is Verdict.PROVED:
        for part in parts(schedule, nodes, stage_of, sets):
            report = check(part.program, part.rounds)
            reports.append(((part.stage, part.node), report))
            for name, result in report.results.items():
                results[f"stage {part.stage}, node {part.node}: {name}"] = result
    return StagesReport(
        nodes=nodes,
        stages=int(stage_of.max(initial=-1)) + 1,
        parts=tuple(reports),
        results=results,
    )


def _rounds(
    schedule: Schedule, transfers: IntArray, first_rank: int
) -> tuple[tuple[Transfer, ...], ...]:
    """These transfers in their rounds, with ranks counted from ``first_rank``."""
    starts = np.flatnonzero(np.diff(schedule.table.round[transfers], prepend=-1))
    rounds = []
    for in_round in np.split(transfers, starts[1:]):
        moved = []
        for index in in_round.tolist():
            transfer = schedule.table.transfer(index)
            src = transfer.src - first_rank
            dst = transfer.dst - first_rank
            moved.append(Transfer(src, dst, transfer.chunk, transfer.op))
        rounds.append(tuple(moved))
    return tuple(rounds)


def _refuted(
    schedule: Schedule, index: int, expected: str, found: str, rank: int | None = None
) -> Result:
    """At a transfer, in a phase and round of the file."""
    phase, round_in_phase = schedule.place(int(schedule.table.round[index]))
    return refuted(
        Counterexample(
            property="in_stages",
            rank=rank,
            phase=phase,
            round=round_in_phase,
            expected=expected,
            found=found,
            actions=(f"{phase} round {round_in_phase}: {schedule.table.transfer(index)}",),
        )
    )
