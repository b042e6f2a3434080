"""The steps of a thread block as MSCCL's kernel has them, after its parser.

From Azure/msccl-executor-nccl at c6f6b36d (msccl_parser.cc, msccl_kernel.cu):

- Steps run in the order of the document. A wait for step ``deps`` of block ``depid`` ends when that
  block has raised its flag so far. The flag is the kernel's own count of steps, raised by steps
  with ``hasdep = 1`` only; it is the step's index in the document as long as every ``nop`` has a
  ``depid``.
- A ``nop`` hands its wait to the next step that does something, and can raise no flag.
- ``re`` after ``re`` into the same place from the same buffer, without a wait of its own and before
  a flag is raised, is one step with it; the ``cnt`` of the last one holds for all. The kernel's
  count leaves out the fused steps if that ``cnt`` is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from latecomer.verify.asynchronous.msccl_xml import XmlBlock, XmlStep

READS_SOURCE = {"s", "cpy", "rrc", "rrs", "rrcs"}
READS_TARGET = {"re"}
WRITES = {"r", "cpy", "re", "rrc", "rcs", "rrcs"}
RECEIVES = {"r", "rrc", "rcs", "rrs", "rrcs"}
SENDS = {"s", "rcs", "rrs", "rrcs"}

FUSION_ENDS_AT = 16
"""The parser counts the ``re`` of a block; the one of this number ends a fusion (no later one)."""


class Transmission(NamedTuple):
    """What the kernel runs as one step.

    Attributes:
        last: the step of the file (of fused ones, the last).
        offsets: of its sources; more than one where ``re`` were fused.
        waits: (block, count) that it waits for.
        flag: what it raises its block's flag to; None: it does not.
    """

    last: XmlStep
    offsets: tuple[int, ...]
    waits: tuple[tuple[int, int], ...]
    flag: int | None


def transmissions(block: XmlBlock) -> list[Transmission]:
    """The steps of a block as the kernel has them, after the parser."""
    numbered = []
    count = 0
    for fused in _fused(block):
        count += max(0, len(fused.waits) - 1)  # each further wait is a step of its own
        if fused.last.cnt > 0:  # the kernel counts fused steps where it adds up the first chunk
            count += len(fused.offsets) - 1
        flag = count if fused.last.hasdep else None
        offsets = tuple(fused.offsets)
        waits = tuple(fused.waits)
        numbered.append(Transmission(fused.last, offsets, waits, flag))
        count += 1
    return numbered


@dataclass
class _Fused:
    """Steps of the file that are one for the kernel; see ``Transmission``."""

    last: XmlStep
    offsets: list[int]
    waits: list[tuple[int, int]]


def _fused(block: XmlBlock) -> list[_Fused]:
    """The steps that do something, those that are fused as one."""
    fused: list[_Fused] = []
    waits: list[tuple[int, int]] = []
    may_go_on = False
    reductions = 0
    for step in block.steps:
        if step.depid >= 0:
            waits.append((step.depid, step.deps))
        if step.type == "nop":
            continue

        if may_go_on and _continues(fused[-1].last, step):
            fused[-1].last = step
            fused[-1].offsets.append(step.srcoff)
        else:
            fused.append(_Fused(step, [step.srcoff], waits))
            waits = []
        reductions += step.type == "re"
        may_go_on = step.type == "re" and not step.hasdep and reductions != FUSION_ENDS_AT
    return fused


def _continues(reduction: XmlStep, step: XmlStep) -> bool:
    """Whether a step adds to the same place as the ``re`` before it, without a wait of its own."""
    return (
        step.type == "re"
        and step.depid == -1
        and step.dstbuf == reduction.dstbuf
        and step.dstoff == reduction.dstoff
        and step.srcbuf == reduction.srcbuf
    )


def text_of(block: XmlBlock, transmission: Transmission) -> str:
    """A step for people: ``rrc i[3] i[3] from rank 2, after tb 0 step 1``."""
    step = transmission.last
    extent = f"..+{step.cnt - 1}" if step.cnt > 1 else ""
    parts = [step.type]
    if step.type in READS_SOURCE or step.type == "re":
        parts += [f"{step.srcbuf}[{offset}{extent}]" for offset in transmission.offsets]
    if step.type in RECEIVES:
        parts.append(f"from rank {block.recv}")
    if step.type in WRITES:
        parts.append(f"into {step.dstbuf}[{step.dstoff}{extent}]")
    if step.type in SENDS:
        parts.append(f"to rank {block.send}")
    if transmission.waits:
        parts.append("after " + ", ".join(f"tb {tb} step {s}" for tb, s in transmission.waits))
    return " ".join(parts)
