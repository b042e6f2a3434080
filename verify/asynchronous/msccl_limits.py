"""What the executor would refuse, get wrong by its own limits, or silently not use: no verdict.

Each line is one thing that keeps Azure/msccl-executor-nccl at c6f6b36d from running the file as it
is meant. The schedule may be right all the same, and run on another executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from latecomer.verify.asynchronous.msccl_steps import RECEIVES, SENDS, transmissions
from latecomer.verify.asynchronous.msccl_xml import OPTIONAL, Algorithm, XmlBlock, XmlGpu, XmlStep
from latecomer.verify.asynchronous.sizes import MOST_CHUNKS, Sizes

# MSCCL_MAX_NUM_STEPS, MAXCHANNELS and MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL of the executor.
MOST_STEPS = 64
MOST_CHANNELS = 32
MOST_BLOCKS = 32
"""Thread blocks with a peer on one channel, in either direction."""
MOST_BLOCK_NAMES = 127
"""Block ids that a wait can name: they are kept in a signed byte."""
MOST_FUSED = 16
"""Consecutive ``re`` that the kernel has room for (MSCCL_MAX_REDUCE_FUSION)."""

CHECKED = {
    **dict.fromkeys(("s", "rrs"), ("src",)),
    **dict.fromkeys(("r", "rcs"), ("dst",)),
    **dict.fromkeys(("cpy", "re", "rrcs"), ("src", "dst")),
}
"""Which offsets the parser compares with the declared number of chunks."""


Found = tuple[str, str]
"""One thing: which it is, for lines of one kind to be told once, and the line."""


def limits(algorithm: Algorithm, sizes: Sizes) -> tuple[str, ...]:
    """One line each, the first place where it shows."""
    line_of_kind: dict[str, str] = {}
    for kind, line in _lines(algorithm, sizes):
        line_of_kind.setdefault(kind, line)
    return tuple(line_of_kind.values())


def _lines(algorithm: Algorithm, sizes: Sizes) -> Iterator[Found]:
    yield from _of_algorithm(algorithm, sizes)
    for gpu in algorithm.gpus:
        yield from _of_gpu(gpu)
        for block in gpu.blocks:
            yield from _of_block(algorithm, gpu, block)


def _of_algorithm(algorithm: Algorithm, sizes: Sizes) -> Iterator[Found]:
    optional = algorithm.optional
    missing = [key for key in OPTIONAL if key not in optional]
    if missing:
        yield "missing", f"refused: <algo> has no {', '.join(missing)}"
    if not optional.get("inplace", 0) and not optional.get("outofplace", 1):
        yield "unused", "never used: neither inplace nor outofplace"
    if algorithm.nchannels > MOST_CHANNELS:
        yield "channels", f"refused: {algorithm.nchannels} channels, at most {MOST_CHANNELS}"
    if sizes.empty:
        yield "sizes", f"never used: no size from minBytes to maxBytes divides by {sizes.chunks}"
    elif sizes.chunks > 1:
        line = f"not used where the number of elements does not divide by {sizes.chunks}"
        yield "divisible", line
    if algorithm.coll in ("broadcast", "reduce"):
        yield "root", "used for every root: the format has no field for it"
    if algorithm.ignored:
        names = ", ".join(f"<{name}>" for name in algorithm.ignored)
        yield "ignored", f"ignored: elements {names}"


def _of_gpu(gpu: XmlGpu) -> Iterator[Found]:
    ids = sorted(block.id for block in gpu.blocks)
    if ids != list(range(len(ids))):
        yield "ids", f"refused: thread blocks of gpu {gpu.id} are not numbered from 0 on"
    if ids and ids[-1] >= MOST_BLOCKS * MOST_CHANNELS:
        yield "blocks", f"refused: gpu {gpu.id} has a thread block {ids[-1]}"

    for side in ("send", "recv"):
        blocks_on = Counter(block.chan for block in gpu.blocks if getattr(block, side) >= 0)
        for channel, count in blocks_on.items():
            if count > MOST_BLOCKS:
                yield (
                    "peers",
                    f"refused: {count} blocks of gpu {gpu.id} have a {side} peer on channel "
                    f"{channel}, at most {MOST_BLOCKS}",
                )


def _of_block(algorithm: Algorithm, gpu: XmlGpu, block: XmlBlock) -> Iterator[Found]:
    where = f"gpu {gpu.id} tb {block.id}"
    if not 0 <= block.chan <= MOST_CHANNELS:
        yield "chan", f"refused: {where} is on channel {block.chan}"
    elif block.chan >= algorithm.nchannels:
        yield "chan", f"not connected: {where} is on channel {block.chan} of {algorithm.nchannels}"
    if gpu.id in (block.send, block.recv):
        yield "peer", f"refused: {where} has its own gpu as a peer"
    if len(block.steps) > MOST_STEPS:
        yield "steps", f"refused: {where} has {len(block.steps)} steps, at most {MOST_STEPS}"

    nop_waits = False  # whether a nop before the step hands it a wait
    for position, step in enumerate(block.steps):
        step_where = f"{where} step {step.s}"
        yield from _of_numbers(step, position, step_where)
        if step.type == "nop":
            nop_waits = nop_waits or step.depid >= 0
            yield from _of_nop(step, step_where)
            continue
        if nop_waits and step.depid < 0:
            yield "nop", f"refused: {step_where} follows a nop and has no wait of its own"
        nop_waits = False
        yield from _of_areas(gpu, block, step, step_where)
    yield from _of_fusion(block, where)


def _of_numbers(step: XmlStep, position: int, where: str) -> Iterator[Found]:
    if not 0 <= step.s < MOST_STEPS:
        yield "s", f"refused: {where}: s must be below {MOST_STEPS}"
    if step.s != position:
        yield "order", f"s is not looked at: {where} runs as step {position}"
    if step.depid > MOST_BLOCK_NAMES:
        yield "depid", f"a wrong wait: {where} names block {step.depid}, above 127"
    if step.hasdep not in (0, 1):
        yield "hasdep", f"refused: {where}: hasdep = {step.hasdep}"


def _of_nop(step: XmlStep, where: str) -> Iterator[Found]:
    if step.depid < 0:
        yield "count", f"not counted: {where}, a nop without a wait, shifts later flags"
    if step.hasdep:
        yield "nop flag", f"no flag: {where} is a nop with hasdep"


def _of_areas(gpu: XmlGpu, block: XmlBlock, step: XmlStep, where: str) -> Iterator[Found]:
    if step.cnt > MOST_CHUNKS:
        yield "cnt", f"refused: {where}: cnt = {step.cnt}, at most {MOST_CHUNKS}"
    if (step.type in SENDS and block.send < 0) or (step.type in RECEIVES and block.recv < 0):
        yield "no peer", f"refused: {where} ({step.type}) has no peer"

    areas = (("src", step.srcbuf, step.srcoff), ("dst", step.dstbuf, step.dstoff))
    for side, buffer, offset in areas:
        if side in CHECKED.get(step.type, ()) and not -1 <= offset < gpu.chunks[buffer]:
            yield (
                "declared",
                f"refused: {where}: {buffer}[{offset}], and gpu {gpu.id} declares "
                f"{buffer}_chunks = {gpu.chunks[buffer]}",
            )


def _of_fusion(block: XmlBlock, where: str) -> Iterator[Found]:
    if sum(step.type == "re" for step in block.steps) <= MOST_FUSED:
        return
    for transmission in transmissions(block):
        if len(transmission.offsets) > MOST_FUSED:
            yield (
                "fused",
                f"beyond the kernel's room: {where} step {transmission.last.s} fuses "
                f"{len(transmission.offsets)} re, at most {MOST_FUSED}",
            )
