"""Confirms a verdict by execution: looks for a run that hangs, or ends with a wrong sum.

A wait cycle needs no search: no interleaving gets past it. A race shows when one of its two steps
is held until nothing else can run; which of the two, and whether at coarse or fine messages, is
tried, and where that does not do, many drawn interleavings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.corpus.executor import Held, Outcome, Run
from bench.corpus.messages import declared
from bench.corpus.parse import File

STEP = re.compile(r"rank (\d+) tb (\d+) step (\d+)")


@dataclass(frozen=True)
class Seen:
    """A run: what it was given, and how it ended."""

    in_place: bool
    per_message: int
    seed: int
    held: Held
    outcome: Outcome


def counterexample(file: File, hints: Sequence[str] = (), seeds: int = 20) -> Seen | None:
    """A run at a declared size that does not end right; None where all that were tried do.

    Args:
        hints: lines in which steps are named as ``rank 0 tb 3 step 2``; each is held in turn.
    """
    for held, seed, per_message in _tries(file, hints, seeds):
        for in_place in file.modes:
            run = Run(file, in_place=in_place, per_message=per_message, seed=seed, held=held)
            outcome = run.outcome()
            if outcome.kind != "right":
                return Seen(in_place, per_message, seed, held, outcome)
    return None


def _tries(file: File, hints: Sequence[str], seeds: int) -> Iterator[tuple[Held, int, int]]:
    sizes = declared(file)
    ends = sorted({sizes[0], sizes[-1]})
    steps = set()
    for line in hints:
        for rank, block, step in STEP.findall(line):
            steps.add((int(rank), int(block), int(step)))
    holds = []
    for rank, block, step in sorted(steps):
        held = _held(file, rank, block, step)
        if held:
            holds.append(held)

    for per_message in ends:
        yield frozenset(), 0, per_message
    for held in holds:
        for per_message in ends:
            for seed in range(3):
                yield held, seed, per_message
    for seed in range(1, seeds):
        yield frozenset(), seed, sizes[seed % len(sizes)]


def _held(file: File, rank: int, block_id: int, step: int) -> Held:
    """The transmission that stands for a step of a block."""
    for block in file.blocks:
        if (block.rank, block.id) == (rank, block_id):
            for number, transmission in enumerate(block.program):
                if step in transmission.steps:
                    return frozenset({(rank, block_id, number)})
    return frozenset()
