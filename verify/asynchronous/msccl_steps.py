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

from typing import NamedTuple

from verify.asynchronous.msccl_xml import XmlBlock, XmlStep

READS_SOURCE = {"s", "cpy", "rrc", "rrs", "rrcs"}
READS_TARGET = {"re"}
WRITES = {"r", "cpy", "re", "rrc", "rcs", "rrcs"}
RECEIVES = {"r", "rrc", "rcs", "rrs", "rrcs"}
SENDS = {"s", "rcs", "rrs", "rrcs"}


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
    made: list[tuple[XmlStep, list[int], list[tuple[int, int]]]] = []
    waits: list[tuple[int, int]] = []
    fusing = False
    reductions = 0
    for step in block.steps:
        if step.depid >= 0:
            waits.append((step.depid, step.deps))
        if step.type == "nop":
            continue
        goes_on = (
            fusing
            and step.type == "re"
            and step.depid == -1
            and (made[-1][0].dstbuf, made[-1][0].dstoff, made[-1][0].srcbuf)
            == (step.dstbuf, step.dstoff, step.srcbuf)
        )
        if goes_on:
            made[-1] = (step, [*made[-1][1], step.srcoff], made[-1][2])
        else:
            made.append((step, [step.srcoff], waits))
            waits = []
        reductions += step.type == "re"
        fusing = step.type == "re" and not step.hasdep and reductions != 16
    found = []
    count = 0
    for last, offsets, before in made:
        count += max(0, len(before) - 1)
        if last.cnt > 0:  # the kernel counts fused steps where it adds up the first chunk
            count += len(offsets) - 1
        flag = count if last.hasdep else None
        found.append(Transmission(last, tuple(offsets), tuple(before), flag))
        count += 1
    return found


def text_of(block: XmlBlock, made: Transmission) -> str:
    """A step for people: ``rrc i[3] i[3] from rank 2, after tb 0 step 1``."""
    xml = made.last
    kind = made.last.type
    many = f"..+{xml.cnt - 1}" if xml.cnt > 1 else ""
    parts = [kind]
    if kind in READS_SOURCE or kind == "re":
        parts += [f"{xml.srcbuf}[{at}{many}]" for at in made.offsets]
    if kind in RECEIVES:
        parts.append(f"from rank {block.recv}")
    if kind in WRITES:
        parts.append(f"into {xml.dstbuf}[{xml.dstoff}{many}]")
    if kind in SENDS:
        parts.append(f"to rank {block.send}")
    if made.waits:
        parts.append("after " + ", ".join(f"tb {tb} step {s}" for tb, s in made.waits))
    return " ".join(parts)
