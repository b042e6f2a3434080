"""Whether what is proved of an MSCCL++ plan's program holds of all that the executor makes of it.

The program has pipelines of two rounds, takes relaxed signals to order data and the operations of
a block to follow one another; the executor has as many rounds as the message needs, says that
relaxed signals order none, and lets the threads of a block run apart.

**Rounds.** Each round of a pipeline takes its piece of every area, the same places of each, so
rounds share no data; pieces and rounds are alike. Let the waits of a round be ended by signals of
the same round, or of earlier ones (credits), and those outside of pipelines by signals outside.
Then two operations that a program of one round orders are so in every round of any number: each
chain of waits between them is there in that round, too. So if the program of one round has no race
and right values, so have all. Nor is there a deadlock if one round has none, and if no chain of
waits leads out of a group of pipelines (those whose rounds wait for each other) and back: a cycle
would stay within a group, where rounds never fall along a chain; so it would stay in one round.

**Threads.** Between two ``nop`` the threads of a block are apart. Where packets are among the data,
which need no ``nop``, a program is looked at in which they are: the packets of a thread order only
what that thread has.

**Scratch that is used again** (``reuse_resources``). A scratch chunk has room for so many pieces;
then the first is overwritten. That is a program of two rounds with one piece of scratch and as many
credits as a round takes: what it orders between its rounds is ordered between any two rounds with
the same scratch, since the operations of a block keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import NamedTuple

from latecomer.verify.asynchronous.check import check
from latecomer.verify.asynchronous.model import BlockProgram
from latecomer.verify.asynchronous.mscclpp_barriers import joins_blocks
from latecomer.verify.asynchronous.mscclpp_doubts import (
    PACKETS_BUFFER,
    UsedArea,
    doubts,
    scratch_chunk_bytes,
)
from latecomer.verify.asynchronous.mscclpp_order import Key, Operation, name_of
from latecomer.verify.asynchronous.mscclpp_plan import Plan, Rounds
from latecomer.verify.asynchronous.mscclpp_program import PlanLowering
from latecomer.verify.core.verdict import Result, Verdict, overall

MOST_THREADS = 4096
"""Blocks and threads that are looked at one by one."""


def doubt(plan: Plan, name: str, lowering: PlanLowering) -> str | None:
    """Why a plan whose program is proved may still go wrong; None if it can't."""
    areas = lowering.used_areas()
    general = next(doubts(plan, areas, lowering.cells), None)
    if general is not None:
        return general

    operations = (o for blocks in lowering.blocks for block in blocks for o in block)
    has_rounds = any(operation.round is not None for operation in operations)
    if has_rounds:
        doubt_of_rounds = _doubt_of_rounds(plan, name, lowering, areas)
        if doubt_of_rounds is not None:
            return doubt_of_rounds
    if lowering.counting.relaxed:
        # One round is enough: _doubt_of_rounds has found that rounds are alike.
        without_relaxed = PlanLowering(plan, name, rounds=1, relaxed=False)
        if not _proved(without_relaxed):
            return "relaxed signals order no data, and here data are ordered by them"
    if _has_packets(areas):
        apart = PlanLowering(plan, name, rounds=1, relaxed=False, apart=True)
        if len(apart.program().blocks) > MOST_THREADS:
            return "too many packets to look at the threads of blocks"
        if not _proved(apart):
            return "packets order what some threads of a block have with what others have"
    if has_rounds and plan.reuse_resources and any(_in_pipelined_scratch(area) for area in areas):
        return _doubt_of_reuse(plan, name, lowering)
    return None


def _doubt_of_rounds(
    plan: Plan, name: str, lowering: PlanLowering, areas: list[UsedArea]
) -> str | None:
    """Why two rounds of pipelines need not stand for any number of them."""
    difference = _rounds_differ(lowering, areas)
    if difference is not None:
        return difference
    if not _proved(PlanLowering(plan, name, rounds=1)):
        return "pipelines of one round are not proved"
    if _comes_back(PlanLowering(plan, name, rounds=1)):
        return "pipelines wait for what comes after them, perhaps only with more rounds"
    return None


def threads_may_go_on(plan: Plan, name: str, lowering: PlanLowering) -> bool:
    """Whether what hangs block by block may end, as threads wait for their own packets only."""
    if not _has_packets(lowering.used_areas()):
        return False
    apart = PlanLowering(plan, name, apart=True)
    program = apart.program()
    if len(program.blocks) > MOST_THREADS:
        return True
    results, _ = check(program, None, apart.refutations)
    return results["deadlock_free"].verdict is Verdict.PROVED


