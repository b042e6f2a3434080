"""MSCCL XML files: made by xml_programs, judged by ``verify_xml`` and xml_oracle."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

from tests.hunt.kinds import Results
from tests.hunt.outcome import Seen
from tests.hunt.xml_oracle import look
from tests.hunt.xml_programs import GIVES, TAKES, Block, Draft, make, steps_of
from verify.asynchronous.msccl import verify_xml


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

    def look(self, draft: Draft, thorough: bool) -> Seen:
        return look(draft.text(), values_of_races=thorough)

    def smaller(self, draft: Draft) -> Iterator[Draft]:
        """Without a block, a message, a step; with simpler steps and sizes."""
        for rank, blocks in enumerate(draft.gpus):
            for number in range(len(blocks)):
                yield _without_block(draft, rank, number)
        places = steps_of(draft)
        for place in places:
            partner = _partner(draft, place)
            if partner is not None:
                yield _without_steps(draft, [place, partner])
        for place in places:
            yield _without_steps(draft, [place])
        for rank, number, at in places:
            step = draft.gpus[rank][number].steps[at]
            simpler = {"cnt": 1, "depid": -1, "deps": -1, "hasdep": 0, "srcoff": 0, "dstoff": 0}
            for name, value in simpler.items():
                if step[name] != value:
                    copy = deepcopy(draft)
                    copy.gpus[rank][number].steps[at][name] = value
                    if name == "depid":
                        copy.gpus[rank][number].steps[at]["deps"] = -1
                    yield copy
        for name in ("minBytes", "maxBytes"):
            if draft.head[name]:
                copy = deepcopy(draft)
                copy.head[name] = 0
                yield copy
        for rank, chunks in enumerate(draft.scratch):
            if chunks:
                copy = deepcopy(draft)
                copy.scratch[rank] -= 1
                yield copy
        if draft.head["inplace"] and draft.head["outofplace"]:
            for name in ("inplace", "outofplace"):
                copy = deepcopy(draft)
                copy.head[name] = 0
                yield copy


def _without_block(draft: Draft, rank: int, number: int) -> Draft:
    copy = deepcopy(draft)
    gone = copy.gpus[rank].pop(number)
    for block in copy.gpus[rank]:
        for step in block.steps:
            if step["depid"] == number:
                step["depid"] = step["deps"] = -1
            elif step["depid"] > number:
                step["depid"] -= 1
    for other, blocks in enumerate(copy.gpus):
        for block in blocks:
            if other == gone.send and block.recv == rank and block.chan == gone.chan:
                _keep(block, block.recv, TAKES)
            if other == gone.recv and block.send == rank and block.chan == gone.chan:
                _keep(block, block.send, GIVES)
    return copy


def _keep(block: Block, peer: int, kinds: set[str]) -> None:
    """Without the steps of a connection whose other end is gone."""
    for at in reversed(range(len(block.steps))):
        if block.steps[at]["type"] in kinds:
            del block.steps[at]


def _partner(draft: Draft, place: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Where the message of a sending step is received, if each only does that."""
    rank, number, at = place
    block = draft.gpus[rank][number]
    if block.steps[at]["type"] != "s" or not 0 <= block.send < len(draft.gpus):
        return None
    turn = sum(step["type"] in GIVES for step in block.steps[:at])
    for other, candidate in enumerate(draft.gpus[block.send]):
        if candidate.recv == rank and candidate.chan == block.chan:
            takes = [n for n, step in enumerate(candidate.steps) if step["type"] in TAKES]
            if turn < len(takes):
                return block.send, other, takes[turn]
    return None


def _without_steps(draft: Draft, places: list[tuple[int, int, int]]) -> Draft:
    copy = deepcopy(draft)
    for rank, number, at in sorted(places, reverse=True):
        del copy.gpus[rank][number].steps[at]
        for block in copy.gpus[rank]:
            for step in block.steps:
                if step["depid"] == number and step["deps"] > at:
                    step["deps"] -= 1
    return copy
