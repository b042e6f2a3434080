"""Faults planted into right MSCCL files: every kind that people have been seen to make.

Each is a change at one place of the text of a file; ``faults`` lists all places of all kinds.
"""

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import islice, pairwise
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from synth import standard
from synth.export.msccl_xml import encode
from tests.synth.export.schedules import straggler

Change = Callable[[Element], None]


class Fault(NamedTuple):
    """A kind, where it was planted, and the file that it makes."""

    kind: str
    place: str
    data: bytes


def bases() -> dict[str, bytes]:
    """Right files, small, with waits of all sorts."""
    return {
        "straggler 3": encode(straggler(3)),
        "straggler 5": encode(straggler(5), "LL"),
        "straggler 6, late 0": encode(straggler(6, late=0, chunks=3), "LL128"),
        "ring 4": encode(standard.ring(4)),
        "direct 4": encode(standard.direct(4)),
        "allgather 4": forwarding_allgather(4),
    }


def forwarding_allgather(n: int) -> bytes:
    """A ring that forwards while it receives, out of place, with a copy of one's own part."""
    root = Element(
        "algo", name="ring", proto="Simple", nchannels="1", nchunksperloop=str(n), ngpus=str(n),
        coll="allgather", inplace="0", outofplace="1", minBytes="0", maxBytes="0",
    )  # fmt: skip
    for rank in range(n):
        chunks = {"i_chunks": "1", "o_chunks": str(n), "s_chunks": "0"}
        gpu = ElementTree.SubElement(root, "gpu", id=str(rank), **chunks)
        around = {"send": str((rank + 1) % n), "recv": str((rank - 1) % n)}
        block = ElementTree.SubElement(gpu, "tb", id="0", chan="0", **around)
        _step(block, "s", "i", 0, "o", rank)
        for hop in range(1, n):
            of = (rank - hop) % n
            _step(block, "rcs" if hop < n - 1 else "r", "o", of, "o", of)
        own = ElementTree.SubElement(gpu, "tb", id="1", send="-1", recv="-1", chan="0")
        _step(own, "cpy", "i", 0, "o", rank)
    return ElementTree.tostring(root)


def _step(block: Element, kind: str, src: str, srcoff: int, dst: str, dstoff: int) -> None:
    ElementTree.SubElement(
        block, "step", s=str(len(block)), type=kind, srcbuf=src, srcoff=str(srcoff), dstbuf=dst,
        dstoff=str(dstoff), cnt="1", depid="-1", deps="-1", hasdep="0",
    )  # fmt: skip


def faults(name: str, data: bytes) -> Iterator[Fault]:
    """All faults of one change in a file."""
    root = ElementTree.fromstring(data)
    for kind, place, change in _changes(root):
        broken = deepcopy(root)
        change(broken)
        yield Fault(kind, f"{name}, {place}", ElementTree.tostring(broken))


def _changes(root: Element) -> Iterator[tuple[str, str, Change]]:
    chunks = int(root.get("nchunksperloop", ""))
    for g, gpu in enumerate(root):
        waiting = []
        for b, block in enumerate(gpu):
            for s, step in enumerate(block):
                at = g, b, s
                place = f"gpu {g} tb {b} step {s}"
                if step.get("depid") != "-1":
                    if step.get("type") != "nop":
                        yield "dropped dep", place, _set(at, depid="-1", deps="-1")
                    waiting.append(at)
                    earlier = int(step.get("deps", "")) - 1
                    if earlier >= 0:
                        yield "weakened dep", place, _set(at, deps=str(earlier))
                if step.get("hasdep") == "1":
                    yield "unpublished flag", place, _set(at, hasdep="0")
                if step.get("type") == "nop":
                    continue
                yield "dropped step", place, _drop(at)
                side = "srcoff" if step.get("type") == "s" else "dstoff"
                other = str((int(step.get(side, "")) + 1) % chunks)
                yield "swapped offset", place, _set(at, **{side: other})
                if step.get("type") == "r":
                    yield "doubled reduce", place, _set(at, type="rrc")
        for one, other in pairwise(waiting):
            if one[1] != other[1]:
                yield "crossed waits", f"gpu {g} {one} {other}", _swap(one, other)


def _set(at: tuple[int, int, int], **attributes: str) -> Change:
    g, b, s = at
    return lambda root: root[g][b][s].attrib.update(attributes)


def _drop(at: tuple[int, int, int]) -> Change:
    g, b, s = at

    def change(root: Element) -> None:
        block = root[g][b]
        block.remove(block[s])
        for number, step in enumerate(block):
            step.set("s", str(number))

    return change


def _swap(one: tuple[int, int, int], other: tuple[int, int, int]) -> Change:
    def change(root: Element) -> None:
        first, second = (root[g][b][s] for g, b, s in (one, other))
        for name in ("depid", "deps"):
            mine = first.get(name, "")
            theirs = second.get(name, "")
            first.set(name, theirs)
            second.set(name, mine)

    return change


def sample(number: int) -> list[Fault]:
    """So many of all faults, as many of each kind as there are, always the same."""
    by_kind: dict[str, list[Fault]] = {}
    for name, data in bases().items():
        for fault in faults(name, data):
            by_kind.setdefault(fault.kind, []).append(fault)
    draw = random.Random(0)
    for of_kind in by_kind.values():
        draw.shuffle(of_kind)
    return list(islice(_in_turn(list(by_kind.values())), number))


def _in_turn(kinds: list[list[Fault]]) -> Iterator[Fault]:
    """One of each kind that is left, again and again."""
    for turn in range(max(map(len, kinds))):
        yield from (of_kind[turn] for of_kind in kinds if turn < len(of_kind))
