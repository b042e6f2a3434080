"""An MSCCL XML as the parser of Azure/msccl-executor-nccl leaves it: blocks of transmissions.

It shares nothing with ``verify``: what it feeds, ``bench.corpus.executor``, is to contradict verify
where verify is wrong. Followed: ``msccl_parser.cc`` at c6f6b36d (nops carry their dependencies to
the next transmission, reductions in a row with one target are fused).
"""

from __future__ import annotations

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


class Address(NamedTuple):
    """A chunk of a buffer: ``i``, ``o`` or ``s``, and the offset."""

    buffer: str
    offset: int


@dataclass
class Transmission:
    """One entry of a block's program, after fusion.

    Attributes:
        sources: where operands begin; several only for a fused ``re``.
        waits: (block, step) whose flag it waits for; publishes: the flag it sets, or -1.
        steps: ``s`` of the file's steps that it stands for.
    """

    kind: str
    sources: list[Address]
    target: Address
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
    refused = []
    for name in ("minBytes", "maxBytes", "inplace", "outofplace"):
        if root.get(name) is None:
            refused.append(f"no attribute {name}")

    in_place = root.get("inplace", "1") == "1"
    out_of_place = root.get("outofplace", "0" if in_place else "1") == "1"
    modes = [mode for mode, is_meant in ((True, in_place), (False, out_of_place)) if is_meant]
    blocks = []
    scratch = {}
    for gpu in root.iter("gpu"):
        rank = _integer(gpu, "id")
        scratch[rank] = _integer(gpu, "s_chunks")
        blocks += [_block(rank, element, refused) for element in gpu.iter("tb")]
    return File(
        collective=_attribute(root, "coll"),
        protocol=_attribute(root, "proto"),
        ranks=_integer(root, "ngpus"),
        chunks=_integer(root, "nchunksperloop"),
        modes=modes or [True],
        min_bytes=int(root.get("minBytes", 0)),
        max_bytes=int(root.get("maxBytes", 0)),
        blocks=blocks,
        scratch=scratch,
        refused=refused,
    )


def finer(file: File, parts: int) -> File:
    """The same file with every chunk cut into ``parts``."""

    def finer_address(address: Address) -> Address:
        return Address(address.buffer, address.offset * parts)

    blocks = []
    for block in file.blocks:
        program = []
        for transmission in block.program:
            finer_transmission = replace(
                transmission,
                sources=[finer_address(source) for source in transmission.sources],
                target=finer_address(transmission.target),
                count=transmission.count * parts,
            )
            program.append(finer_transmission)
        blocks.append(replace(block, program=program))
    scratch = {rank: chunks * parts for rank, chunks in file.scratch.items()}
    return replace(file, chunks=file.chunks * parts, blocks=blocks, scratch=scratch)


def _attribute(element: ElementTree.Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise ValueError(f"{element.tag} has no attribute {name}")
    return value


def _integer(element: ElementTree.Element, name: str) -> int:
    return int(_attribute(element, name))


def _block(rank: int, element: ElementTree.Element, refused: list[str]) -> Block:
    number = _integer(element, "id")
    return Block(
        rank=rank,
        id=number,
        send=_integer(element, "send"),
        receive=_integer(element, "recv"),
        channel=_integer(element, "chan"),
        program=_program(element, f"gpu {rank} tb {number}", refused),
    )


def _program(block: ElementTree.Element, where: str, refused: list[str]) -> list[Transmission]:
    """The transmissions of a block, with the numbers of the flags that the kernel would set."""
    program: list[Transmission] = []
    raises_flag: list[bool] = []
    carried_waits: list[tuple[int, int]] = []
    fusible: tuple[Address, str] | None = None  # the target and source buffer that a re has to have
    reductions = 0
    for step in block.iter("step"):
        number = _integer(step, "s")
        kind = _attribute(step, "type")
        source = Address(_attribute(step, "srcbuf"), _integer(step, "srcoff"))
        target = Address(_attribute(step, "dstbuf"), _integer(step, "dstoff"))
        depends = _integer(step, "depid")
        publishes = _attribute(step, "hasdep") == "1"
        if depends >= 0:
            carried_waits.append((depends, _integer(step, "deps")))
        if kind == "nop":
            continue

        chunks = _integer(step, "cnt")
        if kind == "re" and fusible == (target, source.buffer) and depends < 0:
            fused = program[-1]
            fused.sources.append(source)
            fused.steps.append(number)
            fused.count = chunks
            raises_flag[-1] = publishes
        else:
            if carried_waits and depends < 0:
                refused.append(f"{where} step {number}: a nop before a step without a dep")
            program.append(
                Transmission(kind, [source], target, chunks, carried_waits, steps=[number])
            )
            raises_flag.append(publishes)
            carried_waits = []

        fusible = None
        if kind == "re":
            reductions += 1
            if not publishes and reductions != MAX_FUSION:
                fusible = (target, source.buffer)

    count = 0
    for transmission, publishes in zip(program, raises_flag, strict=True):
        count += max(len(transmission.waits) - 1, 0) + len(transmission.sources) - 1
        transmission.publishes = count if publishes else -1
        count += 1
    return program
