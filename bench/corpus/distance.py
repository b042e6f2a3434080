"""How far an all-reduce is from the least that any can do: bytes through a port, messages in a row.

Whatever the schedule, some rank sends at least 2 (n - 1)/n of the buffer, and some rank receives as
much: all ranks together must (``latecomer.verify.core.bounds.bandwidth_bound``). And a rank's data
needs ceil(log2 n) messages in a row to reach everybody where a rank sends one message at a time;
programs whose blocks send side by side do with fewer, and pay with bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from bench.corpus.executor import Run
from bench.corpus.parse import RECEIVES, SENDS, File


@dataclass(frozen=True)
class Distance:
    """What a file does, in buffers and messages, beside the bounds.

    Attributes:
        load: what the busiest rank sends or receives, in buffers; ``least`` any can have.
        hops: messages in the longest row of which each waits for the one before.
    """

    load: Fraction
    least: Fraction
    hops: int
    fewest: int


def distance(file: File) -> Distance | None:
    """None for other collectives, and where the program does not end."""
    if file.collective != "allreduce":
        return None
    run = Run(file, in_place=file.modes[0])
    if run.outcome().kind not in {"right", "wrong"}:
        return None

    sent = [0] * file.ranks
    received = [0] * file.ranks
    for block in file.blocks:
        for transmission in block.program:
            if transmission.kind in SENDS:
                sent[block.rank] += transmission.count
            if transmission.kind in RECEIVES:
                received[block.rank] += transmission.count
    return Distance(
        load=Fraction(max(sent + received), file.chunks),
        least=Fraction(2 * (file.ranks - 1), file.ranks),
        hops=max(run.hops),
        fewest=(file.ranks - 1).bit_length(),
    )
