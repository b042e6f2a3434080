"""Random MSCCL++ plans that are nearly right: a right algorithm, then up to four changes.

Operations are put at the ends of their blocks in an order in which they could run. Before each
operation stands whatever keeps it behind those that it must come after: a ``nop`` within a block, a
barrier or a semaphore between two blocks of a GPU, a signal and a wait between two GPUs. The
changes are those that break such things: a count of a barrier, a ``nop`` that is missing, a
semaphore that two blocks take from.
"""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

Operation = dict[str, Any]
Plan = dict[str, Any]
Cell = tuple[int, str, int]
"""A rank, its buffer (``p``: a packet in scratch), and where in it."""
Position = tuple[int, int, int]
"""Where an operation is: the rank, the block, the index in the block."""
REMOTE = {"i": 0, "o": 1, "s": 2}
"""A peer's buffers, by the number that all blocks give them: 3 for each peer."""


class Builder:
    """Appends operations to blocks, with what they have to wait for.

    Attributes:
        parts: into how many parts (``tbg_info``) an operation may be cut, for as many blocks.
        clocks: per (rank, block), the last operation of each other block that it comes after.
        touched: per cell, the operations that touch it: (rank, block, index, whether written).
        channels: per (rank, block, peer, its block), the numbers of the channel's two ends.
        within: per (rank, earlier block, later block), the semaphore between the two.
        shares: the blocks of a rank share one semaphore, and one channel to each peer.
        meets: how often two blocks of a rank meet at a barrier instead of using a semaphore.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.ranks = draw.choice((2, 2, 2, 2, 3))
        self.collective = draw.choice(("allreduce", "allreduce", "allgather"))
        self.in_place = draw.random() < 0.5
        self.parts = draw.choice((1, 1, 2))
        if self.ranks == 2:
            self.blocks_per_rank = draw.choice((1, 2, 2, 3, 3))
        else:
            self.blocks_per_rank = draw.choice((1, 2))
        self.chunks = draw.choice((1, 1, 2))
        self.scratch = [0] * self.ranks
        self.ops: list[list[list[Operation]]] = []
        self.clocks: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for rank in range(self.ranks):
            self.ops.append([[] for _ in range(self.blocks_per_rank)])
            for block in range(self.blocks_per_rank):
                self.clocks[rank, block] = {}
        self.touched: dict[Cell, list[tuple[int, int, int, bool]]] = {}
        self.peers: list[list[int]] = [[] for _ in range(self.ranks)]
        self.semaphores: list[list[int]] = [[] for _ in range(self.ranks)]
        self.barriers = [0] * self.ranks
        self.channels: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        self.within: dict[tuple[int, int, int], int] = {}
        self.shares = draw.random() < 0.35
        self.meets = 0.1 if self.shares else draw.random()

    def others(self, rank: int) -> list[int]:
        """The other ranks."""
        return [peer for peer in range(self.ranks) if peer != rank]

    # what an operation touches

    def area(self, rank: int, owner: int, buffer: str, index: int, size: int = 1) -> Operation:
        """An area as an operation of ``rank`` names it."""
        if owner == rank:
            return {"type": buffer, "index": index, "size": size}
        number = 3 * self.others(rank).index(owner) + REMOTE[buffer]
        return {"buffer_id": number, "index": index, "size": size}

    def _cell(self, owner: int, buffer: str, index: int) -> Cell:
        if self.in_place and buffer == "i":
            if self.collective == "allgather":
                index += owner * self.chunks
            return owner, "o", index
        return owner, buffer, index

    def add(
        self,
        rank: int,
        block: int,
        name: str,
        reads: list[Cell],
        writes: list[Cell],
        size: int = 1,
        part: int | None = None,
    ) -> None:
        """Append an operation on areas given as (owner, buffer, index); ``p`` is a packet."""
        touches = self._touches(reads, False, size, part) + self._touches(writes, True, size, part)
        self.order(rank, block, touches)

        op: Operation = {"name": name}
        if name not in {"copy", "re", "upkt", "repkt", "recpkt"}:
            op["channel_type"] = "memory"
        op["src_buff"] = self._areas(rank, reads, size)
        op["dst_buff"] = self._areas(rank, writes, size)
        if part is not None:
            op["tbg_info"] = {"tb_id": part, "tbg_size": self.parts}

        operations = self.ops[rank][block]
        operations.append(op)
        for cell, wrote in touches:
            accesses = self.touched.setdefault(cell, [])
            accesses.append((rank, block, len(operations) - 1, wrote))

    def _touches(
        self, areas: list[Cell], writes: bool, size: int, part: int | None
    ) -> list[tuple[Cell, bool]]:
        """The parts of chunks that an operation touches in these areas."""
        parts = range(self.parts) if part is None else (part,)
        touches = []
        for owner, buffer, first in areas:
            for chunk in range(first, first + size):
                cell_owner, cell_buffer, index = self._cell(owner, buffer, chunk)
                for part_number in parts:
                    cell = (cell_owner, cell_buffer, index * self.parts + part_number)
                    touches.append((cell, writes))
        return touches

    def _areas(self, rank: int, areas: list[Cell], size: int) -> list[Operation]:
        """The areas as a plan names them, where a packet is in scratch like all else."""
        named = []
        for owner, buffer, index in areas:
            named.append(self.area(rank, owner, "s" if buffer == "p" else buffer, index, size))
        return named

    def order(self, rank: int, block: int, touches: list[tuple[Cell, bool]]) -> None:
        """Let what comes next in a block wait for all that it meets."""
        needed: dict[tuple[int, int], int] = {}
        for cell, writes in touches:
            for owner, other_block, index, wrote in self.touched.get(cell, []):
                # What reads a packet waits for it anyway.
                reads_packet = cell[1] == "p" and wrote and not writes
                if (writes or wrote) and not reads_packet:
                    key = (owner, other_block)
                    needed[key] = max(needed.get(key, -1), index)

        operations = self.ops[rank][block]
        clock = self.clocks[rank, block]
        for (owner, other_block), index in sorted(needed.items()):
            if (owner, other_block) == (rank, block):
                if not any(op["name"] in {"nop", "barrier"} for op in operations[index:]):
                    operations.append({"name": "nop"})
            elif clock.get((owner, other_block), -1) < index:
                if owner == rank:
                    self._within(rank, other_block, block)
                else:
                    self._between(owner, other_block, rank, block)

    def _tell(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        clock = self.clocks[source] | {source: len(self.ops[source[0]][source[1]]) - 1}
        for block, index in clock.items():
            self.clocks[target][block] = max(self.clocks[target].get(block, -1), index)

    def _together(self, rank: int, block: int) -> None:
        operations = self.ops[rank][block]
        if operations and operations[-1]["name"] not in {"nop", "barrier"}:
            operations.append({"name": "nop"})

    def _within(self, rank: int, earlier: int, later: int) -> None:
        if self.draw.random() < self.meets:
            self.barrier(rank, [earlier, later])
            return
        self._together(rank, earlier)

        key = (rank, 0, 0) if self.shares else (rank, earlier, later)
        if key not in self.within:
            self.semaphores[rank].append(0)
            self.within[key] = len(self.semaphores[rank]) - 1
        ids = [self.within[key]]
        self.ops[rank][earlier].append({"name": "sem_release", "semaphore_ids": ids})
        self.ops[rank][later].append({"name": "sem_acquire", "semaphore_ids": list(ids)})
        self.ops[rank][later].append({"name": "nop"})
        self._tell((rank, earlier), (rank, later))

    def barrier(self, rank: int, blocks: list[int]) -> None:
        """Let blocks of a rank meet."""
        members = sorted(blocks)
        if self.draw.random() < 0.5:
            members = list(range(self.blocks_per_rank))
        number = 0
        if len(members) < self.blocks_per_rank:
            number = 1 + sum(1 << n for n in members)
        for member in members:
            self.ops[rank][member].append(
                {"name": "barrier", "barrier_id": number, "num_threadblocks": len(members)}
            )

        for first in members:
            for second in members:
                if first != second:
                    self._tell((rank, first), (rank, second))

    def _between(self, source: int, earlier: int, target: int, later: int) -> None:
        self._together(source, earlier)
        key = (source, earlier, target, later)
        if self.shares:
            key = (source, 0, target, 0)
        if key not in self.channels:
            reverse = (target, later, source, earlier)
            if reverse in self.channels:
                peer_channel, own_channel = self.channels[reverse]
                self.channels[key] = (own_channel, peer_channel)
            else:
                self.peers[source].append(target)
                self.peers[target].append(source)
                self.channels[key] = (len(self.peers[source]) - 1, len(self.peers[target]) - 1)

        own_channel, peer_channel = self.channels[key]
        relaxed = "rlx" if self.draw.random() < 0.03 else ""
        self.ops[source][earlier].append(
            {"name": f"{relaxed}signal", "channel_ids": [own_channel], "channel_type": "memory"}
        )
        self.ops[target][later].append(
            {"name": f"{relaxed}wait", "channel_ids": [peer_channel], "channel_type": "memory"}
        )
        self.ops[target][later].append({"name": "nop"})
        self._tell((source, earlier), (target, later))

    # algorithms

    def room(self, rank: int, count: int = 1) -> int:
        """New chunks of scratch."""
        self.scratch[rank] += count
        return self.scratch[rank] - count

    def both(
        self, rank: int, name: str, reads: list[Cell], writes: list[Cell], size: int = 1
    ) -> None:
        """An operation, done by one block or in parts by several."""
        blocks = list(range(self.blocks_per_rank))
        self.draw.shuffle(blocks)
        if self.parts > 1 and len(blocks) >= self.parts and self.draw.random() < 0.6:
            for part in range(self.parts):
                self.add(rank, blocks[part], name, reads, writes, size, part)
        else:
            self.add(rank, blocks[0], name, reads, writes, size)

    def all_reduce(self, chunk: int) -> None:
        """One chunk of an all-reduce, in one of a few ways."""
        kind = self.draw.choice(("packets", "put", "owner", "get", "forward", "relay"))
        if kind in {"packets", "put", "get"}:
            self._reduce_everywhere(kind, chunk)
            return

        owner = self.draw.randrange(self.ranks)
        if kind == "owner":
            self._reduce_in_peers_memory(owner, chunk)
        else:
            self._reduce_by_packets(owner, chunk, relayed=kind == "relay")

    def _reduce_everywhere(self, kind: str, chunk: int) -> None:
        """Each rank gets all contributions, and sums them up itself."""
        rooms = {}
        for rank in range(self.ranks):
            for peer in self.others(rank):
                rooms[rank, peer] = self.room(peer)

        for rank in range(self.ranks):
            own = (rank, "i", chunk)
            for peer in self.others(rank):
                contribution = (peer, "i", chunk)
                if kind == "packets":
                    self.both(rank, "ppkt", [own], [(peer, "p", rooms[rank, peer])])
                elif kind == "put":
                    self.both(rank, "put", [own], [(peer, "s", rooms[rank, peer])])
                elif chunk == rooms[peer, rank] or self.draw.random() < 0.05:
                    self.both(rank, "get", [contribution], [(rank, "s", rooms[peer, rank])])
                else:
                    self.both(peer, "put", [contribution], [(rank, "s", rooms[peer, rank])])

        name = "repkt" if kind == "packets" else "re"
        buffer = "p" if kind == "packets" else "s"
        for rank in range(self.ranks):
            came = [(rank, buffer, rooms[peer, rank]) for peer in self.others(rank)]
            self.both(rank, name, [(rank, "i", chunk), *came], [(rank, "o", chunk)])

    def _reduce_in_peers_memory(self, owner: int, chunk: int) -> None:
        """One rank reads all contributions where they are, and writes the sum to all."""
        own = (owner, "i", chunk)
        result = (owner, "o", chunk)
        contributions = [(peer, "i", chunk) for peer in self.others(owner)]
        results = [(peer, "o", chunk) for peer in self.others(owner)]
        if self.draw.random() < 0.5:
            self.both(owner, "rres", [own, *contributions], [result, *results])
            return

        self.both(owner, "rre", [own, *contributions], [result])
        for result_of_peer in results:
            self.both(owner, "put", [result], [result_of_peer])

    def _reduce_by_packets(self, owner: int, chunk: int, relayed: bool) -> None:
        """All send packets to one rank, which sends the sum back in packets.

        ``relayed``: the sum is a packet of its own first, which is then sent on as it is.
        """
        rooms = {peer: self.room(owner) for peer in self.others(owner)}
        rooms_back = {peer: self.room(peer) for peer in self.others(owner)}
        for peer in self.others(owner):
            self.both(peer, "ppkt", [(peer, "i", chunk)], [(owner, "p", rooms[peer])])

        own = (owner, "i", chunk)
        result = (owner, "o", chunk)
        came = [(owner, "p", room) for room in rooms.values()]
        sent = [(peer, "p", room) for peer, room in rooms_back.items()]
        if relayed:
            packet = (owner, "p", self.room(owner))
            self.both(owner, "recpkt", [own, *came], [result, packet])
            self.both(owner, "rppkt", [packet], sent)
        else:
            self.both(owner, "respkt", [own, *came], [result, *sent])

        for peer in self.others(owner):
            self.both(peer, "upkt", [(peer, "p", rooms_back[peer])], [(peer, "o", chunk)])

    def all_gather(self, rank: int) -> None:
        """One rank's part of an all-gather."""
        kind = self.draw.choice(("put", "put", "packets", "out"))
        size = self.chunks if self.draw.random() < 0.5 else 1
        for low in range(0, self.chunks, size):
            target = rank * self.chunks + low
            if not self.in_place:
                self.both(rank, "copy", [(rank, "i", low)], [(rank, "o", target)], size)
            for peer in self.others(rank):
                if kind == "put":
                    self.both(rank, "put", [(rank, "i", low)], [(peer, "o", target)], size)
                elif kind == "out":
                    room = self.room(peer, size)
                    self.both(rank, "put", [(rank, "i", low)], [(peer, "s", room)], size)
                    self.both(peer, "copy", [(peer, "s", room)], [(peer, "o", target)], size)
                else:
                    room = self.room(peer, size)
                    self.both(rank, "ppkt", [(rank, "i", low)], [(peer, "p", room)], size)
                    self.both(peer, "upkt", [(peer, "p", room)], [(peer, "o", target)], size)

    def bystander(self) -> None:
        """What changes no result."""
        rank = self.draw.randrange(self.ranks)
        if self.blocks_per_rank > 1 and self.draw.random() < 0.7:
            self.barrier(rank, self.draw.sample(range(self.blocks_per_rank), 2))
        else:
            self.both(rank, "copy", [(rank, "i", 0)], [(rank, "s", self.room(rank))])

    def plan(self) -> Plan:
        """A right plan."""
        pieces = list(range(self.chunks if self.collective == "allreduce" else self.ranks))
        self.draw.shuffle(pieces)
        for piece in pieces:
            if self.draw.random() < 0.25:
                self.bystander()
            if self.collective == "allreduce":
                self.all_reduce(piece)
            else:
                self.all_gather(piece)
        if self.draw.random() < 0.3:
            self.bystander()

        apart = self.draw.random() < 0.9
        plan = {
            "name": "draft",
            "collective": self.collective,
            "protocol": "LL" if self.draw.random() < 0.97 else "Simple",
            "inplace": self.in_place,
            "use_double_scratch_buffer": self.draw.random() < 0.1,
            "gpus": [self._gpu(rank) for rank in range(self.ranks)],
        }
        plan = deepcopy(plan)
        return keep_packets_apart(plan) if apart else plan

    def _gpu(self, rank: int) -> dict[str, Any]:
        """A rank's part of the plan."""
        remote_buffers = []
        for peer in self.others(rank):
            remote_buffers += [{"rank": peer, "type": buffer} for buffer in REMOTE]
        remote_ids = list(range(len(remote_buffers)))
        channel_ids = list(range(len(self.peers[rank])))

        blocks = []
        for number, operations in enumerate(self.ops[rank]):
            refs = {"access_channel_type": "memory", "remote_buffer_ids": remote_ids}
            block = {
                "id": number,
                "ops": operations,
                "channels": [{"channel_type": "memory", "channel_ids": channel_ids}],
                "remote_buffer_refs": [refs],
            }
            blocks.append(block)

        gathered = self.chunks * self.ranks
        return {
            "id": rank,
            "input_chunks": self.chunks,
            "output_chunks": gathered if self.collective == "allgather" else self.chunks,
            "scratch_chunks": 2 * self.scratch[rank],
            "threadblocks": blocks,
            "channels": [{"channel_type": "memory", "connected_to": self.peers[rank]}],
            "remote_buffers": remote_buffers,
            "semaphores": [{"init_value": value} for value in self.semaphores[rank]],
        }


