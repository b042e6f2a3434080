"""The wait, on two levels: the helpers' sum of every chunk comes to a mate of the late rank.

    1. inside every node   a ReduceScatter: chunk c is summed up at one rank of the node; all nodes
                           at the same time
    2. between nodes       the nodes form a chain that ends at home; groups of chunks move along it
                           one behind the other, every node adding its sum, as many chunks of a
                           group at once as there are network ports (and mates to receive them)

The mates' turn is chunk c to mate c mod (G - 1), so that in the completion the late rank can
exchange with all of them in turn, at the speed of the inner links.

Deviation from :mod:`latecomer.synth.straggler.reduce_scatter`: owners at home only; the wait is
longer for it (see ``waiting_s``), the completion needs the network in one direction only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, zip_longest

from latecomer.synth.twolevel.machine import Machine
from latecomer.verify.core.schedule import Round, Transfer


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
    other_nodes = [list(machine.ranks_of(node)) for node in range(machine.nodes) if node != home]
    helpers_by_node = [*other_nodes[:home], mates, *other_nodes[home:]]

    # in one round all nodes, or all links of the chain, do their parts of it
    inside = zip_longest(
        *(_reduce_scatter(ranks, chunks) for ranks in helpers_by_node), fillvalue=()
    )
    # A mate receives one chunk at a time, so home takes in no more than it has mates.
    width = min(machine.network_ports, len(mates))
    between = _along([*other_nodes, mates], chunks, width)
    return tuple(tuple(chain(*parts)) for parts in (*inside, *between) if any(parts))


def _reduce_scatter(ranks: Sequence[int], chunks: int) -> Iterator[Round]:
    """Chunk c to the rank numbered c mod (how many there are), by rotation, block by block."""
    count = len(ranks)
    for first_chunk in range(0, chunks, count):
        owners = range(min(count, chunks - first_chunk))
        for shift in range(1, count):
            yield tuple(
                Transfer(
                    ranks[(owner - shift) % count], ranks[owner], first_chunk + owner, "reduce"
                )
                for owner in owners
            )


def _along(nodes: Sequence[Sequence[int]], chunks: int, width: int) -> Iterator[list[Round]]:
    """Groups of ``width`` chunks from node to node, one link behind the other.

    Args:
        nodes: the ranks of each, in the order of the chain.
    """
    groups = -(-chunks // width)
    links = list(pairwise(nodes))
    if not links:
        return
    for step in range(groups + len(links) - 1):
        parts = []
        for link, (senders, receivers) in enumerate(links):
            group = step - link
            if 0 <= group < groups:
                chunks_of_group = range(group * width, min(chunks, (group + 1) * width))
                parts.append(_over(senders, receivers, chunks_of_group))
        yield parts


def _over(senders: Sequence[int], receivers: Sequence[int], chunks: range) -> Round:
    """Sums of these chunks from their owners in one node to those in the next."""
    transfers = []
    for chunk in chunks:
        src = senders[chunk % len(senders)]
        dst = receivers[chunk % len(receivers)]
        transfers.append(Transfer(src, dst, chunk, "reduce"))
    return tuple(transfers)
