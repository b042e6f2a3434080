"""Programs of the model: made by model_programs, judged by ``check`` and model_oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

import numpy as np

from tests.hunt.kinds import Results
from tests.hunt.model_oracle import look
from tests.hunt.model_programs import CHUNKS, Draft, make, places_of
from tests.hunt.outcome import Seen
from verify.asynchronous.check import check
from verify.asynchronous.model import Block, BlockProgram, Buffer, Demand, Signal, Step
from verify.asynchronous.sizes import Sizes


def program_of(draft: Draft) -> BlockProgram:
    """The program that ``verify`` is asked about."""
    blocks = []
    for number, (home, steps) in enumerate(zip(draft["homes"], draft["blocks"], strict=True)):
        made = []
        for at, step in enumerate(steps):
            made.append(
                Step(
                    text="step",
                    position=at,
                    count=step["count"],
                    sources=tuple(step["sources"]),
                    targets=tuple(step["targets"]),
                    receives=step["receives"],
                    sends=step["sends"],
                    waits=tuple(Signal(*wait) for wait in step["waits"]),
                    signals=tuple(Signal(*signal) for signal in step["signals"]),
                )
            )
        blocks.append(Block(home, f"tb {number}", tuple(made)))
    input_rank = np.full(draft["addresses"], -1)
    input_chunk = np.full(draft["addresses"], -1)
    for rank in range(draft["ranks"]):
        low = rank * 3 * CHUNKS
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

    def look(self, draft: Draft, thorough: bool) -> Seen:
        return look(draft, values_of_races=thorough)

    def smaller(self, draft: Draft) -> Iterator[Draft]:
        """Without a block, a step, a message, a demand, a wait."""
        for block in range(len(draft["blocks"])):
            if draft["blocks"][block]:
                copy = deepcopy(draft)
                copy["blocks"][block] = []
                yield copy
        places = places_of(draft)
        for one in places:
            fifo = draft["blocks"][one[0]][one[1]]["sends"]
            for two in places:
                if fifo >= 0 and draft["blocks"][two[0]][two[1]]["receives"] == fifo:
                    yield _without(draft, [one, two])
        for place in places:
            yield _without(draft, [place])
        for block, at in places:
            for name, value in (("waits", []), ("signals", []), ("count", 1)):
                if draft["blocks"][block][at][name] != value:
                    copy = deepcopy(draft)
                    copy["blocks"][block][at][name] = value
                    yield copy
        for row in range(len(draft["demand"])):
            copy = deepcopy(draft)
            del copy["demand"][row]
            yield copy
        if draft["sizes"] is not None:
            yield draft | {"sizes": None}


def _without(draft: Draft, places: list[tuple[int, int]]) -> Draft:
    copy = deepcopy(draft)
    for block, at in sorted(places, reverse=True):
        del copy["blocks"][block][at]
    return copy