PACKETS = {
    "ppkt": (("dst_buff", 0),),
    "upkt": (("src_buff", 0),),
    "repkt": (("src_buff", 1),),
    "respkt": (("src_buff", 1), ("dst_buff", 1)),
    "recpkt": (("src_buff", 1), ("dst_buff", 1)),
    "rppkt": (("src_buff", 0), ("dst_buff", 0)),
}
"""Which areas of an operation are packets: the side, and the first of them there."""


def keep_packets_apart(plan: Plan) -> Plan:
    """Let packets lie behind what is stored in scratch without flags, where both are used.

    A packet of chunk c takes the room of chunks 2 c and 2 c + 1.
    """
    for rank, gpu in enumerate(plan["gpus"]):
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                for side, first in PACKETS.get(op["name"], ()):
                    for area in op[side][first:]:
                        owner = rank
                        if "buffer_id" in area:
                            owner = gpu["remote_buffers"][area["buffer_id"]]["rank"]
                        area["index"] += plan["gpus"][owner]["scratch_chunks"] // 2
    return plan


def positions_of(plan: Plan) -> list[Position]:
    """Where there are operations."""
    positions = []
    for rank, gpu in enumerate(plan["gpus"]):
        for number, block in enumerate(gpu["threadblocks"]):
            positions += [(rank, number, index) for index in range(len(block["ops"]))]
    return positions


