"""The hierarchical ring AllReduce, which uses no wait: what a late rank is compared with.

ReduceScatter around the ring of every node, AllReduce around M nodes for every local rank, and
AllGather around every node: 2 (G - 1) inner rounds and 2 (M - 1) network rounds. The buffer has
n chunks, G groups of M; a message inside a node is a group. All G local ranks use the network at
once: with fewer network ports, :func:`latecomer.synth.twolevel.network.fitted` makes them take
    turns.

Source: the hierarchical AllReduce of Horovod and NCCL. Deviation: rings on both levels.
"""

from __future__ import annotations

from latecomer.synth.twolevel.machine import Machine
from latecomer.verify.core.schedule import Incast, Op, Phase, Round, Schedule, Transfer


def hierarchical_ring(machine: Machine) -> Schedule:
    """The schedule, with a name for each phase; there is no straggler in it."""
    nodes = machine.nodes
    per_node = machine.per_node

    def inside(step: int, lag: int, op: Op) -> Round:
        """Local rank i sends group (i + lag - step) mod G on to the next of its node.

        Args:
            lag: 0 while sums grow, 1 when they are full: each rank then starts one group further.
        """
        transfers = []
        for node in range(nodes):
            for local_rank in range(per_node):
                src = node * per_node + local_rank
                dst = node * per_node + (local_rank + 1) % per_node
                group = (local_rank + lag - step) % per_node
                for chunk in range(group * nodes, (group + 1) * nodes):
                    transfers.append(Transfer(src, dst, chunk, op))
        return tuple(transfers)

    def between(step: int, lag: int, op: Op) -> Round:
        """Node v sends block (v + lag - step) mod M of each local rank's group to the next."""
        transfers = []
        for node in range(nodes):
            for local_rank in range(per_node):
                src = node * per_node + local_rank
                dst = (node + 1) % nodes * per_node + local_rank
                group = (local_rank + 1) % per_node
                block = (node + lag - step) % nodes
                transfers.append(Transfer(src, dst, group * nodes + block, op))
        return tuple(transfers)

    phases = [
        ("reduce_scatter_inside", [inside(step, 0, "reduce") for step in range(per_node - 1)]),
        ("reduce_scatter_between", [between(step, 0, "reduce") for step in range(nodes - 1)]),
        ("all_gather_between", [between(step, 1, "copy") for step in range(nodes - 1)]),
        ("all_gather_inside", [inside(step, 1, "copy") for step in range(per_node - 1)]),
    ]
    return Schedule(
        ranks=machine.ranks,
        chunks=machine.ranks,
        ports=Incast(nodes) if per_node > 1 and nodes > 1 else "duplex",
        phases=tuple(Phase(name, (), tuple(rounds)) for name, rounds in phases if rounds),
        meta={"method": "hierarchical ring"},
    )
