"""MSCCL++ plans: made by plan_programs, judged by ``verify_plan`` and plan_oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

from latecomer.verify.asynchronous.mscclpp import verify_plan
from tests.hunt.kinds import Results
from tests.hunt.outcome import Outcome
from tests.hunt.plan_oracle import look
from tests.hunt.plan_programs import Plan, Position, make, positions_of


class PlanKind:
    """See :class:`tests.hunt.kinds.Kind`."""

    name = "plan"
    suffix = ".json"

    def make(self, seed: int) -> Plan:
        return make(seed)

    def text(self, draft: Plan) -> bytes:
        return json.dumps(draft).encode()

    def verdict(self, draft: Plan) -> Results:
        return verify_plan(self.text(draft)).results

    def look(self, draft: Plan, thorough: bool) -> Outcome:
        return look(draft, thorough=thorough)

    def smaller(self, draft: Plan) -> Iterator[Plan]:
        """Without a block, an operation, one of each rank; with smaller areas."""
        yield from _without_a_block(draft)

        positions = positions_of(draft)
        for first in positions:
            for second in positions:
                if first[0] < second[0] and first[1:] == second[1:]:
                    yield _without(draft, [first, second])

        for position in positions:
            yield _without(draft, [position])

        for first in positions:
            for second in positions:
                if first < second and _belong_together(draft, first, second):
                    yield _without(draft, [first, second])

        for rank, number, index in positions:
            if "tbg_info" in draft["gpus"][rank]["threadblocks"][number]["ops"][index]:
                smaller = deepcopy(draft)
                del smaller["gpus"][rank]["threadblocks"][number]["ops"][index]["tbg_info"]
                yield smaller


def _without_a_block(draft: Plan) -> Iterator[Plan]:
    """The plan without one of its blocks; those after it move up by one number."""
    for rank, gpu in enumerate(draft["gpus"]):
        for number in range(len(gpu["threadblocks"])):
            smaller = deepcopy(draft)
            blocks = smaller["gpus"][rank]["threadblocks"]
            del blocks[number]
            for new_number, block in enumerate(blocks):
                block["id"] = new_number
            yield smaller


def _belong_together(draft: Plan, first: Position, second: Position) -> bool:
    """Whether one of two operations makes little sense without the other."""
    names = set()
    for rank, number, index in (first, second):
        operation = draft["gpus"][rank]["threadblocks"][number]["ops"][index]
        names.add(operation["name"])
    return names in ({"signal", "wait"}, {"sem_release", "sem_acquire"}, {"barrier"})


def _without(draft: Plan, positions: list[Position]) -> Plan:
    smaller = deepcopy(draft)
    for rank, number, index in sorted(positions, reverse=True):
        del smaller["gpus"][rank]["threadblocks"][number]["ops"][index]
    return smaller