CHANGES = (
    "count of a barrier",
    "count of a barrier",
    "count of a barrier",
    "number of a barrier",
    "drop a nop",
    "drop a nop",
    "drop",
    "swap",
    "swap",
    "move",
    "index of an area",
    "size of an area",
    "initial value of a semaphore",
    "another semaphore or channel",
    "double",
    "another barrier",
    "pass a semaphore",
    "another block",
    "two channels at once",
    "part of an operation",
    "pass a semaphore",
)
"""The kinds of changes; those named several times are made more often."""


def change(plan: Plan, draw: random.Random) -> None:
    """One change of the kind that people make."""
    positions = positions_of(plan)
    if not positions:
        return

    position = draw.choice(positions)
    kind = draw.choice(CHANGES)
    for change_of_kind in (
        _change_barriers,
        _change_the_order,
        _change_an_area,
        _change_semaphores_and_channels,
    ):
        if change_of_kind(plan, position, kind, draw):
            return

    # Also where a kind of change found nothing to change.
    rank, number, index = position
    op = plan["gpus"][rank]["threadblocks"][number]["ops"][index]
    if "tbg_info" in op:
        op["tbg_info"]["tb_id"] = 1 - op["tbg_info"]["tb_id"]


def _named(plan: Plan, *names: str) -> list[tuple[list[Operation], int]]:
    """The operations of these names: each with the list that it is in, and its index there."""
    operations_and_indices = []
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            for index, op in enumerate(block["ops"]):
                if op["name"] in names:
                    operations_and_indices.append((block["ops"], index))
    return operations_and_indices