def _has_packets(areas: list[UsedArea]) -> bool:
    return any(area.buffer == PACKETS_BUFFER for area in areas)


def _proved(lowering: PlanLowering) -> bool:
    """Whether the program of a lowering has no race and right values."""
    program = lowering.program()
    results: dict[str, Result]
    results, _ = check(program, None, lowering.refutations)
    return overall(result.verdict for result in results.values()) is Verdict.PROVED


def _in_pipelined_scratch(area: UsedArea) -> bool:
    return area.round is not None and area.buffer == "s"


def _doubt_of_reuse(plan: Plan, name: str, lowering: PlanLowering) -> str | None:
    """Why pieces of scratch may be overwritten too early; None if they can't."""
    piece_bytes = _kinds_of_rounds(lowering)[0].unit_size
    room = scratch_chunk_bytes(plan)
    if room % piece_bytes:
        return (
            f"reuse_resources: {room} bytes of scratch are no multiple of unit_size {piece_bytes}"
        )
    pieces = room // piece_bytes
    shared = PlanLowering(plan, name, rounds=2, relaxed=False, pieces=pieces)
    program = shared.program()
    results, _ = check(program, None, shared.refutations)
    if results["race_free"].verdict is not Verdict.PROVED:
        return f"reuse_resources: scratch of {pieces} rounds is used again too early"
    return None


def _kinds_of_rounds(lowering: PlanLowering) -> list[Rounds]:
    """The different kinds of rounds that a plan's pipelines have."""
    contexts = set()
    for gpu in lowering.plan.gpus:
        for block in gpu.threadblocks:
            for operation in block.ops:
                if operation.iter_context is not None:
                    contexts.add(operation.iter_context)
    return sorted(contexts, key=lambda context: (context.unit_size, context.num_chunks))


def _rounds_differ(lowering: PlanLowering, areas: list[UsedArea]) -> str | None:
    """In what rounds are not alike, or meet others; None: in nothing."""
    if len(_kinds_of_rounds(lowering)) > 1:
        return "pipelines have different numbers of rounds"

    spans = set()
    for area in areas:
        if area.round is not None and area.chunks:
            spans.add((area.start, area.start + area.chunks * lowering.cells))
    for (_, end), (start, _) in pairwise(sorted(spans)):
        if start < end:
            return "areas of pipelines overlap, at different places of their rounds"

    counting = lowering.counting
    for key in sorted(counting.signals.keys() | counting.waits.keys()):
        if not _aligned(lowering, key):
            return f"rounds wait for signals of other rounds at {name_of(key)}"
    for rank, blocks in enumerate(lowering.blocks):
        for identity, members in lowering.barriers[rank].members.items():
            patterns = [_barrier_pattern(blocks[block], identity) for block in members]
            if any(pattern != patterns[0] for pattern in patterns):
                return f"rounds meet other rounds at barrier {identity} of rank {rank}"
    return None


class _Uses(NamedTuple):
    """Uses of one counter by a block, in a row.

    Attributes:
        pipeline: the pipeline's position, if they are in one; None: outside.
        times: how many; in a pipeline, in each round.
    """

    pipeline: int | None
    times: int

    @property
    def alike(self) -> tuple[bool, int]:
        """What has to agree with the uses by another block."""
        return self.pipeline is None, self.times


def _aligned(lowering: PlanLowering, key: Key) -> bool:
    """Whether rounds wait for signals of the same round, or of so many rounds before."""
    counting = lowering.counting
    patterns = []
    for uses_of_key in (counting.signals, counting.waits):
        uses = uses_of_key.get(key, [])
        operations = [lowering.blocks[rank][use.block][use.nth] for rank, use in uses]
        blocks = {(rank, use.block) for rank, use in uses}
        if len(blocks) > 1 and any(operation.round is not None for operation in operations):
            return False
        patterns.append(_pattern(operations))

    signals, waits = patterns
    pipelines = [uses.pipeline for uses in (*signals, *waits)]
    if all(pipeline is None for pipeline in pipelines):
        return True
    initial = counting.initial(key)
    if not initial:
        return [uses.alike for uses in signals] == [uses.alike for uses in waits]
    # Credits for whole rounds, if all is in one pipeline at each end.
    if len(signals) != 1 or len(waits) != 1 or None in pipelines:
        return False
    return signals[0].times == waits[0].times and initial % signals[0].times == 0


