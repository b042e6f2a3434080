"""The oracle: every interleaving of a small program, executed with real queues and counters.

It shares nothing with ``verify.asynchronous`` but the dataclasses of a program. States are explored
one by one; a chunk's value is the sorted tuple of the input chunks in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from verify.asynchronous.model import NONE, BlockProgram, Step

NOTHING = -(2**40)
"""A counter that nobody has raised: a wait for any value needs a signal."""

State = tuple[tuple[int, ...], tuple[object, ...], tuple[object, ...], tuple[int, ...]]
"""Where each block stands; memory; what lies in each FIFO; counters."""


@dataclass
class Outcome:
    """What was found over all interleavings; messages are not split."""

    ends: set[tuple[object, ...]] = field(default_factory=set)
    stuck: bool = False
    races: bool = False


def explore(program: BlockProgram, slots: int | None) -> Outcome:
    """All states that can be reached."""
    inputs = zip(program.input_rank.tolist(), program.input_chunk.tolist(), strict=True)
    memory = tuple(None if rank < 0 else ((rank, chunk),) for rank, chunk in inputs)
    start: State = (
        (0,) * len(program.blocks),
        memory,
        ((),) * len(program.fifos),
        (NOTHING,) * len(program.counters),
    )
    outcome = Outcome()
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        at = state[0]
        ready = {
            b: block.steps[at[b]]
            for b, block in enumerate(program.blocks)
            if at[b] < len(block.steps) and _can(block.steps[at[b]], state, slots)
        }
        if not ready:
            over = all(at[b] == len(block.steps) for b, block in enumerate(program.blocks))
            outcome.stuck |= not over
            if over:
                outcome.ends.add(state[1])
        for b, one in ready.items():
            outcome.races |= any(_meet(one, two) for other, two in ready.items() if other != b)
            after = _do(b, one, state)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return outcome


def _can(step: Step, state: State, slots: int | None) -> bool:
    _, _, fifos, counters = state
    if any(counters[counter] < value for counter, value in step.waits):
        return False
    if step.receives != NONE and not fifos[step.receives]:
        return False
    return step.sends == NONE or slots is None or len(fifos[step.sends]) < slots


def _do(b: int, step: Step, state: State) -> State:
    at, old_memory, old_fifos, old_counters = map(list, state)
    terms = [old_memory[a : a + step.count] for a in step.sources]
    if step.receives != NONE:
        terms.append(old_fifos[step.receives][0])
        old_fifos[step.receives] = old_fifos[step.receives][1:]
    total = [
        None if None in parts else tuple(sorted(sum(parts, ())))
        for parts in zip(*terms, strict=True)
    ]
    for a in step.targets:
        old_memory[a : a + step.count] = total
    if step.sends != NONE:
        old_fifos[step.sends] = (*old_fifos[step.sends], tuple(total))
    for counter, value in step.signals:
        old_counters[counter] = max(old_counters[counter], value)
    at[b] += 1
    return tuple(at), tuple(old_memory), tuple(old_fifos), tuple(old_counters)


def _meet(one: Step, two: Step) -> bool:
    def chunks(starts: tuple[int, ...], step: Step) -> set[int]:
        return {a + i for a in starts for i in range(step.count)}

    writes = chunks(one.targets, one), chunks(two.targets, two)
    return bool(
        writes[0] & (writes[1] | chunks(two.sources, two)) or writes[1] & chunks(one.sources, one)
    )