def _change_barriers(plan: Plan, position: Position, kind: str, draw: random.Random) -> bool:
    """A count or a number of barriers, or one barrier more; returns whether it is such a kind."""
    gpu = plan["gpus"][position[0]]
    barriers = _named(plan, "barrier")
    if kind == "count of a barrier" and barriers:
        same = draw.random() < 0.5
        drawn = draw.choice(barriers)
        operations, index = drawn
        before = dict(operations[index])
        count = max(1, before["num_threadblocks"] + draw.choice((-1, 1)))
        for barrier in barriers:
            operations, index = barrier
            if barrier == drawn or (same and operations[index] == before):
                operations[index]["num_threadblocks"] = count
    elif kind == "number of a barrier" and barriers:
        operations, index = draw.choice(barriers)
        operations[index]["barrier_id"] = draw.randrange(3)
    elif kind == "another barrier":
        count = draw.choice((1, 1, 2, 3))
        extra = {"name": "barrier", "barrier_id": draw.randrange(2), "num_threadblocks": count}
        blocks = gpu["threadblocks"]
        for block in draw.sample(blocks, draw.randint(1, len(blocks))):
            block["ops"].insert(draw.randint(0, len(block["ops"])), dict(extra))
    elif kind == "another block":
        _another_block(gpu, draw)
    else:
        return False
    return True


