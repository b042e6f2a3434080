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
REMOTE = {"i": 0, "o": 1, "s": 2}
"""A peer's buffers, by the number that all blocks give them: 3 for each peer."""


class Builder:
    """Appends operations to blocks, with what they have to wait for."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.ranks = draw.choice((2, 2, 2, 2, 3))
        self.collective = draw.choice(("allreduce", "allreduce", "allgather"))
        self.in_place = draw.random() < 0.5
        self.parts = draw.choice((1, 1, 2))
        self.blocks_of = draw.choice((1, 2, 2, 3, 3)) if self.ranks == 2 else draw.choice((1, 2))
        self.chunks = draw.choice((1, 1, 2))
        self.scratch = [0] * self.ranks
        self.ops: list[list[list[Operation]]] = [
            [[] for _ in range(self.blocks_of)] for _ in range(self.ranks)
        ]
        self.clocks: dict[tuple[int, int], dict[tuple[int, int], int]] = {
            (rank, block): {} for rank in range(self.ranks) for block in range(self.blocks_of)
        }
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
        return [other for other in range(self.ranks) if other != rank]

    # what an operation touches

    def area(self, rank: int, owner: int, buffer: str, index: int, size: int = 1) -> Operation:
        """An area as an operation of ``rank`` names it."""
        if owner == rank:
            return {"type": buffer, "index": index, "size": size}
        number = 3 * self.others(rank).index(owner) + REMOTE[buffer]
        return {"buffer_id": number, "index": index, "size": size}

    def _cell(self, owner: int, buffer: str, index: int) -> tuple[int, str, int]:
        if self.in_place and buffer == "i":
            shift = owner * self.chunks if self.collective == "allgather" else 0
            return owner, "o", index + shift
        return owner, buffer, index

    def add(
        self,
        rank: int,
        block: int,
        name: str,
        reads: list[tuple[int, str, int]],
        writes: list[tuple[int, str, int]],
        size: int = 1,
        part: int | None = None,
    ) -> None:
        """Append an operation on areas given as (owner, buffer, index); ``p`` is a packet."""
        touches = []
        for areas, wrote in ((reads, False), (writes, True)):
            for owner, buffer, index in areas:
                for chunk in range(index, index + size):
                    place, kind, at = self._cell(owner, buffer, chunk)
                    cells = range(self.parts) if part is None else (part,)
                    touches += [((place, kind, at * self.parts + c), wrote) for c in cells]
        self.order(rank, block, touches)
        op: Operation = {"name": name}
        if name not in {"copy", "re", "upkt", "repkt", "recpkt"}:
            op["channel_type"] = "memory"
        op["src_buff"] = [self.area(rank, o, "s" if b == "p" else b, n, size) for o, b, n in reads]
        op["dst_buff"] = [self.area(rank, o, "s" if b == "p" else b, n, size) for o, b, n in writes]
        if part is not None:
            op["tbg_info"] = {"tb_id": part, "tbg_size": self.parts}
        operations = self.ops[rank][block]
        operations.append(op)
        for cell, wrote in touches:
            known = self.touched.setdefault(cell, [])
            known.append((rank, block, len(operations) - 1, wrote))

    def order(self, rank: int, block: int, touches: list[tuple[Cell, bool]]) -> None:
        """Let what comes next in a block wait for all that it meets."""
        needed: dict[tuple[int, int], int] = {}
        for cell, writes in touches:
            for owner, other, at, wrote in self.touched.get(cell, []):
                if (writes or wrote) and not (cell[1] == "p" and wrote and not writes):
                    key = owner, other
                    needed[key] = max(needed.get(key, -1), at)
        mine = (rank, block)
        for (owner, other), at in sorted(needed.items()):
            if (owner, other) == mine:
                if not any(op["name"] in {"nop", "barrier"} for op in self.ops[rank][block][at:]):
                    self.ops[rank][block].append({"name": "nop"})
            elif self.clocks[mine].get((owner, other), -1) < at:
                if owner == rank:
                    self._within(rank, other, block)
                else:
                    self._between(owner, other, rank, block)

    def _tell(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        known = self.clocks[source] | {source: len(self.ops[source[0]][source[1]]) - 1}
        for block, at in known.items():
            self.clocks[target][block] = max(self.clocks[target].get(block, -1), at)

    def _together(self, rank: int, block: int) -> None:
        operations = self.ops[rank][block]
        if operations and operations[-1]["name"] not in {"nop", "barrier"}:
            operations.append({"name": "nop"})

    def _within(self, rank: int, earlier: int, later: int) -> None:
        if self.draw.random() < self.meets:
            self.barrier(rank, [earlier, later])
            return
        self._together(rank, earlier)
        key = (rank, 0 if self.shares else earlier, 0 if self.shares else later)
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
            members = list(range(self.blocks_of))
        number = 0
        if len(members) < self.blocks_of:
            number = 1 + sum(1 << n for n in members)
        for member in members:
            self.ops[rank][member].append(
                {"name": "barrier", "barrier_id": number, "num_threadblocks": len(members)}
            )
        for one in members:
            for two in members:
                if one != two:
                    self._tell((rank, one), (rank, two))

    def _between(self, source: int, earlier: int, target: int, later: int) -> None:
        self._together(source, earlier)
        key = (source, earlier, target, later)
        if self.shares:
            key = (source, 0, target, 0)
        if key not in self.channels:
            back = (target, later, source, earlier)
            if back in self.channels:
                there, here = self.channels[back]
                self.channels[key] = here, there
            else:
                self.peers[source].append(target)
                self.peers[target].append(source)
                self.channels[key] = len(self.peers[source]) - 1, len(self.peers[target]) - 1
        here, there = self.channels[key]
        relaxed = "rlx" if self.draw.random() < 0.03 else ""
        self.ops[source][earlier].append(
            {"name": f"{relaxed}signal", "channel_ids": [here], "channel_type": "memory"}
        )
        self.ops[target][later].append(
            {"name": f"{relaxed}wait", "channel_ids": [there], "channel_type": "memory"}
        )
        self.ops[target][later].append({"name": "nop"})
        self._tell((source, earlier), (target, later))

    # algorithms

    def room(self, rank: int, many: int = 1) -> int:
        """New chunks of scratch."""
        self.scratch[rank] += many
        return self.scratch[rank] - many

    def both(
        self, rank: int, name: str, reads: list[Any], writes: list[Any], size: int = 1
    ) -> None:
        """An operation, done by one block or in parts by several."""
        blocks = list(range(self.blocks_of))
        self.draw.shuffle(blocks)
        if self.parts > 1 and len(blocks) >= self.parts and self.draw.random() < 0.6:
            for part in range(self.parts):
                self.add(rank, blocks[part], name, reads, writes, size, part)
        else:
            self.add(rank, blocks[0], name, reads, writes, size)

    def all_reduce(self, chunk: int) -> None:
        """One chunk of an all-reduce, in one of a few ways."""
        kind = self.draw.choice(("packets", "put", "owner", "get", "forward", "relay"))
        ranks = range(self.ranks)
        if kind in {"packets", "put", "get"}:
            rooms = {}
            for rank in ranks:
                for peer in self.others(rank):
                    rooms[rank, peer] = self.room(peer)
            for rank in ranks:
                for peer in self.others(rank):
                    if kind == "packets":
                        self.both(
                            rank, "ppkt", [(rank, "i", chunk)], [(peer, "p", rooms[rank, peer])]
                        )
                    elif kind == "put":
                        self.both(
                            rank, "put", [(rank, "i", chunk)], [(peer, "s", rooms[rank, peer])]
                        )
                    elif chunk == rooms[peer, rank] or self.draw.random() < 0.05:
                        self.both(
                            rank, "get", [(peer, "i", chunk)], [(rank, "s", rooms[peer, rank])]
                        )
                    else:
                        self.both(
                            peer, "put", [(peer, "i", chunk)], [(rank, "s", rooms[peer, rank])]
                        )
            for rank in ranks:
                buffer, name = ("p", "repkt") if kind == "packets" else ("s", "re")
                came = [(rank, buffer, rooms[peer, rank]) for peer in self.others(rank)]
                self.both(rank, name, [(rank, "i", chunk), *came], [(rank, "o", chunk)])
            return
        owner = self.draw.randrange(self.ranks)
        theirs = [(peer, "i", chunk) for peer in self.others(owner)]
        out = [(peer, "o", chunk) for peer in self.others(owner)]
        if kind == "owner":
            if self.draw.random() < 0.5:
                self.both(
                    owner, "rres", [(owner, "i", chunk), *theirs], [(owner, "o", chunk), *out]
                )
            else:
                self.both(owner, "rre", [(owner, "i", chunk), *theirs], [(owner, "o", chunk)])
                for place in out:
                    self.both(owner, "put", [(owner, "o", chunk)], [place])
            return
        rooms = {peer: self.room(owner) for peer in self.others(owner)}
        backs = {peer: self.room(peer) for peer in self.others(owner)}
        for peer in self.others(owner):
            self.both(peer, "ppkt", [(peer, "i", chunk)], [(owner, "p", rooms[peer])])
        came = [(owner, "p", room) for room in rooms.values()]
        sent = [(peer, "p", room) for peer, room in backs.items()]
        if kind == "relay":
            mine = [(owner, "p", self.room(owner))]
            self.both(owner, "recpkt", [(owner, "i", chunk), *came], [(owner, "o", chunk), *mine])
            self.both(owner, "rppkt", mine, sent)
        else:
            self.both(owner, "respkt", [(owner, "i", chunk), *came], [(owner, "o", chunk), *sent])
        for peer in self.others(owner):
            self.both(peer, "upkt", [(peer, "p", backs[peer])], [(peer, "o", chunk)])

    def all_gather(self, rank: int) -> None:
        """One rank's part of an all-gather."""
        kind = self.draw.choice(("put", "put", "packets", "out"))
        size = self.chunks if self.draw.random() < 0.5 else 1
        for low in range(0, self.chunks, size):
            to = rank * self.chunks + low
            if not self.in_place:
                self.both(rank, "copy", [(rank, "i", low)], [(rank, "o", to)], size)
            for peer in self.others(rank):
                if kind == "put":
                    self.both(rank, "put", [(rank, "i", low)], [(peer, "o", to)], size)
                elif kind == "out":
                    room = self.room(peer, size)
                    self.both(rank, "put", [(rank, "i", low)], [(peer, "s", room)], size)
                    self.both(peer, "copy", [(peer, "s", room)], [(peer, "o", to)], size)
                else:
                    room = self.room(peer, size)
                    self.both(rank, "ppkt", [(rank, "i", low)], [(peer, "p", room)], size)
                    self.both(peer, "upkt", [(peer, "p", room)], [(peer, "o", to)], size)

    def bystander(self) -> None:
        """What changes no result."""
        rank = self.draw.randrange(self.ranks)
        if self.blocks_of > 1 and self.draw.random() < 0.7:
            self.barrier(rank, self.draw.sample(range(self.blocks_of), 2))
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
        gpus = []
        for rank in range(self.ranks):
            ids = list(range(len(self.peers[rank])))
            remotes = [{"rank": p, "type": b} for p in self.others(rank) for b in REMOTE]
            refs = [
                {"access_channel_type": "memory", "remote_buffer_ids": list(range(len(remotes)))}
            ]
            blocks = [
                {
                    "id": number,
                    "ops": ops,
                    "channels": [{"channel_type": "memory", "channel_ids": ids}],
                    "remote_buffer_refs": refs,
                }
                for number, ops in enumerate(self.ops[rank])
            ]
            whole = self.chunks * (self.ranks if self.collective == "allgather" else 1)
            gpus.append(
                {
                    "id": rank,
                    "input_chunks": self.chunks,
                    "output_chunks": whole,
                    "scratch_chunks": 2 * self.scratch[rank],
                    "threadblocks": blocks,
                    "channels": [{"channel_type": "memory", "connected_to": self.peers[rank]}],
                    "remote_buffers": remotes,
                    "semaphores": [{"init_value": value} for value in self.semaphores[rank]],
                }
            )
        plan = {
            "name": "draft",
            "collective": self.collective,
            "protocol": "LL" if self.draw.random() < 0.97 else "Simple",
            "inplace": self.in_place,
            "use_double_scratch_buffer": self.draw.random() < 0.1,
            "gpus": gpus,
        }
        return keep_packets_apart(deepcopy(plan)) if apart else deepcopy(plan)


