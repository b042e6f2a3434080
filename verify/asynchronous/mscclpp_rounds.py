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

from itertools import groupby, pairwise

from verify.asynchronous.check import check
from verify.asynchronous.model import Program
from verify.asynchronous.mscclpp_barriers import joins
from verify.asynchronous.mscclpp_doubts import PACKETS_BUFFER, Used, doubts, scratch_chunk
from verify.asynchronous.mscclpp_order import Key, Operation, name_of
from verify.asynchronous.mscclpp_plan import Plan, Rounds
from verify.asynchronous.mscclpp_program import PlanLowering
from verify.core.verdict import Result, Verdict, overall

MOST_THREADS = 4096
"""Blocks and threads that are looked at one by one."""

Pattern = list[tuple[int | None, int]]
"""Uses of a counter by a block, in order: how many in each round of which pipeline, or outside."""


def doubt(plan: Plan, name: str, lowering: PlanLowering) -> str | None:
    """Why a plan whose program is proved may still go wrong; None if it can't."""
    used = lowering.used()
    general = next(doubts(plan, used, lowering.cells), None)
    if general is not None:
        return general
    loops = any(now.turn is not None for of in lowering.blocks for block in of for now in block)
    if loops:
        differ = _rounds_differ(lowering, used)
        if differ is not None:
            return differ
    relaxed = bool(lowering.counting.relaxed)
    if loops and not _proved(PlanLowering(plan, name, rounds=1)):
        return "pipelines of one round are not proved"
    if loops and _comes_back(PlanLowering(plan, name, rounds=1)):
        return "pipelines wait for what comes after them, perhaps only with more rounds"
    if relaxed and not _proved(PlanLowering(plan, name, rounds=1, relaxed=False)):
        return "relaxed signals order no data, and here data are ordered by them"
    if any(area.buffer == PACKETS_BUFFER for area in used):
        apart = PlanLowering(plan, name, rounds=1, relaxed=False, apart=True)
        if len(apart.program().blocks) > MOST_THREADS:
            return "too many packets to look at the threads of blocks"
        if not _proved(apart):
            return "packets order what some threads of a block have with what others have"
    if loops and plan.reuse_resources and any(_in_pipelined_scratch(area) for area in used):
        return _reuse(plan, name, lowering)
    return None


def threads_may_go_on(plan: Plan, name: str, lowering: PlanLowering) -> bool:
    """Whether what hangs block by block may end, as threads wait for their own packets only."""
    if not any(area.buffer == PACKETS_BUFFER for area in lowering.used()):
        return False
    apart = PlanLowering(plan, name, apart=True)
    program = apart.program()
    if len(program.blocks) > MOST_THREADS:
        return True
    results, _ = check(program, None, apart.refutations)
    return results["deadlock_free"].verdict is Verdict.PROVED


def _proved(lowering: PlanLowering) -> bool:
    """Whether the program of a lowering has no race and right values."""
    program = lowering.program()
    results: dict[str, Result]
    results, _ = check(program, None, lowering.refutations)
    return overall(result.verdict for result in results.values()) is Verdict.PROVED


def _in_pipelined_scratch(area: Used) -> bool:
    return area.turn is not None and area.buffer == "s"