def _change_the_order(plan: Plan, position: Position, kind: str, draw: random.Random) -> bool:
    """Operations dropped, swapped, moved, doubled; returns whether it is such a kind."""
    rank, number, index = position
    gpu = plan["gpus"][rank]
    operations = gpu["threadblocks"][number]["ops"]
    nops = _named(plan, "nop")
    if kind == "drop a nop" and nops:
        operations_of_nop, index_of_nop = draw.choice(nops)
        del operations_of_nop[index_of_nop]
    elif kind == "drop":
        del operations[index]
    elif kind == "swap" and index + 1 < len(operations):
        operations.insert(index + 1, operations.pop(index))
    elif kind == "move":
        block = draw.choice(gpu["threadblocks"])
        moved = operations.pop(index)
        block["ops"].insert(min(index, len(block["ops"])), moved)
    elif kind == "double":
        operations.insert(index, deepcopy(operations[index]))
    else:
        return False
    return True


def _change_an_area(plan: Plan, position: Position, kind: str, draw: random.Random) -> bool:
    """Where an area is, or how large; returns whether it is such a kind."""
    rank, number, index = position
    op = plan["gpus"][rank]["threadblocks"][number]["ops"][index]
    if kind == "index of an area" and "src_buff" in op:
        area = draw.choice(op["src_buff"] + op["dst_buff"])
        area["index"] = max(0, area["index"] + draw.choice((-1, 1)))
    elif kind == "size of an area" and "src_buff" in op:
        area = draw.choice(op["src_buff"] + op["dst_buff"])
        area["size"] = draw.choice((1, 2))
    else:
        return False
    return True


