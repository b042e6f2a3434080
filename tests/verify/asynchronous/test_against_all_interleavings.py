"""Order, races and values against every interleaving of small random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from latecomer.verify.asynchronous.check import check
from latecomer.verify.asynchronous.model import (
    Block,
    BlockProgram,
    Buffer,
    Demand,
    Signal,
    Step,
)
from latecomer.verify.core.verdict import Verdict
from tests.verify.asynchronous.explore import explore

CHUNKS = 3
HOME = (0, 0, CHUNKS)
"""Where the memory of each block's rank begins: blocks 0 and 1 are on rank 0, 2 is on rank 1."""

chunk = st.integers(0, CHUNKS - 1)
# what happens: a local copy, or a message from a block to the next one
happening = st.tuples(
    st.integers(0, 2), st.sampled_from(["cpy", "s-r", "s-rrc", "s-r", "fuse"]), chunk, chunk
)


@st.composite
def programs(draw: st.DrawFn) -> BlockProgram:
    """Three blocks on two ranks. FIFO b leads from block b to the next one.

    What happens is drawn in an order in which it could; then steps are swapped and waits added, so
    that some programs still end and some do not.
    """
    steps: list[list[dict[str, Any]]] = [[], [], []]
    happenings = draw(st.lists(happening, min_size=1, max_size=7))
    for sender, kind, source_chunk, target_chunk in happenings:
        receiver = (sender + 1) % 3
        source = (HOME[sender] + source_chunk,)
        target = (HOME[receiver] + target_chunk,)
        if kind == "cpy":
            steps[sender].append({"sources": source, "targets": (HOME[sender] + target_chunk,)})
            continue
        last = steps[sender][-1] if steps[sender] else {}
        if kind == "fuse" and "receives" in last and "sends" not in last:
            last["sends"] = sender
        else:
            steps[sender].append({"sources": source, "sends": sender})
        extra = target if kind == "s-rrc" else ()
        steps[receiver].append({"sources": extra, "targets": target, "receives": sender})
    for b in range(3):
        if len(steps[b]) > 1 and draw(st.booleans()):
            i = draw(st.integers(0, len(steps[b]) - 2))
            steps[b].insert(i + 1, steps[b].pop(i))

    pairs = st.sampled_from([(0, 1), (1, 0), (1, 2), (0, 2)])
    for waiter, signaller in draw(st.lists(pairs, max_size=3)):
        if steps[waiter] and steps[signaller]:
            raising = draw(st.integers(0, len(steps[signaller]) - 1))
            raised = draw(st.integers(0, 3) | st.just(raising))  # maybe less than before
            steps[signaller][raising]["signals"] = (Signal(signaller, raised),)
            waiting = draw(st.integers(0, len(steps[waiter]) - 1))
            value = draw(st.integers(0, raised))
            steps[waiter][waiting]["waits"] = (Signal(signaller, value),)
    return program_of(steps, draw(st.sampled_from([1, 1, 2, None])))


def program_of(steps: list[list[dict[str, Any]]], slots: int | None) -> BlockProgram:
    """The program of three blocks with these steps."""
    blocks = []
    for b in range(3):
        block_steps = []
        for i, fields in enumerate(steps[b]):
            block_steps.append(Step(text="t", position=i, count=1, **fields))
        blocks.append(Block(HOME[b] // CHUNKS, f"tb {b}", tuple(block_steps)))
    memory = np.arange(2 * CHUNKS)
    return BlockProgram(
        kind="allreduce",
        placement="in place",
        ranks=2,
        blocks=tuple(blocks),
        slots=slots,
        fifos=("f0", "f1", "f2"),
        counters=("c0", "c1", "c2"),
        buffers=(Buffer(0, "i", 0, CHUNKS), Buffer(1, "i", CHUNKS, CHUNKS)),
        addresses=2 * CHUNKS,
        input_rank=memory // CHUNKS,
        input_chunk=memory % CHUNKS,
        demands=(Demand("", memory, memory // CHUNKS, memory % CHUNKS),),
    )


RAISED = [{"signals": (Signal(0, 2),)}, {"signals": (Signal(0, 1),)}]
LOWERED = program_of([RAISED, [], [{"waits": (Signal(0, 2),)}]], None)
"""A counter that is raised to 2 and then, which does nothing, to 1."""


def rendezvous(program: BlockProgram) -> BlockProgram:
    """The same, where each send is followed by a wait until its message has been received."""
    acks = len(program.counters)
    blocks = []
    for block in program.blocks:
        sent = 0
        received = 0
        steps = list[Step]()
        for step in block.steps:
            ack: tuple[Signal, ...] = ()
            if step.receives >= 0:
                received += 1
                ack = (Signal(acks + step.receives, received),)
            wait: tuple[Signal, ...] = ()
            if step.sends >= 0:
                sent += 1
                wait = (Signal(acks + step.sends, sent),)
            steps.append(replace(step, signals=ack))
            steps.append(Step("over", step.position, 0, waits=wait, signals=step.signals))
        blocks.append(replace(block, steps=tuple(steps)))
    names = tuple(f"ack {fifo}" for fifo in program.fifos)
    return replace(program, blocks=tuple(blocks), counters=program.counters + names, slots=None)


@settings(max_examples=150, deadline=None)
@given(programs())
@example(LOWERED)
def test_the_verdict_is_that_of_all_interleavings(program: BlockProgram) -> None:
    results, freedom = check(program)
    bounded = explore(program, program.slots)
    unbounded = explore(program, None)
    free = results["deadlock_free"].verdict is Verdict.PROVED
    assert free == (not bounded.stuck)
    assert freedom.unlimited == (not unbounded.stuck)
    assert freedom.rendezvous == (not explore(rendezvous(program), None).stuck)
    assert not (bounded.stuck and bounded.ends)  # all runs end, or none does

    explored = bounded if free else unbounded
    if results["race_free"].verdict is Verdict.REFUTED:
        assert explored.races
    if results["race_free"].verdict is Verdict.PROVED:
        assert not explored.races
        assert len(explored.ends) == 1
        (end,) = explored.ends
        # what a right program leaves: each rank's own chunk at its place
        own_chunks = tuple(((a // CHUNKS, a % CHUNKS),) for a in range(2 * CHUNKS))
        assert (results["right_values"].verdict is Verdict.PROVED) == (end == own_chunks)

    if free and freedom.slots_needed and program.slots and freedom.slots_needed > 1:
        assert explore(program, freedom.slots_needed - 1).stuck