def keep_packets_apart(plan: Plan) -> Plan:
    """Let packets lie behind what is stored in scratch without flags, where both are used.

    A packet of chunk c takes the room of chunks 2 c and 2 c + 1.
    """
    packets = {"ppkt": ("dst_buff", 0), "upkt": ("src_buff", 0), "repkt": ("src_buff", 1)}
    for rank, gpu in enumerate(plan["gpus"]):
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                sides = [packets[op["name"]]] if op["name"] in packets else []
                if op["name"] in {"respkt", "recpkt"}:
                    sides = [("src_buff", 1), ("dst_buff", 1)]
                if op["name"] == "rppkt":
                    sides = [("src_buff", 0), ("dst_buff", 0)]
                for side, first in sides:
                    for area in op[side][first:]:
                        owner = rank
                        if "buffer_id" in area:
                            owner = gpu["remote_buffers"][area["buffer_id"]]["rank"]
                        area["index"] += plan["gpus"][owner]["scratch_chunks"] // 2
    return plan


def places_of(plan: Plan) -> list[tuple[int, int, int]]:
    """Where there are operations."""
    return [
        (rank, number, at)
        for rank, gpu in enumerate(plan["gpus"])
        for number, block in enumerate(gpu["threadblocks"])
        for at in range(len(block["ops"]))
    ]