def _reuse(plan: Plan, name: str, lowering: PlanLowering) -> str | None:
    """Why pieces of scratch may be overwritten too early; None if they can't."""
    size = _rounds(lowering)[0].unit_size
    room = scratch_chunk(plan)
    if room % size:
        return f"reuse_resources: {room} bytes of scratch are no multiple of unit_size {size}"
    shared = PlanLowering(plan, name, rounds=2, relaxed=False, pieces=room // size)
    program = shared.program()
    results, _ = check(program, None, shared.refutations)
    if results["race_free"].verdict is not Verdict.PROVED:
        return f"reuse_resources: scratch of {room // size} rounds is used again too early"
    return None


def _rounds(lowering: PlanLowering) -> list[Rounds]:
    """The different kinds of rounds that a plan's pipelines have."""
    contexts = {
        operation.iter_context
        for gpu in lowering.plan.gpus
        for block in gpu.threadblocks
        for operation in block.ops
        if operation.iter_context is not None
    }
    return sorted(contexts, key=lambda context: (context.unit_size, context.num_chunks))


def _rounds_differ(lowering: PlanLowering, used: list[Used]) -> str | None:
    """Why two rounds need not stand for any number of them."""
    if len(_rounds(lowering)) > 1:
        return "pipelines have different numbers of rounds"
    areas = {
        (area.start, area.start + area.chunks * lowering.cells)
        for area in used
        if area.turn is not None and area.chunks
    }
    for (_, end), (start, _) in pairwise(sorted(areas)):
        if start < end:
            return "areas of pipelines overlap, at different places of their rounds"

    counting = lowering.counting
    for key in sorted(counting.signals.keys() | counting.waits.keys()):
        if not _aligned(lowering, key):
            return f"rounds wait for signals of other rounds at {name_of(key)}"
    for rank, blocks in enumerate(lowering.blocks):
        for identity, members in lowering.barriers[rank].members.items():
            patterns = [_of_barrier(blocks[block], identity) for block in members]
            if any(pattern != patterns[0] for pattern in patterns):
                return f"rounds meet other rounds at barrier {identity} of rank {rank}"
    return None


def _aligned(lowering: PlanLowering, key: Key) -> bool:
    """Whether rounds wait for signals of the same round, or of so many rounds before."""
    counting = lowering.counting
    sides = []
    for table in (counting.signals, counting.waits):
        uses = table.get(key, [])
        turns = [lowering.blocks[rank][use.block][use.position] for rank, use in uses]
        blocks = {(rank, use.block) for rank, use in uses}
        if len(blocks) > 1 and any(now.turn is not None for now in turns):
            return False
        sides.append(_pattern(turns))
    signals, waits = sides
    if all(place is None for place, _ in (*signals, *waits)):
        return True
    initial = counting.initial(key)
    if initial:
        alike = len(signals) == len(waits) == 1 and signals[0][1] == waits[0][1]
        inside = all(place is not None for place, _ in (*signals, *waits))
        return alike and inside and initial % signals[0][1] == 0
    return [_outside_or_count(entry) for entry in signals] == [
        _outside_or_count(entry) for entry in waits
    ]


def _outside_or_count(entry: tuple[int | None, int]) -> tuple[bool, int]:
    place, count = entry
    return place is None, count


def _of_barrier(operations: list[Operation], identity: int) -> list[tuple[bool, int]]:
    uses = [now for now in operations if joins(now) and now.operation.barrier == identity]
    return [_outside_or_count(entry) for entry in _pattern(uses)]


def _pattern(uses: list[Operation]) -> Pattern:
    """Uses in order, those of a pipeline's first round only."""
    found: Pattern = []
    for place, group in groupby(uses, lambda now: None if now.turn is None else now.place):
        of_place = list(group)
        first = [now for now in of_place if not now.turn]
        found.append((place, len(first)))
    return found


def _comes_back(lowering: PlanLowering) -> bool:
    """Whether a chain of waits leads out of a group of pipelines and back into it.

    The program has one round. Two pipelines are in a group if one waits for the other.
    """
    program = lowering.program()
    stands = _stands(lowering, program)
    follows, waits = _edges(program)
    group = {node: node for node in set(stands) if node[1] is not None}

    def root(node: tuple[int, int | None]) -> tuple[int, int | None]:
        while group[node] != node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for earlier, later in waits:
        one = stands[earlier]
        other = stands[later]
        if one[1] is not None and other[1] is not None:
            group[root(one)] = root(other)

    def name(step: int) -> object:
        return root(stands[step]) if stands[step][1] is not None else step

    after: dict[object, set[object]] = {}
    for earlier, later in (*follows, *waits):
        before = name(earlier)
        behind = name(later)
        if before != behind:
            after.setdefault(before, set()).add(behind)
        elif stands[earlier] != stands[later] and (earlier, later) in follows:
            return True
    return _cyclic(after)


def _stands(lowering: PlanLowering, program: Program) -> list[tuple[int, int | None]]:
    """Per step of the program: its block, and the pipeline that it is in, if any."""
    plan_blocks = [block for gpu in lowering.plan.gpus for block in gpu.threadblocks]
    return [
        (number, step.position if plan_block.ops[step.position].name == "pipeline" else None)
        for number, (block, plan_block) in enumerate(zip(program.blocks, plan_blocks, strict=True))
        for step in block.steps
    ]


def _edges(program: Program) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Pairs of steps, the earlier first: neighbours in a block, and signals with their waits."""
    follows = set()
    raised: dict[tuple[int, int], int] = {}
    number = 0
    for block in program.blocks:
        for place, step in enumerate(block.steps):
            if place:
                follows.add((number - 1, number))
            for signal in step.signals:
                raised.setdefault((signal.counter, signal.value), number)
            number += 1
    waits = set()
    steps = (step for block in program.blocks for step in block.steps)
    for number, step in enumerate(steps):
        for wait in step.waits:
            waits.add((raised[wait.counter, wait.value], number))
    return follows, waits


def _cyclic(after: dict[object, set[object]]) -> bool:
    """Whether a graph has a cycle."""
    missing: dict[object, int] = {}
    for others in after.values():
        for other in others:
            missing[other] = missing.get(other, 0) + 1
    ready = [node for node in after if not missing.get(node)]
    left = len(after.keys() | missing.keys())
    while ready:
        node = ready.pop()
        left -= 1
        for other in after.get(node, ()):
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    return left > 0
