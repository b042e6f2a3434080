"""What is said of a wrong program, word for word: ``evidence.txt`` has the report on every fault.

python -m tests.verify.asynchronous.test_evidence      writes the file anew, to be read
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.render import render
from tests.verify.asynchronous.algorithms import (
    Algorithm,
    algorithm,
    block,
    changed,
    pair_allreduce,
    ring_allgather,
    ring_allreduce,
    step,
    xml,
)
from tests.verify.asynchronous.test_msccl import OUT, PLANTED, exchange

PAGE = Path(__file__).with_name("evidence.txt")


def cycles(*lengths: int) -> Algorithm:
    """Ranks in cycles, each of which receives from the one before it, and then sends on."""
    gpus = []
    first = 0
    for length in lengths:
        for rank in range(length):
            after = first + (rank + 1) % length
            before = first + (rank - 1) % length
            gpus.append([block(after, before, [step("rrc"), step("s")])])
        first += length
    return algorithm("allreduce", 1, gpus)


def exchanged(steps: list[dict[str, Any]]) -> Algorithm:
    """Two ranks that do the same with each other."""
    return algorithm("allreduce", 2, [[block(1 - rank, 1 - rank, steps)] for rank in range(2)])


def full(sends: int) -> Algorithm:
    """Both ranks send so often before they receive."""
    return exchanged([step("s")] * sends + [step("rrc")] * sends)


def one_way(sends: int, receives: int) -> Algorithm:
    """Rank 0 sends so many messages, and rank 1 receives so many."""
    gpus = [block(1, -1, [step("s")] * sends), block(-1, 0, [step("r")] * receives)]
    return algorithm("allreduce", 1, [[tb] for tb in gpus])


def comes_back(to: int) -> Algorithm:
    """Two chunks are forwarded one by one, into others than those that they were read from."""
    rank_0 = [block(1, -1, [step("s", 3, cnt=2)]), block(-1, 1, [step("r", to, cnt=2)])]
    return algorithm("allreduce", 6, [rank_0, [block(0, 0, [step("rcs", 4, cnt=2)])]])


def kept_in_order(by_slots: bool) -> Algorithm:
    """Two blocks of rank 1 write one chunk; the second hears of rank 0's third or first message."""
    flagged = [step("s", hasdep=int(number == 2 * by_slots)) for number in range(3)]
    comes = [step("r", 1), step("r"), step("r")]
    later = block(1, -1, [step("s", depid=0, deps=2 * by_slots)], chan=1)
    gpus = [[block(1, -1, flagged), later], [block(-1, 0, comes), block(-1, 0, [step("r", 1)], 1)]]
    return algorithm("allreduce", 2, gpus)


def in_two_parts(count: int, first: int, least: int) -> Algorithm:
    """Rank 0 sends so many chunks in one step, rank 1 receives them in two."""
    parts = [step("r", 0, cnt=first), step("r", first, cnt=count - first)]
    gpus = [block(1, -1, [step("s", cnt=count)]), block(-1, 0, parts)]
    return algorithm("allreduce", count, [[tb] for tb in gpus], minBytes=least)


def racing(algo: Algorithm) -> Algorithm:
    """Another block of rank 0 reads two chunks while they change."""
    reads = block(-1, -1, [step("cpy", dstbuf="s", cnt=2)])
    return changed(algo, lambda algo: algo["gpus"][0].append(reads))


CASES: dict[str, Callable[[], Algorithm]] = {
    **{name: partial(changed, algo, fault) for name, (algo, fault, _, _) in PLANTED.items()},
    "right": pair_allreduce,
    "right, with LL": lambda: ring_allgather(3, proto="LL", minBytes=2**12, maxBytes=2**21, **OUT),
    "right, at one size": lambda: exchange(2, minBytes=4096, maxBytes=4096),
    "a copy into itself": lambda: changed(
        ring_allreduce(3, 2, maxBytes=2**21),
        lambda algo: algo["gpus"][1][0]["steps"].append(step("cpy", 2, dstoff=3, cnt=2)),
    ),
    "the shortest of three cycles": lambda: cycles(3, 2, 4),
    "full from some size on": lambda: exchange(4),
    "full from some size on, with LL": lambda: exchange(9, proto="LL"),
    "full at every size": lambda: full(3),
    "agreed on as long as messages are large": lambda: in_two_parts(5, 3, 5 * (2**21 // 3)),
    "agreed on as long as messages have 71 chunks": lambda: in_two_parts(72, 71, 0),
    "not agreed on at any size": lambda: in_two_parts(5, 1, 0),
    "not agreed on from the smallest size on": lambda: in_two_parts(5, 4, 5 * 650_000),
    "nobody sends": lambda: one_way(1, 2),
    "nobody takes": lambda: one_way(3, 0),
    "taken too seldom": lambda: one_way(4, 1),
    "much is missing": lambda: algorithm("allreduce", 1, [[] for _ in range(12)]),
    "added too often": lambda: exchanged([step("s"), step("rrc")] * 3),
    "added beyond all count": lambda: exchanged([step("s"), step("rrc")] * 33),
    "a race at finer messages": lambda: comes_back(4),
    "no race, as it comes to other chunks": lambda: comes_back(0),
    "in order by slots": lambda: kept_in_order(True),
    "in no order": lambda: kept_in_order(False),
    "a race, and stuck from some size on": lambda: racing(exchange(9, maxBytes=2**30)),
    "a race, and stuck": lambda: racing(full(3)),
}


def told(name: str) -> str:
    return render(name, verify_xml(xml(CASES[name]())))


@pytest.mark.parametrize("name", CASES)
def test_every_word(name: str) -> None:
    pages = dict(zip(CASES, PAGE.read_text().split("\n\n"), strict=True))
    assert told(name) == pages[name].rstrip("\n")


if __name__ == "__main__":
    PAGE.write_text("\n\n".join(map(told, CASES)) + "\n")
