"""Order, races and values against every interleaving of small random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.verify.asynchronous.explore import explore
from verify.asynchronous.check import check
from verify.asynchronous.model import (
    Block,
    BlockProgram,
    Buffer,
    Demand,
    Signal,
    Step,
)
from verify.core.verdict import Verdict

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
    for one, kind, at, to in draw(st.lists(happening, min_size=1, max_size=7)):
        other = (one + 1) % 3
        source = (HOME[one] + at,)
        target = (HOME[other] + to,)
        if kind == "cpy":
            steps[one].append({"sources": source, "targets": (HOME[one] + to,)})
            continue
        last = steps[one][-1] if steps[one] else {}
        if kind == "fuse" and "receives" in last and "sends" not in last:
            last["sends"] = one
        else:
            steps[one].append({"sources": source, "sends": one})
        extra = target if kind == "s-rrc" else ()
        steps[other].append({"sources": extra, "targets": target, "receives": one})
    for b in range(3):
        if len(steps[b]) > 1 and draw(st.booleans()):
            i = draw(st.integers(0, len(steps[b]) - 2))
            steps[b][i], steps[b][i + 1] = steps[b][i + 1], steps[b][i]
    for b, other in draw(st.lists(st.sampled_from([(0, 1), (1, 0), (1, 2), (0, 2)]), max_size=3)):
        if steps[b] and steps[other]:
            by = draw(st.integers(0, len(steps[other]) - 1))
            raised = draw(st.integers(0, 3) | st.just(by))  # maybe less than before
            steps[other][by]["signals"] = (Signal(other, raised),)
            at = draw(st.integers(0, len(steps[b]) - 1))
            steps[b][at]["waits"] = (Signal(other, draw(st.integers(0, raised))),)
    return made(steps, draw(st.sampled_from([1, 1, 2, None])))


def made(steps: list[list[dict[str, Any]]], slots: int | None) -> BlockProgram:
    """The program of three blocks with these steps."""
    rows = [
        Block(
            HOME[b] // CHUNKS,
            f"tb {b}",
            tuple(Step(text="t", position=i, count=1, **row) for i, row in enumerate(steps[b])),
        )
        for b in range(3)
    ]
    memory = np.arange(2 * CHUNKS)
    return BlockProgram(
        kind="allreduce",
        placement="in place",
        ranks=2,
        blocks=tuple(rows),
        slots=slots,
        fifos=("f0", "f1", "f2"),
        counters=("c0", "c1", "c2"),
        buffers=(Buffer(0, "i", 0, CHUNKS), Buffer(1, "i", CHUNKS, CHUNKS)),
        addresses=2 * CHUNKS,
        input_rank=memory // CHUNKS,
        input_chunk=memory % CHUNKS,
        demands=(Demand("", memory, memory // CHUNKS, memory % CHUNKS),),
    )


RAISED = {"signals": (Signal(0, 2),)}, {"signals": (Signal(0, 1),)}
LOWERED = made([[*RAISED], [], [{"waits": (Signal(0, 2),)}]], None)
"""A counter that is raised to 2 and then, which does nothing, to 1."""


def rendezvous(program: BlockProgram) -> BlockProgram:
    """The same, where each send is followed by a wait until its message has been received."""
    acks = len(program.counters)
    blocks = []
    for block in program.blocks:
        sent = 0
        taken = 0
        steps = list[Step]()
        for step in block.steps:
            sent = sent + (step.sends >= 0)
            taken = taken + (step.receives >= 0)
            ack = (Signal(acks + step.receives, taken),) if step.receives >= 0 else ()
            wait = (Signal(acks + step.sends, sent),) if step.sends >= 0 else ()
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
    if results["race_free"].verdict is Verdict.REFUTED:
        assert (bounded if free else unbounded).races
    if results["race_free"].verdict is Verdict.PROVED:
        seen = bounded if free else unbounded
        assert not seen.races
        assert len(seen.ends) == 1
        (end,) = seen.ends
        kept = tuple(((address // CHUNKS, address % CHUNKS),) for address in range(2 * CHUNKS))
        assert (results["right_values"].verdict is Verdict.PROVED) == (end == kept)
    if free and freedom.slots_needed and program.slots and freedom.slots_needed > 1:
        assert explore(program, freedom.slots_needed - 1).stuck
