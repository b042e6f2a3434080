"""A machine of two levels: nodes of equally many ranks, and the links inside and between them.

Legend, used in all of ``latecomer.synth.twolevel``:

    M, G      nodes, and ranks per node; n = M * G. Ranks v*G .. v*G + G-1 are those of node v
    P         network ports of a node: messages that it sends (and receives) at a time, at most G
    inner     link between two ranks of one node; outer: between ranks of different nodes
    home      the late rank's node; its mates are the other ranks of it

A rank still has one port each way: it sends to a mate or into the network in a round, not both.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.synth.cost import Link
from latecomer.synth.standard import require_ranks
from latecomer.verify.errors import ArgumentError


@dataclass(frozen=True)
class Machine:
    """M nodes of G ranks with P network ports each, and both kinds of link.

    Raises:
        ArgumentError: a number is out of its range.

    Examples:
        >>> from latecomer.synth.cost import Link
        >>> from latecomer.synth.twolevel.machine import Machine
        >>> inner = Link(alpha_s=3e-6, bandwidth=450e9)
        >>> outer = Link(alpha_s=10e-6, bandwidth=50e9)
        >>> machine = Machine(nodes=2, per_node=4, network_ports=4, inner=inner, outer=outer)
        >>> machine.ranks, machine.node_of
        (8, (0, 0, 0, 0, 1, 1, 1, 1))
    """

    nodes: int
    per_node: int
    network_ports: int
    inner: Link
    outer: Link

    def __post_init__(self) -> None:
        for name, value in [("--nodes", self.nodes), ("--per-node", self.per_node)]:
            if value < 1:
                raise ArgumentError(name, value, "must be 1 or more")
        require_ranks(self.ranks)
        if not 1 <= self.network_ports <= self.per_node:
            raise ArgumentError(
                "--network-ports",
                self.network_ports,
                f"must be in 1..{self.per_node}, the ranks of a node",
            )
        for kind, link in [("inner", self.inner), ("outer", self.outer)]:
            if not 0 <= link.alpha_s < float("inf"):
                raise ArgumentError(f"{kind} alpha", link.alpha_s, "must be 0 or more seconds")
            if not 0 < link.bandwidth < float("inf"):
                raise ArgumentError(
                    f"{kind} bandwidth", link.bandwidth, "must be positive (bytes per second)"
                )

    @property
    def ranks(self) -> int:
        """n, the number of ranks."""
        return self.nodes * self.per_node

    @property
    def node_of(self) -> tuple[int, ...]:
        """The node of each rank."""
        return tuple(rank // self.per_node for rank in range(self.ranks))

    def ranks_of(self, node: int) -> range:
        """The ranks of a node."""
        return range(node * self.per_node, (node + 1) * self.per_node)

    def link(self, src: int, dst: int) -> Link:
        """The link between two ranks."""
        same_node = src // self.per_node == dst // self.per_node
        return self.inner if same_node else self.outer
