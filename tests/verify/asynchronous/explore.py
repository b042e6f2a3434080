"""The oracle: every interleaving of a small program, executed with real queues and counters.

It shares nothing with ``latecomer.verify.asynchronous`` but the dataclasses of a program. States
are explored one by one; a chunk's value is the sorted tuple of the input chunks in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from latecomer.verify.asynchronous.model import NONE, BlockProgram, Step

NOTHING = -(2**40)
"""A counter that nobody has raised: a wait for any value needs a signal."""


class State(NamedTuple):
    """Where each block stands; memory; what lies in each FIFO; counters."""

    positions: tuple[int, ...]
    memory: tuple[Any, ...]
    fifos: tuple[tuple[Any, ...], ...]
    counters: tuple[int, ...]


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
    start = State(
        positions=(0,) * len(program.blocks),
        memory=memory,
        fifos=((),) * len(program.fifos),
        counters=(NOTHING,) * len(program.counters),
    )
    outcome = Outcome()
    reached = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        unfinished = _next_steps(program, state)
        ready = {b: step for b, step in unfinished.items() if _can(step, state, slots)}
        if unfinished and not ready:
            outcome.stuck = True
        if not unfinished:
            outcome.ends.add(state.memory)

        for first, second in combinations(ready.values(), 2):
            outcome.races |= _meet(first, second)
        for b, step in ready.items():
            after = _do(b, step, state)
            if after not in reached:
                reached.add(after)
                todo.append(after)
    return outcome


def _next_steps(program: BlockProgram, state: State) -> dict[int, Step]:
    """The next step of each block that has not ended."""
    steps = {}
    for b, block in enumerate(program.blocks):
        if state.positions[b] < len(block.steps):
            steps[b] = block.steps[state.positions[b]]
    return steps


def _can(step: Step, state: State, slots: int | None) -> bool:
    """Whether a step can happen now."""
    if any(state.counters[counter] < value for counter, value in step.waits):
        return False
    if step.receives != NONE and not state.fifos[step.receives]:
        return False
    return step.sends == NONE or slots is None or len(state.fifos[step.sends]) < slots


def _do(b: int, step: Step, state: State) -> State:
    """The state after the next step of block b."""
    positions = list(state.positions)
    memory = list(state.memory)
    fifos = list(state.fifos)
    counters = list(state.counters)

    terms = [memory[a : a + step.count] for a in step.sources]
    if step.receives != NONE:
        terms.append(fifos[step.receives][0])
        fifos[step.receives] = fifos[step.receives][1:]
    total = []
    for parts in zip(*terms, strict=True):
        total.append(None if None in parts else tuple(sorted(sum(parts, ()))))

    for a in step.targets:
        memory[a : a + step.count] = total
    if step.sends != NONE:
        fifos[step.sends] = (*fifos[step.sends], tuple(total))
    for counter, value in step.signals:
        counters[counter] = max(counters[counter], value)
    positions[b] += 1
    return State(tuple(positions), tuple(memory), tuple(fifos), tuple(counters))


def _meet(first: Step, second: Step) -> bool:
    """Whether two steps touch one chunk of memory, one of them writing."""
    first_writes = _chunks(first.targets, first)
    second_writes = _chunks(second.targets, second)
    first_touches = first_writes | _chunks(first.sources, first)
    second_touches = second_writes | _chunks(second.sources, second)
    return bool(first_writes & second_touches or second_writes & first_touches)


def _chunks(starts: tuple[int, ...], step: Step) -> set[int]:
    return {start + i for start in starts for i in range(step.count)}
