"""MSCCL XML files: made by xml_programs, judged by ``verify_xml`` and xml_oracle."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

from latecomer.verify.asynchronous.msccl import verify_xml
from tests.hunt.kinds import Results
from tests.hunt.outcome import Outcome
from tests.hunt.xml_oracle import look
from tests.hunt.xml_programs import GIVES, TAKES, Block, Draft, Position, make, steps_of

SIMPLEST_STEP = {"cnt": 1, "depid": -1, "deps": -1, "hasdep": 0, "srcoff": 0, "dstoff": 0}


class XmlKind:
    """See :class:`tests.hunt.kinds.Kind`."""

    name = "xml"
    suffix = ".xml"

    def make(self, seed: int) -> Draft:
        return make(seed)

    def text(self, draft: Draft) -> bytes:
        return draft.text()

    def verdict(self, draft: Draft) -> Results:
        return verify_xml(draft.text()).results

    def look(self, draft: Draft, thorough: bool) -> Outcome:
        return look(draft.text(), values_of_races=thorough)

    def smaller(self, draft: Draft) -> Iterator[Draft]:
        """Without a block, a message, a step; with simpler steps and sizes."""
        for rank, blocks in enumerate(draft.gpus):
            for number in range(len(blocks)):
                yield _without_block(draft, rank, number)

        positions = steps_of(draft)
        for position in positions:
            partner = _partner(draft, position)
            if partner is not None:
                yield _without_steps(draft, [position, partner])

        for position in positions:
            yield _without_steps(draft, [position])

        for position in positions:
            yield from _with_simpler_step(draft, position)

        yield from _with_simpler_head(draft)


def _with_simpler_step(draft: Draft, position: Position) -> Iterator[Draft]:
    """With one attribute of a step as simple as it can be."""
    rank, number, index = position
    step = draft.gpus[rank][number].steps[index]
    for name, simplest in SIMPLEST_STEP.items():
        if step[name] != simplest:
            smaller = deepcopy(draft)
            simpler = smaller.gpus[rank][number].steps[index]
            simpler[name] = simplest
            if name == "depid":
                simpler["deps"] = -1
            yield smaller


def _with_simpler_head(draft: Draft) -> Iterator[Draft]:
    """Without a bound on sizes, with less scratch, with one placement."""
    for name in ("minBytes", "maxBytes"):
        if draft.head[name]:
            smaller = deepcopy(draft)
            smaller.head[name] = 0
            yield smaller

    for rank, chunks in enumerate(draft.scratch):
        if chunks:
            smaller = deepcopy(draft)
            smaller.scratch[rank] -= 1
            yield smaller

    if draft.head["inplace"] and draft.head["outofplace"]:
        for name in ("inplace", "outofplace"):
            smaller = deepcopy(draft)
            smaller.head[name] = 0
            yield smaller


def _without_block(draft: Draft, rank: int, number: int) -> Draft:
    smaller = deepcopy(draft)
    removed = smaller.gpus[rank].pop(number)
    for block in smaller.gpus[rank]:
        for step in block.steps:
            if step["depid"] == number:
                step["depid"] = -1
                step["deps"] = -1
            elif step["depid"] > number:
                step["depid"] -= 1

    for peer, blocks in enumerate(smaller.gpus):
        for block in blocks:
            if peer == removed.send and block.recv == rank and block.chan == removed.chan:
                _drop(block, TAKES)
            if peer == removed.recv and block.send == rank and block.chan == removed.chan:
                _drop(block, GIVES)
    return smaller


def _drop(block: Block, kinds: set[str]) -> None:
    """Drop the steps of a connection whose other end is gone."""
    block.steps[:] = [step for step in block.steps if step["type"] not in kinds]


def _partner(draft: Draft, position: Position) -> Position | None:
    """Where the message of a sending step is received, if each only does that."""
    rank, number, index = position
    block = draft.gpus[rank][number]
    if block.steps[index]["type"] != "s" or not 0 <= block.send < len(draft.gpus):
        return None
    turn = sum(step["type"] in GIVES for step in block.steps[:index])
    for peer_block, candidate in enumerate(draft.gpus[block.send]):
        if candidate.recv == rank and candidate.chan == block.chan:
            takes = [n for n, step in enumerate(candidate.steps) if step["type"] in TAKES]
            if turn < len(takes):
                return block.send, peer_block, takes[turn]
    return None


def _without_steps(draft: Draft, positions: list[Position]) -> Draft:
    smaller = deepcopy(draft)
    for rank, number, index in sorted(positions, reverse=True):
        del smaller.gpus[rank][number].steps[index]
        for block in smaller.gpus[rank]:
            for step in block.steps:
                if step["depid"] == number and step["deps"] > index:
                    step["deps"] -= 1
    return smaller
