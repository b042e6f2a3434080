"""Programs of the model: made by model_programs, judged by ``check`` and model_oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

import numpy as np

from latecomer.verify.asynchronous.check import check
from latecomer.verify.asynchronous.model import Block, BlockProgram, Buffer, Demand, Signal, Step
from latecomer.verify.asynchronous.sizes import Sizes
from tests.hunt.kinds import Results
from tests.hunt.model_oracle import look
from tests.hunt.model_programs import AREAS, CHUNKS, Draft, Position, make, positions_of
from tests.hunt.model_programs import Step as ModelStep
from tests.hunt.outcome import Outcome


def program_of(draft: Draft) -> BlockProgram:
    """The program that ``verify`` is asked about."""
    blocks = []
    for number, (home, steps) in enumerate(zip(draft["homes"], draft["blocks"], strict=True)):
        model_steps = []
        for position, step in enumerate(steps):
            model_steps.append(
                Step(
                    text="step",
                    position=position,
                    count=step["count"],
                    sources=tuple(step["sources"]),
                    targets=tuple(step["targets"]),
                    receives=step["receives"],
                    sends=step["sends"],
                    waits=_signals(step["waits"]),
                    signals=_signals(step["signals"]),
                )
            )
        blocks.append(Block(home, f"tb {number}", tuple(model_steps)))

    input_rank = np.full(draft["addresses"], -1)
    input_chunk = np.full(draft["addresses"], -1)
    for rank in range(draft["ranks"]):
        low = rank * AREAS * CHUNKS
        input_rank[low : low + CHUNKS] = rank
        input_chunk[low : low + CHUNKS] = np.arange(CHUNKS)

    rows = np.array(draft["demand"], np.int64).reshape(-1, 3)
    return BlockProgram(
        kind="allreduce",
        placement="in place",
        ranks=draft["ranks"],
        blocks=tuple(blocks),
        slots=draft["slots"],
        fifos=tuple(f"FIFO {n}" for n in range(draft["fifos"])),
        counters=tuple(f"counter {n}" for n in range(len(draft["blocks"]))),
        buffers=(Buffer(0, "m", 0, draft["addresses"]),),
        addresses=draft["addresses"],
        input_rank=input_rank,
        input_chunk=input_chunk,
        demands=(Demand("", rows[:, 0], rows[:, 1], rows[:, 2]),),
    )


def _signals(pairs: list[list[int]]) -> tuple[Signal, ...]:
    return tuple(Signal(counter, value) for counter, value in pairs)


class ModelKind:
    """See :class:`tests.hunt.kinds.Kind`."""

    name = "model"
    suffix = ".model.json"

    def make(self, seed: int) -> Draft:
        return make(seed)

    def text(self, draft: Draft) -> bytes:
        return json.dumps(draft).encode()

    def verdict(self, draft: Draft) -> Results:
        sizes = None
        if draft["sizes"] is not None:
            sizes = Sizes(*draft["sizes"])
        return check(program_of(draft), sizes)[0]

    def look(self, draft: Draft, thorough: bool) -> Outcome:
        return look(draft, values_of_races=thorough)

    def smaller(self, draft: Draft) -> Iterator[Draft]:
        """Without a block, a step, a message, a demand, a wait."""
        for block in range(len(draft["blocks"])):
            if draft["blocks"][block]:
                smaller = deepcopy(draft)
                smaller["blocks"][block] = []
                yield smaller

        positions = positions_of(draft)
        for sender in positions:
            fifo = _step(draft, sender)["sends"]
            for receiver in positions:
                if fifo >= 0 and _step(draft, receiver)["receives"] == fifo:
                    yield _without(draft, [sender, receiver])

        for position in positions:
            yield _without(draft, [position])

        for position in positions:
            for name, simplest in (("waits", []), ("signals", []), ("count", 1)):
                if _step(draft, position)[name] != simplest:
                    smaller = deepcopy(draft)
                    _step(smaller, position)[name] = simplest
                    yield smaller

        for row in range(len(draft["demand"])):
            smaller = deepcopy(draft)
            del smaller["demand"][row]
            yield smaller

        if draft["sizes"] is not None:
            yield draft | {"sizes": None}


def _step(draft: Draft, position: Position) -> ModelStep:
    block, index = position
    step: ModelStep = draft["blocks"][block][index]
    return step


def _without(draft: Draft, positions: list[Position]) -> Draft:
    smaller = deepcopy(draft)
    for block, index in sorted(positions, reverse=True):
        del smaller["blocks"][block][index]
    return smaller