SYNCHRONIZING = ("signal", "wait", "rlxsignal", "rlxwait", "sem_release", "sem_acquire")


def _change_semaphores_and_channels(
    plan: Plan, position: Position, kind: str, draw: random.Random
) -> bool:
    """Who signals whom, and how often; returns whether it is such a kind."""
    rank, number, index = position
    gpu = plan["gpus"][rank]
    if kind == "initial value of a semaphore" and gpu["semaphores"]:
        draw.choice(gpu["semaphores"])["init_value"] += draw.choice((-1, 1, 1))
    elif kind == "another semaphore or channel":
        synchronizing = _named(plan, *SYNCHRONIZING)
        if synchronizing:
            operations, index = draw.choice(synchronizing)
            op = operations[index]
            ids = "semaphore_ids" if "semaphore_ids" in op else "channel_ids"
            op[ids] = [max(0, op[ids][0] + draw.choice((-1, 1)))]
    elif kind == "pass a semaphore":
        _pass_a_semaphore(gpu, draw)
    elif kind == "two channels at once":
        nops = _named(plan, "nop")
        operations = gpu["threadblocks"][number]["ops"]
        if nops:
            operations, index = draw.choice(nops)
        names = {op["name"] for op in operations[index : index + 2]}
        if index + 1 < len(operations) and names <= {"wait", "signal"}:
            operations[index]["channel_ids"] = [0, 1]
    else:
        return False
    return True


def _pass_a_semaphore(gpu: Plan, draw: random.Random) -> None:
    """Blocks that release a semaphore, old or new, and blocks that take from it."""
    number = draw.randint(0, len(gpu["semaphores"]))
    if number == len(gpu["semaphores"]):
        gpu["semaphores"].append({"init_value": 0})
    for name in ("sem_release", "sem_acquire"):
        block = draw.choice(gpu["threadblocks"])
        index = draw.randint(0, len(block["ops"]))
        block["ops"].insert(index, {"name": "nop"})
        block["ops"].insert(index, {"name": name, "semaphore_ids": [number]})
        block["ops"].insert(index, {"name": "nop"})


def _another_block(gpu: Plan, draw: random.Random) -> None:
    """A block more, which does nothing but come to the barriers of another."""
    model = draw.choice(gpu["threadblocks"])
    ops = [deepcopy(op) for op in model["ops"] if op["name"] == "barrier"]
    gpu["threadblocks"].append(model | {"id": len(gpu["threadblocks"]), "ops": ops})


def make(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(seed)
    plan = Builder(draw).plan()
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        change(plan, draw)
    return plan