def _barrier_pattern(operations: list[Operation], identity: int) -> list[tuple[bool, int]]:
    """The uses of a barrier by a block, as they have to agree with those by others."""
    uses = [o for o in operations if joins_blocks(o) and o.operation.barrier == identity]
    return [row.alike for row in _pattern(uses)]


def _pattern(operations: list[Operation]) -> list[_Uses]:
    """Uses of a counter in order; of a pipeline's, those of the first round only."""
    pattern = []
    for pipeline, group in groupby(operations, _pipeline_of):
        of_first_round = [operation for operation in group if not operation.round]
        pattern.append(_Uses(pipeline, len(of_first_round)))
    return pattern


def _pipeline_of(operation: Operation) -> int | None:
    return None if operation.round is None else operation.position


Place = tuple[int, int | None]
"""Where a step is: its block, by its number in the program, and its pipeline there, if any."""


def _comes_back(lowering: PlanLowering) -> bool:
    """Whether a chain of waits leads out of a group of pipelines and back into it.

    The program has one round. Two pipelines are in a group if one waits for the other.
    """
    program = lowering.program()
    places = _places(lowering, program)
    follows, waits = _edges(program)
    groups = _Groups(place for place in places if place[1] is not None)
    for earlier, later in waits:
        if places[earlier][1] is not None and places[later][1] is not None:
            groups.join(places[earlier], places[later])

    # A graph of groups, and of the steps outside of pipelines; a chain that comes back is a cycle.
    def node(step: int) -> object:
        return step if places[step][1] is None else groups.root(places[step])

    successors: dict[object, set[object]] = {}
    for earlier, later in (*follows, *waits):
        before = node(earlier)
        after = node(later)
        if before != after:
            successors.setdefault(before, set()).add(after)
        elif places[earlier] != places[later] and (earlier, later) in follows:
            return True  # from one pipeline of a block to the next, which are of one group
    return _cyclic(successors)


class _Groups:
    """Groups of pipelines, joined by twos (union-find)."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._parent = {place: place for place in places}

    def root(self, place: Place) -> Place:
        """The one that stands for all of its group."""
        while self._parent[place] != place:
            self._parent[place] = self._parent[self._parent[place]]
            place = self._parent[place]
        return place

    def join(self, first: Place, second: Place) -> None:
        """Make one group of two."""
        self._parent[self.root(first)] = self.root(second)


def _places(lowering: PlanLowering, program: BlockProgram) -> list[Place]:
    """Where each step of the program is; its blocks are those of the plan."""
    plan_blocks = [block for gpu in lowering.plan.gpus for block in gpu.threadblocks]
    places: list[Place] = []
    for number, (block, plan_block) in enumerate(zip(program.blocks, plan_blocks, strict=True)):
        for step in block.steps:
            in_pipeline = plan_block.ops[step.position].name == "pipeline"
            places.append((number, step.position if in_pipeline else None))
    return places


def _edges(program: BlockProgram) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Pairs of steps, the earlier first: neighbours in a block, and signals with their waits."""
    follows = set()
    raised_by: dict[tuple[int, int], int] = {}
    number = 0
    for block in program.blocks:
        for position, step in enumerate(block.steps):
            if position:
                follows.add((number - 1, number))
            for signal in step.signals:
                raised_by.setdefault((signal.counter, signal.value), number)
            number += 1

    waits = set()
    steps = (step for block in program.blocks for step in block.steps)
    for number, step in enumerate(steps):
        for wait in step.waits:
            waits.add((raised_by[wait.counter, wait.value], number))
    return follows, waits


def _cyclic(successors: dict[object, set[object]]) -> bool:
    """Whether a graph has a cycle."""
    pending: dict[object, int] = {}  # predecessors that are still to come
    for nodes in successors.values():
        for node in nodes:
            pending[node] = pending.get(node, 0) + 1

    ready = [node for node in successors if not pending.get(node)]
    remaining = len(successors.keys() | pending.keys())
    while ready:
        node = ready.pop()
        remaining -= 1
        for successor in successors.get(node, ()):
            pending[successor] -= 1
            if not pending[successor]:
                ready.append(successor)
    return remaining > 0
