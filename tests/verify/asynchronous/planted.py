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

from latecomer.synth import standard
from latecomer.synth.export.msccl_xml import encode
from tests.synth.export.schedules import straggler

Change = Callable[[Element], None]


class Fault(NamedTuple):
    """A kind, where it was planted, and the file that it makes."""

    kind: str
    location: str
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
            chunk = (rank - hop) % n
            _step(block, "rcs" if hop < n - 1 else "r", "o", chunk, "o", chunk)
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
    for kind, position, change in _changes(root):
        broken = deepcopy(root)
        change(broken)
        yield Fault(kind, f"{name}, {position}", ElementTree.tostring(broken))


Position = tuple[int, int, int]
"""Of a step: its gpu, its block, its index."""


def _changes(root: Element) -> Iterator[tuple[str, str, Change]]:
    """The kind of each change, where it is made, and the change."""
    chunks = int(root.get("nchunksperloop", ""))
    for g, gpu in enumerate(root):
        waiting = []
        for b, block in enumerate(gpu):
            for s, step in enumerate(block):
                position = (g, b, s)
                if step.get("depid") != "-1":
                    waiting.append(position)
                for kind, change in _changes_of_step(step, position, chunks):
                    yield kind, f"gpu {g} tb {b} step {s}", change
        for first, second in pairwise(waiting):
            if first[1] != second[1]:
                yield "crossed waits", f"gpu {g} {first} {second}", _swap(first, second)


def _changes_of_step(
    step: Element, position: Position, chunks: int
) -> Iterator[tuple[str, Change]]:
    if step.get("depid") != "-1":
        if step.get("type") != "nop":
            yield "dropped dep", _set(position, depid="-1", deps="-1")
        earlier = int(step.get("deps", "")) - 1
        if earlier >= 0:
            yield "weakened dep", _set(position, deps=str(earlier))
    if step.get("hasdep") == "1":
        yield "unpublished flag", _set(position, hasdep="0")
    if step.get("type") == "nop":
        return

    yield "dropped step", _drop(position)
    side = "srcoff" if step.get("type") == "s" else "dstoff"
    next_chunk = (int(step.get(side, "")) + 1) % chunks
    yield "swapped offset", _set(position, **{side: str(next_chunk)})
    if step.get("type") == "r":
        yield "doubled reduce", _set(position, type="rrc")


def _set(position: Position, **attributes: str) -> Change:
    g, b, s = position
    return lambda root: root[g][b][s].attrib.update(attributes)


def _drop(position: Position) -> Change:
    g, b, s = position

    def change(root: Element) -> None:
        block = root[g][b]
        block.remove(block[s])
        for number, step in enumerate(block):
            step.set("s", str(number))

    return change


def _swap(first: Position, second: Position) -> Change:
    """Let two steps wait for what the other one waits for."""

    def change(root: Element) -> None:
        steps = [root[g][b][s] for g, b, s in (first, second)]
        waits = [(step.get("depid", ""), step.get("deps", "")) for step in steps]
        for step, (depid, deps) in zip(steps, reversed(waits), strict=True):
            step.set("depid", depid)
            step.set("deps", deps)

    return change


def sample(number: int) -> list[Fault]:
    """So many of all faults, as many of each kind as there are, always the same."""
    by_kind: dict[str, list[Fault]] = {}
    for name, data in bases().items():
        for fault in faults(name, data):
            by_kind.setdefault(fault.kind, []).append(fault)
    draw = random.Random(0)
    for faults_of_kind in by_kind.values():
        draw.shuffle(faults_of_kind)
    return list(islice(_in_turn(list(by_kind.values())), number))


def _in_turn(kinds: list[list[Fault]]) -> Iterator[Fault]:
    """One of each kind that is left, again and again."""
    for turn in range(max(map(len, kinds))):
        yield from (faults_of_kind[turn] for faults_of_kind in kinds if turn < len(faults_of_kind))
