"""MSCCL++ plans: made by plan_programs, judged by ``verify_plan`` and plan_oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

from tests.hunt.kinds import Results
from tests.hunt.outcome import Seen
from tests.hunt.plan_oracle import look
from tests.hunt.plan_programs import Plan, make, places_of
from verify.asynchronous.mscclpp import verify_plan


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

    def look(self, draft: Plan, thorough: bool) -> Seen:
        return look(draft, thorough=thorough)

    def smaller(self, draft: Plan) -> Iterator[Plan]:
        """Without a block, an operation, one of each rank; with smaller areas."""
        for rank, gpu in enumerate(draft["gpus"]):
            for number in range(len(gpu["threadblocks"])):
                copy = deepcopy(draft)
                blocks = copy["gpus"][rank]["threadblocks"]
                del blocks[number]
                for at, block in enumerate(blocks):
                    block["id"] = at
                yield copy
        places = places_of(draft)
        for one in places:
            for two in places:
                if one[0] < two[0] and one[1:] == two[1:]:
                    yield _without(draft, [one, two])
        for place in places:
            yield _without(draft, [place])
        for one in places:
            for two in places:
                if one < two and _pair(draft, one, two):
                    yield _without(draft, [one, two])
        for rank, number, at in places:
            op = draft["gpus"][rank]["threadblocks"][number]["ops"][at]
            if "tbg_info" in op:
                copy = deepcopy(draft)
                del copy["gpus"][rank]["threadblocks"][number]["ops"][at]["tbg_info"]
                yield copy


def _pair(draft: Plan, one: tuple[int, int, int], two: tuple[int, int, int]) -> bool:
    names = {draft["gpus"][r]["threadblocks"][b]["ops"][n]["name"] for r, b, n in (one, two)}
    pairs = ({"signal", "wait"}, {"sem_release", "sem_acquire"}, {"barrier"})
    return any(names == pair for pair in pairs)


def _without(draft: Plan, places: list[tuple[int, int, int]]) -> Plan:
    copy = deepcopy(draft)
    for rank, number, at in sorted(places, reverse=True):
        del copy["gpus"][rank]["threadblocks"][number]["ops"][at]
    return copy
