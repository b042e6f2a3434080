"""Random MSCCL XML files that are nearly right: a right algorithm, then up to four changes.

An algorithm is built in an order in which it could run: every step is put at the end of its block,
and waits (by a flag, or by a message, or only because a FIFO is full) for whatever it must come
after. So what comes out is right, in its order of building. The changes are those that people make:
a wait that is dropped or one step too early, two steps swapped, an offset, a count.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

Step = dict[str, Any]
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
DIVIDED = ("allgather", "reducescatter", "alltoall")
TAKES = {"r", "rcs", "rrs", "rrc", "rrcs"}
GIVES = {"s", "rcs", "rrs", "rrcs"}
ROOM = {"Simple": 2**21, "LL": 2**15, "LL128": 576_000}
DEPTH = {"Simple": 2, "LL": 8, "LL128": 8}


@dataclass
class Block:
    """A thread block as it is in the file."""

    send: int = -1
    recv: int = -1
    chan: int = 0
    steps: list[Step] = field(default_factory=list)


@dataclass
class Draft:
    """A file that is still to be changed and shrunk; ``gpus[rank]`` are blocks by number."""

    head: dict[str, Any]
    scratch: list[int]
    gpus: list[list[Block]]

    def text(self) -> bytes:
        """The file."""
        head = {"name": "draft", **self.head, "ngpus": len(self.gpus)}
        root = ElementTree.Element("algo", {k: str(v) for k, v in head.items()})
        chunks = self.head["nchunksperloop"]
        for rank, blocks in enumerate(self.gpus):
            sizes = {"i_chunks": chunks, "o_chunks": chunks, "s_chunks": self.scratch[rank]}
            given = {"id": str(rank)} | {k: str(v) for k, v in sizes.items()}
            gpu = ElementTree.SubElement(root, "gpu", given)
            for number, block in enumerate(blocks):
                ends = {"id": number, "send": block.send, "recv": block.recv, "chan": block.chan}
                tb = ElementTree.SubElement(gpu, "tb", {k: str(v) for k, v in ends.items()})
                for at, step in enumerate(block.steps):
                    row = {"s": at, **step}
                    ElementTree.SubElement(tb, "step", {k: str(v) for k, v in row.items()})
        return ElementTree.tostring(root)


def new_step(
    kind: str, src: tuple[str, int] = ("i", 0), dst: tuple[str, int] = ("o", 0), cnt: int = 1
) -> Step:
    """A step that waits for nothing."""
    return {
        "type": kind,
        "srcbuf": src[0],
        "srcoff": src[1],
        "dstbuf": dst[0],
        "dstoff": dst[1],
        "cnt": cnt,
        "depid": -1,
        "deps": -1,
        "hasdep": 0,
    }


class Builder:
    """Appends steps to blocks, with the waits that they need."""

    def __init__(self, draw: random.Random, ranks: int, most_blocks: int) -> None:
        self.draw = draw
        self.ranks = ranks
        self.most_blocks = most_blocks
        self.collective = draw.choice(("allreduce",) * 4 + COLLECTIVES)
        self.part = draw.choice((1, 1, 1, 2, 2, 3))
        divided = self.collective in DIVIDED
        self.chunks = self.part * ranks if divided else self.part
        self.protocol = draw.choice(("Simple", "Simple", "LL", "LL128"))
        self.placements = draw.choice(((True,), (False,), (False,), (True, False)))
        self.gpus: list[list[Block]] = [[] for _ in range(ranks)]
        self.scratch = [0] * ranks
        self.touched: dict[tuple[bool, int, str, int], list[tuple[int, int, bool]]] = {}
        self.known: dict[tuple[int, int, int], dict[int, int]] = {}
        self.by_pressure = draw.random() < 0.5
        self.in_scratch = draw.random()
        self.echoes = draw.choice((0, 0, 0, 0.2))

    # blocks

    def local(self, rank: int) -> int:
        """Some block of a rank."""
        blocks = self.gpus[rank]
        if not blocks or (self._more() and self.draw.random() < 0.3):
            blocks.append(Block(chan=self.draw.randrange(2)))
            return len(blocks) - 1
        return self.draw.randrange(len(blocks))

    def _more(self) -> bool:
        return sum(len(blocks) for blocks in self.gpus) < self.most_blocks

    def ways(self, source: int, target: int) -> list[tuple[int, int]]:
        """The connections that there are from one rank to another, as pairs of blocks."""
        return [
            (a, b)
            for a, one in enumerate(self.gpus[source])
            for b, two in enumerate(self.gpus[target])
            if one.send == target and two.recv == source and one.chan == two.chan
        ]

    def way(
        self, source: int, target: int, other_than: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """A connection, an old one or a new one."""
        known = [way for way in self.ways(source, target) if way != other_than]
        if known and (not self._more() or self.draw.random() < 0.8):
            return self.draw.choice(known)
        used = {b.chan for r in (source, target) for b in self.gpus[r]}
        channel = next(c for c in range(len(used) + 1) if c not in used)
        ends = []
        for rank, side, peer in ((source, "send", target), (target, "recv", source)):
            blocks = self.gpus[rank]
            free = [
                n
                for n, b in enumerate(blocks)
                if getattr(b, side) < 0 and (b.send, b.recv) == (-1, -1)
            ]
            both = [n for n, b in enumerate(blocks) if getattr(b, side) < 0 and b.chan != channel]
            if free and (not self._more() or self.draw.random() < 0.7):
                number = self.draw.choice(free)
            elif both and not known and self.draw.random() < 0.6:
                return self._shared_channel(source, target)
            else:
                blocks.append(Block())
                number = len(blocks) - 1
            setattr(blocks[number], side, peer)
            blocks[number].chan = channel
            ends.append(number)
        return ends[0], ends[1]

    def _shared_channel(self, source: int, target: int) -> tuple[int, int]:
        """A connection between blocks that already have one the other way."""
        for a, one in enumerate(self.gpus[source]):
            for b, two in enumerate(self.gpus[target]):
                free = one.send < 0 and two.recv < 0
                taken = any(
                    (x.send == target and x.chan == one.chan) for x in self.gpus[source]
                ) or any((x.recv == source and x.chan == one.chan) for x in self.gpus[target])
                if free and one.chan == two.chan and not taken:
                    one.send = target
                    two.recv = source
                    return a, b
        used = {b.chan for r in (source, target) for b in self.gpus[r]}
        channel = max(used, default=-1) + 1
        self.gpus[source].append(Block(send=target, chan=channel))
        self.gpus[target].append(Block(recv=source, chan=channel))
        return len(self.gpus[source]) - 1, len(self.gpus[target]) - 1

    # order

    def _cells(
        self, rank: int, buffer: str, offset: int, cnt: int
    ) -> list[tuple[bool, int, str, int]]:
        found = []
        for in_place in self.placements:
            for at in range(offset, offset + cnt):
                name = buffer
                place = at
                if in_place and self.collective == "reducescatter" and buffer == "o":
                    name = "i"
                    place = at + rank * self.part
                elif in_place and self.collective == "allgather" and buffer == "i":
                    name = "o"
                    place = at + rank * self.part
                elif in_place and self.collective not in {"reducescatter", "allgather"}:
                    name = "i" if buffer == "o" else buffer
                found.append((in_place, rank, name, place))
        return found

    def add(self, rank: int, block: int, step: Step) -> tuple[int, int, int]:
        """Append a step that waits for what it must come after; returns where it is."""
        kind = step["type"]
        reads = []
        writes = []
        if kind in {"s", "cpy", "re", "rrc", "rrs", "rrcs"}:
            reads += self._cells(rank, step["srcbuf"], step["srcoff"], step["cnt"])
        if kind == "re":
            reads += self._cells(rank, step["dstbuf"], step["dstoff"], step["cnt"])
        if kind in {"r", "cpy", "re", "rrc", "rcs", "rrcs"}:
            writes += self._cells(rank, step["dstbuf"], step["dstoff"], step["cnt"])
        needed: dict[int, int] = {}
        for cells, write in ((reads, False), (writes, True)):
            for cell in cells:
                for other, at, wrote in self.touched.get(cell, []):
                    if other != block and (wrote or write):
                        needed[other] = max(needed.get(other, -1), at)
        for other, at in sorted(needed.items()):
            if self._ordered(rank, block, other, at):
                continue
            if self.by_pressure and self.draw.random() < 0.7 and self._press(rank, other, block):
                continue
            self._flag(rank, block, other, at, step)
        steps = self.gpus[rank][block].steps
        steps.append(step)
        where = (rank, block, len(steps) - 1)
        for cells, write in ((reads, False), (writes, True)):
            for cell in cells:
                self.touched.setdefault(cell, []).append((block, len(steps) - 1, write))
        return where

    def _ordered(self, rank: int, block: int, other: int, at: int) -> bool:
        return self.known.get((rank, block, other), {}).get(0, -1) >= at

    def _flag(self, rank: int, block: int, other: int, at: int, step: Step) -> None:
        """Let ``step``, which comes next in ``block``, wait for step ``at`` of ``other``."""
        theirs = self.gpus[rank][other].steps
        theirs[at]["hasdep"] = 1
        if step["depid"] >= 0:
            nop = new_step("nop")
            nop["depid"], nop["deps"] = step["depid"], step["deps"]
            self.gpus[rank][block].steps.append(nop)
        step["depid"], step["deps"] = other, at
        self.known[rank, block, other] = {0: at}

    def _press(self, rank: int, earlier: int, later: int) -> bool:
        """Order two blocks of a rank by a FIFO that is full until the earlier one has gone on.

        The later block sends one message more than its FIFO holds to a peer, which takes the first
        only after a message of the earlier block has come.
        """
        sends = [self.gpus[rank][later].send, self.gpus[rank][earlier].send]
        peers = {peer for peer in sends if peer >= 0}
        if len(peers) > 1:
            return False
        others = [other for other in range(self.ranks) if other != rank]
        peer = min(peers) if peers else self.draw.choice(others)
        told = self._way_of(rank, earlier, peer)
        full = self._way_of(rank, later, peer)
        if told is None or full is None:
            return False
        nothing = ("s", self._junk(rank))
        junk = ("s", self._junk(peer))
        theirs = self.gpus[peer][told].steps
        self.gpus[rank][earlier].steps.append(new_step("s", nothing))
        theirs.append(new_step("r", dst=junk))
        theirs[-1]["hasdep"] = 1
        junk = ("s", self._junk(peer))
        for number in range(DEPTH[self.protocol] + 1):
            self.gpus[rank][later].steps.append(new_step("s", nothing))
            taken = new_step("r", dst=junk)
            if number == 0:
                taken["depid"], taken["deps"] = told, len(theirs) - 1
            self.gpus[peer][full].steps.append(taken)
        return True

    def _way_of(self, rank: int, number: int, peer: int) -> int | None:
        """The block of ``peer`` that takes what a block sends, if need be a new one."""
        block = self.gpus[rank][number]
        if block.send == peer:
            return dict(self.ways(rank, peer)).get(number)
        if block.send >= 0:
            return None
        mine = {b.chan for b in self.gpus[rank] if b.send == peer}
        theirs = {b.chan for b in self.gpus[peer] if b.recv == rank}
        if block.recv < 0:
            block.chan = next(c for c in range(9) if c not in mine | theirs)
        elif block.chan in mine | theirs:
            return None
        block.send = peer
        self.gpus[peer].append(Block(recv=rank, chan=block.chan))
        return len(self.gpus[peer]) - 1

    def _junk(self, rank: int) -> int:
        self.scratch[rank] += 1
        return self.scratch[rank] - 1

    # what algorithms do

    def send(
        self,
        source: int,
        target: int,
        src: tuple[str, int],
        takes: str,
        dst: tuple[str, int],
        cnt: int,
        own: tuple[str, int] = ("i", 0),
    ) -> None:
        """One message, from ``src`` into ``dst`` (with ``own`` added, if it is taken so)."""
        if takes == "r" and self.draw.random() < self.echoes:
            self.echo(source, target, src, dst, cnt)
            return
        one, two = self.way(source, target)
        self.add(source, one, new_step("s", src, dst, cnt))
        self.add(target, two, new_step(takes, own, dst, cnt))

    def echo(
        self, source: int, target: int, src: tuple[str, int], dst: tuple[str, int], cnt: int
    ) -> None:
        """A message that comes back while it is sent, into what it was sent from.

        That is right where it comes back to its own place, as each word has been sent before it
        comes; it is a race where it comes back to another one.
        """
        used = {b.chan for r in (source, target) for b in self.gpus[r]}
        channel = max(used, default=-1) + 1
        self.gpus[source].append(Block(send=target, chan=channel))
        self.gpus[source].append(Block(recv=target, chan=channel))
        self.gpus[target].append(Block(send=source, recv=source, chan=channel))
        out = len(self.gpus[source]) - 2
        self.scratch[source] += cnt + 2
        room = self.scratch[source] - cnt - 1
        self.add(source, out, new_step("cpy", src, ("s", room), cnt))
        self.add(source, out, new_step("s", ("s", room), dst, cnt))
        self.add(target, len(self.gpus[target]) - 1, new_step("rcs", dst, dst, cnt))
        shift = self.draw.choice((0, 0, 1, -1))
        self.gpus[source][-1].steps.append(new_step("r", src, ("s", room + shift), cnt))

    def copy(self, rank: int, src: tuple[str, int], dst: tuple[str, int], cnt: int) -> None:
        """A local copy."""
        self.add(rank, self.local(rank), new_step("cpy", src, dst, cnt))

    def bystander(self) -> None:
        """Something that changes no result."""
        rank = self.draw.randrange(self.ranks)
        if self.draw.random() < 0.5:
            block = self.local(rank)
            for _ in range(self.draw.randrange(1, 5)):
                self.add(rank, block, new_step("cpy", ("i", 0), ("s", self._junk(rank))))
            return
        peer = self.draw.choice([r for r in range(self.ranks) if r != rank])
        one, two = self.way(rank, peer)
        many = self.draw.choice((1, 2, 3, DEPTH[self.protocol], DEPTH[self.protocol] + 1))
        junk = self._junk(peer)
        for _ in range(many):
            self.add(rank, one, new_step("s", ("i", 0)))
            self.add(peer, two, new_step("r", dst=("s", junk)))

    def parts(self, low: int, count: int) -> list[tuple[int, int]]:
        """``count`` chunks from ``low``, in one step or several; as (from, how many)."""
        found = []
        while count:
            take = self.draw.choice((1, count, count))
            found.append((low, take))
            low = low + take
            count = count - take
        self.draw.shuffle(found)
        return found

    def gather(self, order: list[int], low: int, cnt: int, out: tuple[str, int]) -> None:
        """A chain that adds up the ranks' chunks, and ends in ``out`` of the last."""
        kinds = self.draw.random()
        before: tuple[str, int] = ("i", low)
        for at in range(len(order) - 1):
            one = order[at]
            two = order[at + 1]
            last = at == len(order) - 2
            if last and self.draw.random() < self.in_scratch:
                self.scratch[two] += cnt
                room = ("s", self.scratch[two] - cnt)
                self.send(one, two, before, "r", room, cnt)
                if out != ("i", low):
                    self.copy(two, ("i", low), out, cnt)
                self.add(two, self.local(two), new_step("re", room, out, cnt))
            elif last:
                self.send(one, two, before, "rrc", out, cnt, ("i", low))
            elif kinds < 0.5 and self._fuses(order, at):
                self._fused(order, at, before, low, cnt, out)
                return
            else:
                self.scratch[two] += cnt
                room = ("s", self.scratch[two] - cnt)
                self.send(one, two, before, "rrc", room, cnt, ("i", low))
                before = room

    def _fuses(self, order: list[int], at: int) -> bool:
        return at == 0 and len(order) == 3

    def _fused(
        self,
        order: list[int],
        at: int,
        before: tuple[str, int],
        low: int,
        cnt: int,
        out: tuple[str, int],
    ) -> None:
        """Of three ranks the middle one forwards while it receives."""
        one, two, three = order[at : at + 3]
        forward = self._forwarder(one, two, three)
        into = [b for a, b in self.ways(one, two) if b == forward]
        start = next(a for a, b in self.ways(one, two) if b == into[0])
        end = next(b for a, b in self.ways(two, three) if a == forward)
        self.add(one, start, new_step("s", before, out, cnt))
        self.scratch[two] += cnt
        room = ("s", self.scratch[two] - cnt)
        kind = self.draw.choice(("rrs", "rrcs"))
        self.add(two, forward, new_step(kind, ("i", low), room, cnt))
        self.add(three, end, new_step("rrc", ("i", low), out, cnt))

    def _forwarder(self, one: int, two: int, three: int) -> int:
        """A block of ``two`` that receives from ``one`` and sends to ``three``."""
        for number, block in enumerate(self.gpus[two]):
            fits = block.recv == one and block.send == three
            ins = [b for _, b in self.ways(one, two)]
            outs = [a for a, _ in self.ways(two, three)]
            if fits and number in ins and number in outs:
                return number
        used = {b.chan for r in (one, two, three) for b in self.gpus[r]}
        channel = max(used, default=-1) + 1
        self.gpus[one].append(Block(send=two, chan=channel))
        self.gpus[two].append(Block(send=three, recv=one, chan=channel))
        self.gpus[three].append(Block(recv=two, chan=channel))
        return len(self.gpus[two]) - 1

    def spread(
        self, order: list[int], src: tuple[str, int], dst: tuple[str, int], cnt: int
    ) -> None:
        """A chain that copies from the first rank to all."""
        if len(order) == 3 and self.draw.random() < 0.5:
            forward = self._forwarder(*order)
            start = next(a for a, b in self.ways(order[0], order[1]) if b == forward)
            end = next(b for a, b in self.ways(order[1], order[2]) if a == forward)
            self.add(order[0], start, new_step("s", src, dst, cnt))
            self.add(order[1], forward, new_step("rcs", src, dst, cnt))
            self.add(order[2], end, new_step("r", src, dst, cnt))
            return
        for at, (one, two) in enumerate(pairwise(order)):
            if self.draw.random() < self.in_scratch / 2:
                self.scratch[two] += cnt
                room = ("s", self.scratch[two] - cnt)
                self.send(one, two, src if at == 0 else dst, "r", room, cnt)
                self.copy(two, room, dst, cnt)
            else:
                self.send(one, two, src if at == 0 else dst, "r", dst, cnt)

    def exchange(self, low: int, cnt: int) -> None:
        """An all-reduce in which all send all to all, and add up what came (in one fused step)."""
        rooms = {}
        for rank in range(self.ranks):
            for peer in range(self.ranks):
                if peer != rank:
                    self.scratch[peer] += cnt
                    rooms[rank, peer] = self.scratch[peer] - cnt
                    self.send(rank, peer, ("i", low), "r", ("s", rooms[rank, peer]), cnt)
        for rank in range(self.ranks):
            block = self.local(rank)
            self.add(rank, block, new_step("cpy", ("i", low), ("o", low), cnt))
            others = [peer for peer in range(self.ranks) if peer != rank]
            self.draw.shuffle(others)
            for peer in others:
                self.add(rank, block, new_step("re", ("s", rooms[peer, rank]), ("o", low), cnt))

    def algorithm(self) -> None:
        """A right algorithm for the collective."""
        ranks = list(range(self.ranks))
        part = self.part
        root = self.draw.choice(ranks)
        extra = self.draw.choice((0, 0, 1, 2))
        for low, cnt in self.parts(0, part):
            if extra and self.draw.random() < 0.7:
                extra -= 1
                self.bystander()
            order = ranks[:]
            self.draw.shuffle(order)
            match self.collective:
                case "allreduce":
                    if self.draw.random() < 0.4:
                        self.exchange(low, cnt)
                    else:
                        self.gather(order, low, cnt, ("o", low))
                        self.spread(order[::-1], ("o", low), ("o", low), cnt)
                case "reduce":
                    order.remove(root)
                    self.gather([*order, root], low, cnt, ("o", low))
                case "broadcast":
                    order.remove(root)
                    self.copy(root, ("i", low), ("o", low), cnt)
                    self.spread([root, *order], ("i", low), ("o", low), cnt)
                case "allgather":
                    for rank in ranks:
                        to = ("o", rank * part + low)
                        others = [r for r in order if r != rank]
                        self.copy(rank, ("i", low), to, cnt)
                        self.spread([rank, *others], ("i", low), to, cnt)
                case "reducescatter":
                    for rank in ranks:
                        others = [r for r in order if r != rank]
                        self.gather([*others, rank], rank * part + low, cnt, ("o", low))
                case "alltoall":
                    self.all_to_all(low, cnt)
        if extra:
            self.bystander()

    def all_to_all(self, low: int, cnt: int) -> None:
        """Everybody's chunk for everybody, through scratch where that must be."""
        rooms = {}
        for rank in range(self.ranks):
            for peer in range(self.ranks):
                if peer != rank:
                    self.scratch[peer] += cnt
                    rooms[rank, peer] = self.scratch[peer] - cnt
                    src = ("i", peer * self.part + low)
                    self.send(rank, peer, src, "r", ("s", rooms[rank, peer]), cnt)
        for rank in range(self.ranks):
            own = rank * self.part + low
            self.copy(rank, ("i", own), ("o", own), cnt)
            for peer in range(self.ranks):
                if peer != rank:
                    room = ("s", rooms[peer, rank])
                    self.copy(rank, room, ("o", peer * self.part + low), cnt)

    def draft(self) -> Draft:
        """The file, with sizes at which messages have several numbers of chunks."""
        room = ROOM[self.protocol]
        if self.protocol == "Simple" and self.collective in {"broadcast", "reduce"}:
            room //= 4
        finest, coarsest = sorted(self.draw.choices((1, 2, 3, 4), k=2))
        least = self.draw.choice((0, 0, self.chunks * (room // coarsest)))
        most = self.draw.choice((0, self.chunks * (room // finest), self.chunks * room))
        channels = max([b.chan for blocks in self.gpus for b in blocks], default=0) + 1
        head = {
            "proto": self.protocol,
            "coll": self.collective,
            "nchannels": channels,
            "nchunksperloop": self.chunks,
            "inplace": int(True in self.placements),
            "outofplace": int(False in self.placements),
            "minBytes": least,
            "maxBytes": max(most, least) if most else 0,
        }
        return Draft(head, self.scratch, self.gpus)


def steps_of(draft: Draft) -> list[tuple[int, int, int]]:
    """Where there are steps."""
    return [
        (rank, number, at)
        for rank, blocks in enumerate(draft.gpus)
        for number, block in enumerate(blocks)
        for at in range(len(block.steps))
    ]


def change(draft: Draft, draw: random.Random) -> None:
    """One change of the kind that people make."""
    places = steps_of(draft)
    if not places:
        return
    rank, number, at = draw.choice(places)
    block = draft.gpus[rank][number]
    step = block.steps[at]
    waiting = [
        draft.gpus[r][b].steps[s] for r, b, s in places if draft.gpus[r][b].steps[s]["depid"] >= 0
    ]
    kind = draw.randrange(24)
    if kind in {0, 1, 2} and waiting:
        waiter = draw.choice(waiting)
        if kind == 0:
            waiter["depid"] = waiter["deps"] = -1
        elif kind == 1:
            waiter["deps"] = max(-1, waiter["deps"] - draw.choice((1, 1, 2)))
        else:
            waiter["deps"] += 1
    elif kind == 3:
        step["hasdep"] = 1 - step["hasdep"]
    elif kind == 4:
        other = draw.randrange(len(draft.gpus[rank]))
        step["depid"], step["deps"] = other, draw.randrange(-1, 4)
    elif kind in {5, 6} and at + 1 < len(block.steps):
        block.steps[at], block.steps[at + 1] = block.steps[at + 1], block.steps[at]
    elif kind == 7:
        block.steps.insert(draw.randrange(len(block.steps)), block.steps.pop(at))
    elif kind == 8:
        side = draw.choice(("srcoff", "dstoff"))
        step[side] = max(0, step[side] + draw.choice((-1, 1)))
    elif kind == 9:
        side = draw.choice(("srcbuf", "dstbuf"))
        step[side] = draw.choice("ios")
    elif kind == 10:
        step["cnt"] = draw.choice((0, 1, 1, 2, 2, 3, 4))
    elif kind == 11:
        step["type"] = draw.choice(
            {"r": ("rrc",), "rrc": ("r",), "rcs": ("rrcs", "rrs"), "rrs": ("rcs", "rrcs"),
             "rrcs": ("rrs", "rcs"), "re": ("cpy",), "cpy": ("re",), "s": ("s",), "nop": ("nop",)}[
                step["type"]
            ]
        )  # fmt: skip
    elif kind == 12:
        del block.steps[at]
    elif kind == 13:
        draft.head["proto"] = draw.choice(tuple(ROOM))
    elif kind == 14:
        draft.head["minBytes"], draft.head["maxBytes"] = 0, 0
    elif kind == 15:
        _join(block, at)
    elif kind == 16:
        _more_before(draft, draw)
    elif kind in {17, 18}:
        _delay(draft, rank, block, draw.randrange(1, 9))
    elif kind >= 19:
        _press_the_other_way(draft, draw)
    else:
        block.steps.insert(at, new_step("nop"))


def _join(block: Block, at: int) -> None:
    """Two steps in a row that move neighbours become one."""
    if at + 1 >= len(block.steps):
        return
    one, two = block.steps[at : at + 2]
    if one["type"] == two["type"] != "nop" and two["depid"] < 0:
        one["cnt"] += two["cnt"]
        one["hasdep"] |= two["hasdep"]
        del block.steps[at + 1]


def _more_before(draft: Draft, draw: random.Random) -> None:
    """Messages that nobody needs, before others of their connection."""
    rank = draw.randrange(len(draft.gpus))
    for block in draft.gpus[rank]:
        if block.send < 0:
            continue
        for other in draft.gpus[block.send]:
            if other.recv == rank and other.chan == block.chan:
                many = draw.choice((1, 2, 3))
                draft.scratch[block.send] += 1
                room = ("s", draft.scratch[block.send] - 1)
                for _ in range(many):
                    _insert(draft.gpus[rank], block, new_step("s", ("i", 0)))
                    _insert(draft.gpus[block.send], other, new_step("r", dst=room))
                return


def _delay(draft: Draft, rank: int, block: Block, many: int) -> None:
    """Copies that nobody needs, before all else in a block."""
    draft.scratch[rank] += 1
    room = ("s", draft.scratch[rank] - 1)
    for _ in range(many):
        _insert(draft.gpus[rank], block, new_step("cpy", ("i", 0), room))


def _press_the_other_way(draft: Draft, draw: random.Random) -> None:
    """Instead of a wait, let full FIFOs order the two steps, and in the wrong order.

    The block that waited tells a peer when it is done; only then does the peer take what the other
    block sends before its step, which is one message more than there is room for.
    """
    pairs = []
    for rank, number, at in steps_of(draft):
        step = draft.gpus[rank][number].steps[at]
        other = step["depid"]
        if 0 <= other < len(draft.gpus[rank]) and other != number and step["type"] != "nop":
            waited = draft.gpus[rank][other]
            free = draft.gpus[rank][number].send < 0 and waited.send < 0
            if free and 0 <= step["deps"] < len(waited.steps):
                pairs.append((rank, number, at))
    if not pairs:
        return
    rank, number, at = draw.choice(pairs)
    mine = draft.gpus[rank]
    late = mine[number]
    step = mine[number].steps[at]
    early = mine[step["depid"]]
    goal = step["deps"]
    peer = draw.choice([other for other in range(len(draft.gpus)) if other != rank])
    for block in (late, early):
        used = {b.chan for b in mine if b.send == peer}
        used |= {b.chan for b in draft.gpus[peer] if b.recv == rank}
        if block.recv < 0:
            block.chan = next(c for c in range(9) if c not in used)
        elif block.chan in used:
            return
        block.send = peer
        draft.gpus[peer].append(Block(recv=rank, chan=block.chan))
        draft.head["nchannels"] = max(draft.head["nchannels"], block.chan + 1)
    draft.scratch[peer] += 1
    draft.scratch[rank] += 1
    junk = ("s", draft.scratch[peer] - 1)
    nothing = ("s", draft.scratch[rank] - 1)
    step["depid"] = step["deps"] = -1
    told, full = draft.gpus[peer][-2:]
    told.steps.append(new_step("r", dst=junk))
    told.steps[-1]["hasdep"] = 1
    _insert(mine, late, new_step("s", nothing), at + 1)
    draft.scratch[peer] += 1
    for turn in range(DEPTH[draft.head["proto"]] + 1):
        _insert(mine, early, new_step("s", nothing), goal)
        taken = new_step("r", dst=("s", draft.scratch[peer] - 1))
        if turn == 0:
            taken["depid"], taken["deps"] = len(draft.gpus[peer]) - 2, 0
        full.steps.append(taken)
    if draw.random() < 0.7:
        _delay(draft, rank, late, draw.randrange(3, 9))


def _insert(blocks: list[Block], block: Block, step: Step, position: int = 0) -> None:
    """Put in a step; who waits for one after it waits for one step more."""
    number = next(n for n, b in enumerate(blocks) if b is block)
    block.steps.insert(position, step)
    for other in blocks:
        for waiter in other.steps:
            if waiter["depid"] == number and waiter["deps"] >= position:
                waiter["deps"] += 1


def make(seed: int) -> Draft:
    """The file of a seed."""
    draw = random.Random(seed)
    ranks = draw.choice((2, 2, 2, 3))
    builder = Builder(draw, ranks, draw.choice((2, 4, 4, 4, 5)) + (ranks - 2))
    builder.algorithm()
    draft = deepcopy(builder.draft())
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        change(draft, draw)
    return draft