def change(plan: Plan, draw: random.Random) -> None:
    """One change of the kind that people make."""
    places = places_of(plan)
    if not places:
        return
    rank, number, at = draw.choice(places)
    gpu = plan["gpus"][rank]
    ops = gpu["threadblocks"][number]["ops"]
    op = ops[at]

    def named(*names: str) -> list[tuple[list[Operation], int]]:
        found = []
        for r, b, n in places:
            operations = plan["gpus"][r]["threadblocks"][b]["ops"]
            if operations[n]["name"] in names:
                found.append((operations, n))
        return found

    kind = draw.randrange(21)
    barriers = named("barrier")
    nops = named("nop")
    if kind <= 2 and barriers:
        same = draw.random() < 0.5
        operations, n = draw.choice(barriers)
        count = max(1, operations[n]["num_threadblocks"] + draw.choice((-1, 1)))
        was = dict(operations[n])
        for others, m in barriers:
            if (others, m) == (operations, n) or (same and others[m] == was):
                others[m]["num_threadblocks"] = count
    elif kind == 3 and barriers:
        operations, n = draw.choice(barriers)
        operations[n]["barrier_id"] = draw.randrange(3)
    elif kind in {4, 5} and nops:
        operations, n = draw.choice(nops)
        del operations[n]
    elif kind == 6:
        del ops[at]
    elif kind in {7, 8} and at + 1 < len(ops):
        ops[at], ops[at + 1] = ops[at + 1], ops[at]
    elif kind == 9:
        other = draw.choice(gpu["threadblocks"])["ops"]
        moved = ops.pop(at)
        other.insert(min(at, len(other)), moved)
    elif kind == 10 and "src_buff" in op:
        area = draw.choice(op["src_buff"] + op["dst_buff"])
        area["index"] = max(0, area["index"] + draw.choice((-1, 1)))
    elif kind == 11 and "src_buff" in op:
        area = draw.choice(op["src_buff"] + op["dst_buff"])
        area["size"] = draw.choice((1, 2))
    elif kind == 12 and gpu["semaphores"]:
        draw.choice(gpu["semaphores"])["init_value"] += draw.choice((-1, 1, 1))
    elif kind == 13:
        sync = named("signal", "wait", "rlxsignal", "rlxwait", "sem_release", "sem_acquire")
        if sync:
            operations, n = draw.choice(sync)
            ids = "semaphore_ids" if "semaphore_ids" in operations[n] else "channel_ids"
            operations[n][ids] = [max(0, operations[n][ids][0] + draw.choice((-1, 1)))]
    elif kind == 14:
        ops.insert(at, deepcopy(op))
    elif kind == 15:
        count = draw.choice((1, 1, 2, 3))
        extra = {"name": "barrier", "barrier_id": draw.randrange(2), "num_threadblocks": count}
        for block in draw.sample(gpu["threadblocks"], draw.randint(1, len(gpu["threadblocks"]))):
            block["ops"].insert(draw.randint(0, len(block["ops"])), dict(extra))
    elif kind in {16, 20}:
        _pass_a_semaphore(gpu, draw)
    elif kind == 17:
        _another_block(gpu, draw)
    elif kind == 18:
        operations, n = draw.choice(nops) if nops else (ops, at)
        if n + 1 < len(operations) and {operations[n]["name"], operations[n + 1]["name"]} <= {
            "wait",
            "signal",
        }:
            operations[n]["channel_ids"] = [0, 1]
    elif "tbg_info" in op:
        op["tbg_info"]["tb_id"] = 1 - op["tbg_info"]["tb_id"]


def _pass_a_semaphore(gpu: Plan, draw: random.Random) -> None:
    """Blocks that release a semaphore, old or new, and blocks that take from it."""
    number = draw.randint(0, len(gpu["semaphores"]))
    if number == len(gpu["semaphores"]):
        gpu["semaphores"].append({"init_value": 0})
    for name in ("sem_release", "sem_acquire"):
        block = draw.choice(gpu["threadblocks"])
        at = draw.randint(0, len(block["ops"]))
        block["ops"].insert(at, {"name": "nop"})
        block["ops"].insert(at, {"name": name, "semaphore_ids": [number]})
        block["ops"].insert(at, {"name": "nop"})


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
