"""An AllReduce in stages, each inside the nodes or between them: what GPUs run in kernels.

    1. inside     the ReduceScatter of every node; shard i is summed up at local rank i. The late
                  rank's mates sum up first, and exchange with it when it comes
    2. between    the ranks that have one shard, one of each node, all-reduce it by a schedule for
                  one late rank, with the late rank's node in its place; all shards at once
    3. inside     the AllGather of every node

No round has transfers of both kinds in one node. So on GPUs each stage inside a node is one kernel
per rank (:mod:`latecomer.verify.device.stages`), which goes on at the speed of the links inside.
In the wait all is done that takes no data of the late rank: the other nodes' ReduceScatter and,
with three nodes or more, the sum of their shards.

Source: the hierarchical AllReduce of Horovod and NCCL. Deviation: the middle stage is for a late
rank, and so is the first one in its node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.waiting import mates_of
from latecomer.verify.core.schedule import Phase, Round, Schedule, Transfer

METHOD = "stages"


def staged(machine: Machine, late: int, between: Schedule) -> Schedule:
    """The schedule, not yet proved; there are at least two nodes, of at least two ranks.

    Args:
        machine: nodes and ranks; ``late``: the late rank.
        between: for as many ranks as there are nodes, with the late rank's node late; its chunks
            are those of a shard.
    """
    home = late // machine.per_node
    assert between.ranks == machine.nodes
    assert between.late == (home,)
    chunks = between.chunks
    shards = [range(i * chunks, (i + 1) * chunks) for i in range(machine.per_node)]
    nodes = [list(machine.ranks_of(node)) for node in range(machine.nodes)]

    scattering = []
    gathering = []
    for node, ranks in enumerate(nodes):
        scattering.append(_reduce_scatter(ranks, shards, late if node == home else None))
        gathering.append(_all_gather(ranks, shards))

    phases = [Phase("reduce_scatter_inside", (late,), _side_by_side(scattering))]
    waiting = [phase for phase in between.phases if phase.absent]
    completing = [phase for phase in between.phases if not phase.absent]
    phases += [_in_all_shards(phase, nodes, chunks, (late,)) for phase in waiting]
    exchange = tuple(_exchange(late, mates_of(machine, late), shards, machine.per_node))
    phases.append(Phase("late_rank_inside", (), exchange))
    phases += [_in_all_shards(phase, nodes, chunks, ()) for phase in completing]
    phases.append(Phase("all_gather_inside", (), _side_by_side(gathering)))
    return Schedule(
        ranks=machine.ranks,
        chunks=machine.per_node * chunks,
        late=(late,),
        phases=tuple(phase for phase in phases if phase.rounds),
        meta={"method": METHOD, "nodes": machine.nodes},
    )


def _reduce_scatter(
    ranks: Sequence[int], shards: Sequence[range], late: int | None
) -> Iterator[Round]:
    """Each shard to its owner, by rotation; without the late rank and its shard."""
    taking_part = [i for i, rank in enumerate(ranks) if rank != late]
    count = len(taking_part)
    for shift in range(1, count):
        for chunk in range(len(shards[0])):
            yield tuple(
                Transfer(
                    ranks[taking_part[(at - shift) % count]],
                    ranks[owner],
                    shards[owner][chunk],
                    "reduce",
                )
                for at, owner in enumerate(taking_part)
            )


def _exchange(
    late: int, mates: Sequence[int], shards: Sequence[range], per_node: int
) -> Iterator[Round]:
    """The late rank with one mate after the other: each the part of the other's shard."""
    for mate in mates:
        for of_late, of_mate in zip(shards[late % per_node], shards[mate % per_node], strict=True):
            yield (
                Transfer(late, mate, of_mate, "reduce"),
                Transfer(mate, late, of_late, "reduce"),
            )


def _all_gather(ranks: Sequence[int], shards: Sequence[range]) -> Iterator[Round]:
    """Each shard from its owner to all, by rotation."""
    count = len(ranks)
    for shift in range(1, count):
        for chunk in range(len(shards[0])):
            yield tuple(
                Transfer(ranks[owner], ranks[(owner + shift) % count], shards[owner][chunk], "copy")
                for owner in range(count)
            )


def _in_all_shards(
    phase: Phase, nodes: Sequence[Sequence[int]], chunks: int, absent: tuple[int, ...]
) -> Phase:
    """A phase among nodes, among the owners of every shard at the same time."""
    rounds = []
    for transfers in phase.rounds:
        of_all = []
        for local_rank in range(len(nodes[0])):
            for transfer in transfers:
                src = nodes[transfer.src][local_rank]
                dst = nodes[transfer.dst][local_rank]
                chunk = local_rank * chunks + transfer.chunk
                of_all.append(Transfer(src, dst, chunk, transfer.op))
        rounds.append(tuple(of_all))
    return Phase(f"{phase.name}_between", absent, tuple(rounds))


def _side_by_side(nodes: Sequence[Iterator[Round]]) -> tuple[Round, ...]:
    """What the nodes do, in one round all their first rounds, and so on."""
    return tuple(tuple(chain(*parts)) for parts in zip_longest(*nodes, fillvalue=()))
