"""What the executor would refuse, get wrong by its own limits, or silently not use: no verdict.

Each line is one thing that keeps Azure/msccl-executor-nccl at c6f6b36d from running the file as it
is meant. The schedule may be right all the same, and run on another executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from verify.asynchronous.msccl_steps import RECEIVES, SENDS, transmissions
from verify.asynchronous.msccl_xml import Algorithm, XmlBlock, XmlGpu
from verify.asynchronous.sizes import MOST_CHUNKS, Sizes

MOST_STEPS = 64
MOST_CHANNELS = 32
MOST_BLOCKS = 32
"""Thread blocks with a peer on one channel, in either direction."""
MOST_BLOCK_NAMES = 127
"""Block ids that a wait can name: they are kept in a signed byte."""
MOST_FUSED = 16
"""Consecutive ``re`` that the kernel has room for."""

CHECKED = {
    **dict.fromkeys(("s", "rrs"), ("src",)),
    **dict.fromkeys(("r", "rcs"), ("dst",)),
    **dict.fromkeys(("cpy", "re", "rrcs"), ("src", "dst")),
}
"""Which offsets the parser compares with the declared number of chunks."""


def limits(algorithm: Algorithm, sizes: Sizes) -> tuple[str, ...]:
    """One line each, the first place where it shows."""
    seen: dict[str, str] = {}
    for key, line in _lines(algorithm, sizes):
        seen.setdefault(key, line)
    return tuple(seen.values())


def _lines(algorithm: Algorithm, sizes: Sizes) -> Iterator[tuple[str, str]]:
    given = algorithm.optional
    missing = [k for k in ("inplace", "outofplace", "minBytes", "maxBytes") if k not in given]
    if missing:
        yield "missing", f"refused: <algo> has no {', '.join(missing)}"
    if not given.get("inplace", 0) and not given.get("outofplace", 1):
        yield "unused", "never used: neither inplace nor outofplace"
    if algorithm.nchannels > MOST_CHANNELS:
        yield "channels", f"refused: {algorithm.nchannels} channels, at most {MOST_CHANNELS}"
    if sizes.empty:
        yield "sizes", f"never used: no size from minBytes to maxBytes divides by {sizes.chunks}"
    elif sizes.chunks > 1:
        yield (
            "divisible",
            f"not used where the number of elements does not divide by {sizes.chunks}",
        )
    if algorithm.coll in ("broadcast", "reduce"):
        yield "root", "used for every root: the format has no field for it"
    if algorithm.ignored:
        names = ", ".join(f"<{name}>" for name in algorithm.ignored)
        yield "ignored", f"ignored: elements {names}"
    for gpu in algorithm.gpus:
        ids = sorted(block.id for block in gpu.blocks)
        if ids != list(range(len(ids))):
            yield "ids", f"refused: thread blocks of gpu {gpu.id} are not numbered from 0 on"
        if ids and ids[-1] >= MOST_BLOCKS * MOST_CHANNELS:
            yield "blocks", f"refused: gpu {gpu.id} has a thread block {ids[-1]}"
        for side in ("send", "recv"):
            users = Counter(b.chan for b in gpu.blocks if getattr(b, side) >= 0)
            for channel, count in users.items():
                if count > MOST_BLOCKS:
                    yield (
                        "peers",
                        f"refused: {count} blocks of gpu {gpu.id} have a {side} peer on channel "
                        f"{channel}, at most {MOST_BLOCKS}",
                    )
        for block in gpu.blocks:
            yield from _of_block(algorithm, gpu, block)


def _of_block(algorithm: Algorithm, gpu: XmlGpu, block: XmlBlock) -> Iterator[tuple[str, str]]:
    place = f"gpu {gpu.id} tb {block.id}"
    if not 0 <= block.chan <= MOST_CHANNELS:
        yield "chan", f"refused: {place} is on channel {block.chan}"
    elif block.chan >= algorithm.nchannels:
        yield "chan", f"not connected: {place} is on channel {block.chan} of {algorithm.nchannels}"
    if gpu.id in (block.send, block.recv):
        yield "peer", f"refused: {place} has its own gpu as a peer"
    if len(block.steps) > MOST_STEPS:
        yield "steps", f"refused: {place} has {len(block.steps)} steps, at most {MOST_STEPS}"
    waits = False
    for position, step in enumerate(block.steps):
        where = f"{place} step {step.s}"
        if not 0 <= step.s < MOST_STEPS:
            yield "s", f"refused: {where}: s must be below {MOST_STEPS}"
        if step.s != position:
            yield "order", f"s is not looked at: {where} runs as step {position}"
        if step.depid > MOST_BLOCK_NAMES:
            yield "depid", f"a wrong wait: {where} names block {step.depid}, above 127"
        if step.hasdep not in (0, 1):
            yield "hasdep", f"refused: {where}: hasdep = {step.hasdep}"
        if step.type == "nop":
            waits = waits or step.depid >= 0
            if step.depid < 0:
                yield "count", f"not counted: {where}, a nop without a wait, shifts later flags"
            if step.hasdep:
                yield "nop flag", f"no flag: {where} is a nop with hasdep"
            continue
        if waits and step.depid < 0:
            yield "nop", f"refused: {where} follows a nop and has no wait of its own"
        waits = False
        if step.cnt > MOST_CHUNKS:
            yield "cnt", f"refused: {where}: cnt = {step.cnt}, at most {MOST_CHUNKS}"
        if (step.type in SENDS and block.send < 0) or (step.type in RECEIVES and block.recv < 0):
            yield "no peer", f"refused: {where} ({step.type}) has no peer"
        for side, buffer, at in (
            ("src", step.srcbuf, step.srcoff),
            ("dst", step.dstbuf, step.dstoff),
        ):
            if side in CHECKED.get(step.type, ()) and not -1 <= at < gpu.chunks[buffer]:
                yield (
                    "declared",
                    f"refused: {where}: {buffer}[{at}], and gpu {gpu.id} declares "
                    f"{buffer}_chunks = {gpu.chunks[buffer]}",
                )
    if sum(step.type == "re" for step in block.steps) <= MOST_FUSED:
        return
    for made in transmissions(block):
        if len(made.offsets) > MOST_FUSED:
            yield (
                "fused",
                f"beyond the kernel's room: {place} step {made.last.s} fuses "
                f"{len(made.offsets)} re, at most {MOST_FUSED}",
            )
