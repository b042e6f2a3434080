"""A program of thread blocks as a text for the checker that was extracted from the proofs.

The text says what ``latecomer.verify.asynchronous.model`` says, number by number: it has no room
for any interpretation. ``proofs/kernel/blocks.ml`` reads it, ``proofs/coq/ThreadBlocks.v`` says
what it means. What is left to be believed of others' formats is what made the program of the file.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from latecomer.verify.asynchronous.model import NONE, BlockProgram, Demand, Signal, Step
from latecomer.verify.asynchronous.sizes import Sizes, limits, may_overtake

FORMAT = "latecomer-blocks/1"


def encode(program: BlockProgram, sizes: Sizes | None) -> bytes:
    """The program as one line of JSON, for every size of messages that ``sizes`` means."""
    lowest = _lowest_value(program)
    largest = program.largest
    inputs = []
    for address in np.flatnonzero(program.input_rank >= 0).tolist():
        rank = int(program.input_rank[address])
        chunk = int(program.input_chunk[address])
        inputs.append([address, rank, chunk])
    blocks = []
    for block in program.blocks:
        blocks.append([_step(step, lowest) for step in block.steps])
    document = {
        "format": FORMAT,
        "ranks": program.ranks,
        "sizes": sorted(limits(largest, sizes)),
        "depth": -1 if program.slots is None else program.slots,
        "extra": int(program.sliced),
        "overtaking": int(may_overtake(largest, sizes, program.sliced)),
        "blocks": blocks,
        "inputs": inputs,
        "demands": [_demand(demand) for demand in program.demands],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _lowest_value(program: BlockProgram) -> int:
    """The lowest value of a counter; there, counters begin at 0 and everything else is above."""
    steps = [step for block in program.blocks for step in block.steps]
    values = [signal.value for step in steps for signal in (*step.waits, *step.signals)]
    return min(values, default=1)


def _step(step: Step, lowest: int) -> list[Any]:
    """A step as the checker reads it; one of no chunks moves nothing through FIFOs."""
    has_messages = step.count > 0
    return [
        step.count,
        list(step.sources),
        list(step.targets),
        step.receives if has_messages else NONE,
        step.sends if has_messages else NONE,
        _signals(step.waits, lowest),
        _signals(step.signals, lowest),
    ]


def _signals(signals: tuple[Signal, ...], lowest: int) -> list[list[int]]:
    """Counters and values, of which the lowest becomes 1."""
    return [[signal.counter, signal.value - lowest + 1] for signal in signals]


def _demand(demand: Demand) -> list[list[int]]:
    columns = (demand.address.tolist(), demand.rank.tolist(), demand.chunk.tolist())
    return [list(row) for row in zip(*columns, strict=True)]
