"""A naive judge of losses that shares no code with ``verify``: it runs the document without them.

Values are counters of contributions, kept for every (rank, chunk) of the whole schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

Entry = tuple[int, int, int]
"""(rank, chunk, contribution)"""


class Ending(NamedTuple):
    missing: frozenset[Entry]
    twice: frozenset[Entry]
    differ: bool


def transfers(doc: dict[str, Any]) -> list[list[Any]]:
    return [move for phase in doc["phases"] for moves in phase["rounds"] for move in moves]


def ending(
    doc: dict[str, Any], lost: AbstractSet[int], blank: AbstractSet[int] = frozenset()
) -> Ending:
    """How the schedule ends if the transfers with these numbers, in file order, do not arrive.

    ``blank`` ones arrive with nothing in them: a blank copy leaves nothing, not what was there.
    """
    ranks, chunks = range(doc["ranks"]), range(doc["chunks"])
    state = {(r, c): Counter([r]) for r in ranks for c in chunks}
    number = 0
    for phase in doc["phases"]:
        for moves in phase["rounds"]:
            before = dict(state)
            for src, dst, chunk, op in moves:
                if number not in lost:
                    kept = state[dst, chunk] if op == "reduce" else Counter()
                    came = Counter() if number in blank else before[src, chunk]
                    state[dst, chunk] = kept + came
                number += 1
    counts = {(r, c, q): value[q] for (r, c), value in state.items() for q in ranks}
    return Ending(
        frozenset(entry for entry, count in counts.items() if count == 0),
        frozenset(entry for entry, count in counts.items() if count > 1),
        any(state[r, c] != state[0, c] for r in ranks for c in chunks),
    )
