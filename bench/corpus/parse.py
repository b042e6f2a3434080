"""An MSCCL XML as the parser of Azure/msccl-executor-nccl leaves it: blocks of transmissions.

It shares nothing with ``verify``: what it feeds, ``bench.corpus.executor``, is to contradict verify
where verify is wrong. Followed: ``msccl_parser.cc`` at c6f6b36d (nops carry their dependencies to
the next transmission, reductions in a row with one target are fused).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

MAX_FUSION = 16
RECEIVES = frozenset({"r", "rcs", "rrs", "rrc", "rrcs"})
SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
ADDS = frozenset({"rrs", "rrc", "rrcs", "re"})
"""Kinds that read their own operand and add what comes, or what lies at ``sources``."""
WRITES = frozenset({"r", "rcs", "rrc", "rrcs", "cpy", "re"})


class Place(NamedTuple):
    """A chunk of a buffer: ``i``, ``o`` or ``s``, and the offset."""

    buffer: str
    offset: int


@dataclass
class Transmission:
    """One entry of a block's program, after fusion.

    Attributes:
        sources: where operands begin; several only for a fused ``re``.
        waits: (block, step) whose flag it waits for; publishes: the flag it sets, or -1.
        steps: the places in the block of the file's steps that it stands for.
    """

    kind: str
    sources: list[Place]
    target: Place
    count: int
    waits: list[tuple[int, int]]
    publishes: int = -1
    steps: list[int] = field(default_factory=list)


@dataclass
class Block:
    """A thread block: its peers (-1: none), its channel, its program."""

    rank: int
    id: int
    send: int
    receive: int
    channel: int
    program: list[Transmission]


@dataclass
class File:
    """What a file holds.

    Attributes:
        chunks: ``nchunksperloop``, of the collective's whole buffer.
        scratch: chunks of scratch, by rank.
        refused: why the executor's parser would refuse the file.
    """

    collective: str
    protocol: str
    ranks: int
    chunks: int
    modes: list[bool]
    min_bytes: int
    max_bytes: int
    blocks: list[Block]
    scratch: dict[int, int]
    refused: list[str]


def parse(path: Path) -> File:
    """Read a file; ValueError where an attribute that execution needs is missing or no number."""
    root = ElementTree.parse(path).getroot()
    refused = [
        f"no attribute {name}"
        for name in ("minBytes", "maxBytes", "inplace", "outofplace")
        if root.get(name) is None
    ]
    in_place = root.get("inplace", "1") == "1"
    out_of_place = root.get("outofplace", "0" if in_place else "1") == "1"
    modes = [mode for mode, on in ((True, in_place), (False, out_of_place)) if on]
    blocks: list[Block] = []
    scratch = {}
    for gpu in root.iter("gpu"):
        rank = int(_need(gpu, "id"))
        scratch[rank] = int(_need(gpu, "s_chunks"))
        for block in gpu.iter("tb"):
            send, receive, channel, number = (
                int(_need(block, name)) for name in ("send", "recv", "chan", "id")
            )
            program = list(_program(block, f"gpu {rank} tb {number}", refused))
            blocks.append(Block(rank, number, send, receive, channel, program))
    return File(
        collective=_need(root, "coll"),
        protocol=_need(root, "proto"),
        ranks=int(_need(root, "ngpus")),
        chunks=int(_need(root, "nchunksperloop")),
        modes=modes or [True],
        min_bytes=int(root.get("minBytes", 0)),
        max_bytes=int(root.get("maxBytes", 0)),
        blocks=blocks,
        scratch=scratch,
        refused=refused,
    )


def finer(file: File, parts: int) -> File:
    """The same file with every chunk cut into ``parts``."""
    blocks = [
        replace(
            block,
            program=[
                replace(
                    t,
                    sources=[Place(p.buffer, p.offset * parts) for p in t.sources],
                    target=Place(t.target.buffer, t.target.offset * parts),
                    count=t.count * parts,
                )
                for t in block.program
            ],
        )
        for block in file.blocks
    ]
    scratch = {rank: chunks * parts for rank, chunks in file.scratch.items()}
    return replace(file, chunks=file.chunks * parts, blocks=blocks, scratch=scratch)


def _need(element: ElementTree.Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise ValueError(f"{element.tag} has no attribute {name}")
    return value


def _program(block: ElementTree.Element, where: str, refused: list[str]) -> Iterator[Transmission]:
    """The transmissions of a block, with the numbers of the flags that the kernel would set."""
    done: list[tuple[Transmission, bool]] = []
    carried: list[tuple[int, int]] = []
    fusible: tuple[Place, str] | None = None
    reductions = 0
    for place, step in enumerate(block.iter("step")):
        kind = _need(step, "type")
        source = Place(_need(step, "srcbuf"), int(_need(step, "srcoff")))
        target = Place(_need(step, "dstbuf"), int(_need(step, "dstoff")))
        depends = int(_need(step, "depid"))
        published = _need(step, "hasdep") == "1"
        if depends >= 0:
            carried.append((depends, int(_need(step, "deps"))))
        if kind == "nop":
            continue
        count = int(_need(step, "cnt"))
        if kind == "re" and fusible == (target, source.buffer) and depends < 0:
            last = done[-1][0]
            last.sources.append(source)
            last.steps.append(place)
            last.count = count
            done[-1] = (last, published)
        else:
            if carried and depends < 0:
                refused.append(f"{where} step {step.get('s')}: a nop before a step without a dep")
            done.append(
                (
                    Transmission(kind, [source], target, count, carried, steps=[_need(step, "s")]),
                    published,
                )
            )
            carried = []
        if kind == "re":
            reductions += 1
            fusible = None if published or reductions == MAX_FUSION else (target, source.buffer)
        else:
            fusible = None
    number = 0
    for transmission, published in done:
        number += max(len(transmission.waits) - 1, 0) + len(transmission.sources) - 1
        transmission.publishes = number if published else -1
        number += 1
        yield transmission
