"""The wait, on two levels: the helpers' sum of every chunk comes to a mate of the late rank.

    1. inside every node   a ReduceScatter: chunk c is summed up at one rank of the node; all nodes
                           at the same time
    2. between nodes       the nodes form a chain that ends at home; groups of chunks move along it
                           one behind the other, every node adding its sum, as many chunks of a
                           group at once as there are network ports (and mates to receive them)

The mates' turn is chunk c to mate c mod (G - 1), so that in the completion the late rank can
exchange with all of them in turn, at the speed of the inner links.

Deviation from :mod:`synth.straggler.reduce_scatter`: owners at home only; the wait is longer for
it (see ``waiting_s``), the completion needs the network in one direction only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest

from synth.twolevel.machine import Machine
from verify.core.schedule import Round, Transfer


def owner(machine: Machine, late: int, chunk: int) -> int:
    """The mate of the late rank that holds the helpers' sum of ``chunk``."""
    mates = mates_of(machine, late)
    return mates[chunk % len(mates)]


def mates_of(machine: Machine, late: int) -> list[int]:
    """The other ranks of the late rank's node, in order."""
    return [rank for rank in machine.ranks_of(late // machine.per_node) if rank != late]


def waiting(machine: Machine, late: int, chunks: int) -> tuple[Round, ...]:
    """The rounds before the late rank arrives; it has at least one mate."""
    home = late // machine.per_node
    mates = mates_of(machine, late)
    holders = [
        mates if node == home else list(machine.ranks_of(node)) for node in range(machine.nodes)
    ]
    inside = zip_longest(*(_reduce_scatter(ranks, chunks) for ranks in holders), fillvalue=())
    chain = [ranks for node, ranks in enumerate(holders) if node != home] + [mates]
    width = min(machine.network_ports, len(mates))
    return tuple(
        tuple(t for part in parts for t in part)
        for parts in [*inside, *_along(chain, chunks, width)]
        if any(parts)
    )


def _reduce_scatter(ranks: Sequence[int], chunks: int) -> Iterator[Round]:
    """Chunk c to the rank numbered c mod (how many there are), by rotation, block by block."""
    size = len(ranks)
    for first in range(0, chunks, size):
        for turn in range(1, size):
            yield tuple(
                Transfer(ranks[(to - turn) % size], ranks[to], first + to, "reduce")
                for to in range(size)
                if first + to < chunks
            )


def _along(chain: Sequence[Sequence[int]], chunks: int, width: int) -> Iterator[list[Round]]:
    """Groups of ``width`` chunks down the chain, one link behind the other."""
    groups = -(-chunks // width)
    links = len(chain) - 1
    for step in range(groups + links - 1 if links else 0):
        yield [
            tuple(
                Transfer(src[chunk % len(src)], dst[chunk % len(dst)], chunk, "reduce")
                for chunk in range(group * width, min(chunks, (group + 1) * width))
            )
            for link, (src, dst) in enumerate(pairwise(chain))
            for group in [step - link]
            if 0 <= group < groups
        ]
