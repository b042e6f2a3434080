"""MSCCL XML: a thread block for each direction of each pair, and as few dependencies as suffice.

A transfer is ``s`` at one end and ``r`` or ``rrc`` at the other, one chunk at a time: one message
at every size, so the file is free of deadlock at every size (``latecomer.synth.export.ends``).
Within a GPU a block waits for another where the ends demand it and neither its own order nor what
it has already waited for implies it; further waits of one step go into ``nop`` before it. Where a
block gets longer than the target allows, the pair goes on in the next channel.

Limits, of the executor Azure/msccl-executor-nccl: 64 steps a block, 32 blocks a channel and
direction, 32 channels, 4095 elements of the file that a GPU looks at (its parser's nodes), and 128
blocks a GPU, since it keeps the block that is waited for in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import msgspec

from latecomer.synth.export.ends import End, ends
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError

Protocol = Literal["Simple", "LL", "LL128"]

# The executor's, see the top. What exceeds one is refused here, by name: there it would not run.
MAX_STEPS = 64
MAX_CHANNELS = 32
MAX_BLOCKS_PER_CHANNEL = 32
MAX_BLOCKS = 128
MAX_ELEMENTS = 4095

BlockKey = tuple[int, int, bool, int]
"""Rank, channel, whether it sends, peer."""


class _Step(msgspec.Struct):
    """A step of the file; ``waits_for``: a block and the step of it that must be complete."""

    kind: str
    chunk: int
    waits_for: tuple[BlockKey, int] | None = None
    published: bool = False


class _Block(msgspec.Struct):
    """A thread block being filled; ``known``: steps of others that its steps so far imply."""

    steps: list[_Step] = []
    known: dict[BlockKey, int] = {}


def encode(schedule: Schedule, protocol: Protocol = "Simple", name: str = "latecomer") -> bytes:
    """The file's text: an in-place all-reduce for buffers whose count the chunks divide.

    Raises:
        ArgumentError: a limit of the target is exceeded; it says which.

    Examples:
        >>> from pathlib import Path
        >>> from latecomer import synth, verify
        >>> from latecomer.synth.export import msccl_xml
        >>> from latecomer.verify.asynchronous.msccl import verify_xml
        >>> text = msccl_xml.encode(synth.generate(8, chunks=8), protocol="LL")
        >>> verify_xml(text).verdict is verify.Verdict.PROVED
        True
        >>> _ = Path("allreduce.xml").write_bytes(text)
    """
    all_ends = ends(schedule)
    blocks = _filled(all_ends, _channels(all_ends))
    channels = 1 + max((key[1] for key in blocks), default=0)
    ids = _numbered(blocks, schedule.ranks, channels)
    facts = {
        "name": name,
        "proto": protocol,
        "nchannels": channels,
        "nchunksperloop": schedule.chunks,
        "ngpus": schedule.ranks,
        "coll": "allreduce",
        "inplace": 1,
        "outofplace": 0,
        "minBytes": 0,
        "maxBytes": 0,
    }
    root = Element("algo", _attributes(facts))
    buffers = {"i_chunks": schedule.chunks, "o_chunks": 0, "s_chunks": 0}
    gpus = [
        SubElement(root, "gpu", _attributes({"id": rank, **buffers}))
        for rank in range(schedule.ranks)
    ]
    for key, block in blocks.items():
        rank, channel, sends, peer = key
        send, receive = (peer, -1) if sends else (-1, peer)
        head = {"id": ids[key], "send": send, "recv": receive, "chan": channel}
        tb = SubElement(gpus[rank], "tb", _attributes(head))
        for number, step in enumerate(block.steps):
            there, waited = step.waits_for or (None, -1)
            line = {
                "s": number,
                "type": step.kind,
                "srcbuf": "i",
                "srcoff": step.chunk,
                "dstbuf": "i",
                "dstoff": step.chunk,
                "cnt": 0 if step.kind == "nop" else 1,
                "depid": -1 if there is None else ids[there],
                "deps": waited,
                "hasdep": int(step.published),
            }
            SubElement(tb, "step", _attributes(line))
    indent(root)
    return tostring(root) + b"\n"


def _attributes(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in facts.items()}


def _channels(all_ends: list[End]) -> dict[int, int]:
    """The channel of each transfer: the next one where a block of either end would get too long."""
    length: dict[tuple[int, int], list[int]] = {}
    channel: dict[tuple[int, int], int] = {}
    found = {}
    # A step waits for one other; each further wait is a nop before it.
    needs = {(end.transfer, end.sends): max(1, len(end.before)) for end in all_ends}
    for end in all_ends:
        if not end.sends:
            continue
        pair = end.rank, end.peer
        here = length.setdefault(pair, [0, 0])
        more = needs[end.transfer, True], needs[end.transfer, False]
        if max(more) > MAX_STEPS:
            raise _limit(f"{max(more)} dependencies of one step", f"{MAX_STEPS} steps a block")
        if max(here[0] + more[0], here[1] + more[1]) > MAX_STEPS:
            channel[pair] = channel.get(pair, 0) + 1
            here[:] = 0, 0
        here[0] += more[0]
        here[1] += more[1]
        found[end.transfer] = channel.setdefault(pair, 0)
    return found


def _filled(all_ends: list[End], channels: dict[int, int]) -> dict[BlockKey, _Block]:
    """All blocks with their steps."""
    blocks: dict[BlockKey, _Block] = {}
    where: list[tuple[BlockKey, int]] = []
    after: list[dict[BlockKey, int]] = []
    for end in all_ends:
        key = end.rank, channels[end.transfer], end.sends, end.peer
        block = blocks.setdefault(key, _Block())
        waits: list[tuple[BlockKey, int]] = []
        # The latest first: what a wait for it implies needs no wait of its own.
        for other in sorted(end.before, reverse=True):
            there, step = where[other]
            if there == key or block.known.get(there, -1) >= step:
                continue
            waits.append((there, step))
            for implied, last in after[other].items():
                block.known[implied] = max(last, block.known.get(implied, -1))
        block.steps += [_Step("nop", end.chunk, wait) for wait in waits[:-1]]
        kind = "s" if end.sends else "rrc" if end.reduce else "r"
        block.steps.append(_Step(kind, end.chunk, waits[-1] if waits else None))
        for there, step in waits:
            blocks[there].steps[step].published = True
        where.append((key, len(block.steps) - 1))
        block.known[key] = len(block.steps) - 1
        after.append(dict(block.known))
    return dict(sorted(blocks.items()))


def _numbered(blocks: dict[BlockKey, _Block], ranks: int, channels: int) -> dict[BlockKey, int]:
    """Numbers of blocks within their GPU, with the limits of the target."""
    ids = {}
    count = [0] * ranks
    # The parser keeps the root and all gpu elements, and what is inside its own.
    elements = [1 + ranks] * ranks
    for key, block in blocks.items():
        ids[key] = count[key[0]]
        count[key[0]] += 1
        elements[key[0]] += 1 + len(block.steps)
    per_channel: dict[tuple[int, int, bool], int] = {}
    for rank, channel, sends, _ in blocks:
        per_channel[rank, channel, sends] = per_channel.get((rank, channel, sends), 0) + 1
    if channels > MAX_CHANNELS:
        raise _limit(f"{channels} channels", f"{MAX_CHANNELS} channels")
    if max(per_channel.values(), default=0) > MAX_BLOCKS_PER_CHANNEL:
        raise _limit(
            f"{max(per_channel.values())} peers of one rank",
            f"{MAX_BLOCKS_PER_CHANNEL} blocks a channel and direction",
        )
    if max(elements) > MAX_ELEMENTS:
        raise _limit(f"{max(elements)} elements for one GPU", f"room for {MAX_ELEMENTS}")
    if max(count) > MAX_BLOCKS:
        raise _limit(f"{max(count)} blocks of one GPU", f"{MAX_BLOCKS} blocks a GPU")
    return ids


def _limit(needed: str, limit: str) -> ArgumentError:
    return ArgumentError(
        "--to", "msccl-xml", f"the schedule needs {needed}, the target has {limit}",
        "Take fewer ranks or chunks",
    )  # fmt: skip
