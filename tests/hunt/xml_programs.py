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
Position = tuple[int, int, int]
"""Where a step is: the rank, the block, the index in the block."""
Place = tuple[str, int]
"""Where data is at a rank: the buffer (i, o or s), and the first chunk."""
Cell = tuple[bool, int, str, int]
"""An address: whether in place, the rank, the buffer, the chunk."""
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
DIVIDED = ("allgather", "reducescatter", "alltoall")
TAKES = {"r", "rcs", "rrs", "rrc", "rrcs"}
GIVES = {"s", "rcs", "rrs", "rrcs"}
ROOM = {"Simple": 2**21, "LL": 2**15, "LL128": 576_000}
"""Bytes of data in a message; of broadcast and reduce a quarter of that in Simple."""
DEPTH = {"Simple": 2, "LL": 8, "LL128": 8}
"""Messages that a connection holds."""


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
        root = ElementTree.Element("algo", _texts(head))
        chunks = self.head["nchunksperloop"]
        for rank, blocks in enumerate(self.gpus):
            sizes = {"i_chunks": chunks, "o_chunks": chunks, "s_chunks": self.scratch[rank]}
            gpu = ElementTree.SubElement(root, "gpu", _texts({"id": rank, **sizes}))
            for number, block in enumerate(blocks):
                ends = {"id": number, "send": block.send, "recv": block.recv, "chan": block.chan}
                tb = ElementTree.SubElement(gpu, "tb", _texts(ends))
                for index, step in enumerate(block.steps):
                    ElementTree.SubElement(tb, "step", _texts({"s": index, **step}))
        return ElementTree.tostring(root)


def _texts(attributes: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in attributes.items()}


def new_step(kind: str, src: Place = ("i", 0), dst: Place = ("o", 0), cnt: int = 1) -> Step:
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
    """Appends steps to blocks, with the waits that they need.

    Attributes:
        touched: per cell, the steps that touch it: (block, index, whether it is written).
        ordered: per (rank, block, earlier block), the last step that the block comes after.
        by_pressure: some blocks are ordered by full FIFOs instead of flags.
        in_scratch: how often data goes through scratch, though it need not.
        echoes: how often a message comes back from its receiver, while it is sent.
    """

    def __init__(self, draw: random.Random, ranks: int, most_blocks: int) -> None:
        self.draw = draw
        self.ranks = ranks
        self.most_blocks = most_blocks
        self.collective = draw.choice(("allreduce",) * 4 + COLLECTIVES)
        self.part = draw.choice((1, 1, 1, 2, 2, 3))
        self.chunks = self.part * ranks if self.collective in DIVIDED else self.part
        self.protocol = draw.choice(("Simple", "Simple", "LL", "LL128"))
        self.placements = draw.choice(((True,), (False,), (False,), (True, False)))
        self.gpus: list[list[Block]] = [[] for _ in range(ranks)]
        self.scratch = [0] * ranks
        self.touched: dict[Cell, list[tuple[int, int, bool]]] = {}
        self.ordered: dict[tuple[int, int, int], int] = {}
        self.by_pressure = draw.random() < 0.5
        self.in_scratch = draw.random()
        self.echoes = draw.choice((0, 0, 0, 0.2))

    def _peers(self, rank: int) -> list[int]:
        """All ranks but one."""
        return [peer for peer in range(self.ranks) if peer != rank]

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
        pairs = []
        for sending, sender in enumerate(self.gpus[source]):
            for receiving, receiver in enumerate(self.gpus[target]):
                connected = sender.send == target and receiver.recv == source
                if connected and sender.chan == receiver.chan:
                    pairs.append((sending, receiving))
        return pairs

    def way(
        self, source: int, target: int, other_than: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """A connection, an old one or a new one."""
        old_ways = [pair for pair in self.ways(source, target) if pair != other_than]
        if old_ways and (not self._more() or self.draw.random() < 0.8):
            return self.draw.choice(old_ways)

        used = self._channels_of(source, target)
        channel = next(c for c in range(len(used) + 1) if c not in used)
        ends = []
        for rank, side, peer in ((source, "send", target), (target, "recv", source)):
            blocks = self.gpus[rank]
            unconnected = []
            one_sided = []
            for number, block in enumerate(blocks):
                if (block.send, block.recv) == (-1, -1):
                    unconnected.append(number)
                if getattr(block, side) < 0 and block.chan != channel:
                    one_sided.append(number)

            if unconnected and (not self._more() or self.draw.random() < 0.7):
                number = self.draw.choice(unconnected)
            elif one_sided and not old_ways and self.draw.random() < 0.6:
                return self._shared_channel(source, target)
            else:
                blocks.append(Block())
                number = len(blocks) - 1
            setattr(blocks[number], side, peer)
            blocks[number].chan = channel
            ends.append(number)
        return ends[0], ends[1]

    def _channels_of(self, *ranks: int) -> set[int]:
        """The channels that blocks of these ranks use."""
        return {block.chan for rank in ranks for block in self.gpus[rank]}

    def _new_channel(self, *ranks: int) -> int:
        """A channel above all that these ranks use."""
        return max(self._channels_of(*ranks), default=-1) + 1

    def _shared_channel(self, source: int, target: int) -> tuple[int, int]:
        """A connection between blocks that already have one the other way."""
        for sending, sender in enumerate(self.gpus[source]):
            for receiving, receiver in enumerate(self.gpus[target]):
                free = sender.send < 0 and receiver.recv < 0
                if not free or sender.chan != receiver.chan:
                    continue
                if sender.chan not in _channels_between(self.gpus, source, target):
                    sender.send = target
                    receiver.recv = source
                    return sending, receiving

        channel = self._new_channel(source, target)
        self.gpus[source].append(Block(send=target, chan=channel))
        self.gpus[target].append(Block(recv=source, chan=channel))
        return len(self.gpus[source]) - 1, len(self.gpus[target]) - 1

    # order

    def _cells(self, rank: int, buffer: str, offset: int, cnt: int) -> list[Cell]:
        """The addresses of an area, at each placement."""
        cells = []
        for in_place in self.placements:
            for chunk in range(offset, offset + cnt):
                name = buffer
                address = chunk
                if in_place and self.collective == "reducescatter" and buffer == "o":
                    name = "i"
                    address = chunk + rank * self.part
                elif in_place and self.collective == "allgather" and buffer == "i":
                    name = "o"
                    address = chunk + rank * self.part
                elif in_place and self.collective not in {"reducescatter", "allgather"}:
                    name = "i" if buffer == "o" else buffer
                cells.append((in_place, rank, name, address))
        return cells

    def add(self, rank: int, block: int, step: Step) -> Position:
        """Append a step that waits for what it must come after; returns where it is."""
        touches = self._touches(rank, step)
        needed: dict[int, int] = {}  # per other block, the last step of it to come after
        for cell, writes in touches:
            for earlier, earlier_index, wrote in self.touched.get(cell, []):
                if earlier != block and (wrote or writes):
                    needed[earlier] = max(needed.get(earlier, -1), earlier_index)

        for earlier, earlier_index in sorted(needed.items()):
            if self.ordered.get((rank, block, earlier), -1) >= earlier_index:
                continue
            if self.by_pressure and self.draw.random() < 0.7 and self._press(rank, earlier, block):
                continue
            self._flag(rank, block, earlier, earlier_index, step)

        steps = self.gpus[rank][block].steps
        steps.append(step)
        index = len(steps) - 1
        for cell, writes in touches:
            self.touched.setdefault(cell, []).append((block, index, writes))
        return rank, block, index

    def _touches(self, rank: int, step: Step) -> list[tuple[Cell, bool]]:
        """The cells that a step reads and writes, and whether it writes."""
        kind = step["type"]
        source = self._cells(rank, step["srcbuf"], step["srcoff"], step["cnt"])
        target = self._cells(rank, step["dstbuf"], step["dstoff"], step["cnt"])
        reads = []
        writes = []
        if kind in {"s", "cpy", "re", "rrc", "rrs", "rrcs"}:
            reads += source
        if kind == "re":
            reads += target
        if kind in {"r", "cpy", "re", "rrc", "rcs", "rrcs"}:
            writes += target
        return [(cell, False) for cell in reads] + [(cell, True) for cell in writes]

    def _flag(self, rank: int, block: int, earlier: int, index: int, step: Step) -> None:
        """Let ``step``, which comes next in ``block``, wait for step ``index`` of ``earlier``."""
        self.gpus[rank][earlier].steps[index]["hasdep"] = 1
        if step["depid"] >= 0:
            # A step can name one dependency only.
            nop = new_step("nop")
            nop["depid"] = step["depid"]
            nop["deps"] = step["deps"]
            self.gpus[rank][block].steps.append(nop)
        step["depid"] = earlier
        step["deps"] = index
        self.ordered[rank, block, earlier] = index

    def _press(self, rank: int, earlier: int, later: int) -> bool:
        """Order two blocks of a rank by a FIFO that is full until the earlier one has gone on.

        The later block sends one message more than its FIFO holds to a peer, which takes the first
        only after a message of the earlier block has come.
        """
        sends = [self.gpus[rank][later].send, self.gpus[rank][earlier].send]
        peers = {peer for peer in sends if peer >= 0}
        if len(peers) > 1:
            return False
        peer = min(peers) if peers else self.draw.choice(self._peers(rank))
        told = self._way_of(rank, earlier, peer)
        full = self._way_of(rank, later, peer)
        if told is None or full is None:
            return False

        nothing = ("s", self._junk(rank))
        telling = new_step("r", dst=("s", self._junk(peer)))
        telling["hasdep"] = 1
        steps_of_told = self.gpus[peer][told].steps
        steps_of_told.append(telling)
        self.gpus[rank][earlier].steps.append(new_step("s", nothing))

        junk = ("s", self._junk(peer))
        for number in range(DEPTH[self.protocol] + 1):
            self.gpus[rank][later].steps.append(new_step("s", nothing))
            taking = new_step("r", dst=junk)
            if number == 0:
                taking["depid"] = told
                taking["deps"] = len(steps_of_told) - 1
            self.gpus[peer][full].steps.append(taking)
        return True

    def _way_of(self, rank: int, number: int, peer: int) -> int | None:
        """The block of ``peer`` that takes what a block sends, if need be a new one."""
        block = self.gpus[rank][number]
        if block.send == peer:
            return dict(self.ways(rank, peer)).get(number)
        if block.send >= 0:
            return None
        used = _channels_between(self.gpus, rank, peer)
        if block.recv < 0:
            block.chan = next(c for c in range(9) if c not in used)
        elif block.chan in used:
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
        src: Place,
        takes: str,
        dst: Place,
        cnt: int,
        own: Place = ("i", 0),
    ) -> None:
        """One message, from ``src`` into ``dst`` (with ``own`` added, if it is taken so)."""
        if takes == "r" and self.draw.random() < self.echoes:
            self.echo(source, target, src, dst, cnt)
            return
        sending, receiving = self.way(source, target)
        self.add(source, sending, new_step("s", src, dst, cnt))
        self.add(target, receiving, new_step(takes, own, dst, cnt))

    def echo(self, source: int, target: int, src: Place, dst: Place, cnt: int) -> None:
        """A message that comes back while it is sent, into what it was sent from.

        That is right where it comes back to its own place, as each word has been sent before it
        comes; it is a race where it comes back to another one.
        """
        channel = self._new_channel(source, target)
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

    def copy(self, rank: int, src: Place, dst: Place, cnt: int) -> None:
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
        peer = self.draw.choice(self._peers(rank))
        sending, receiving = self.way(rank, peer)
        count = self.draw.choice((1, 2, 3, DEPTH[self.protocol], DEPTH[self.protocol] + 1))
        junk = self._junk(peer)
        for _ in range(count):
            self.add(rank, sending, new_step("s", ("i", 0)))
            self.add(peer, receiving, new_step("r", dst=("s", junk)))

    def parts(self, low: int, count: int) -> list[tuple[int, int]]:
        """``count`` chunks from ``low``, in one step or several; as (from, how many)."""
        parts = []
        while count:
            length = self.draw.choice((1, count, count))
            parts.append((low, length))
            low += length
            count -= length
        self.draw.shuffle(parts)
        return parts

    def gather(self, order: list[int], low: int, cnt: int, out: Place) -> None:
        """A chain that adds up the ranks' chunks, and ends in ``out`` of the last."""
        fuses = self.draw.random() < 0.5 and len(order) == 3
        own: Place = ("i", low)
        partial = own
        for hop, (sender, receiver) in enumerate(pairwise(order)):
            last = hop == len(order) - 2
            if last and self.draw.random() < self.in_scratch:
                room = self._room(receiver, cnt)
                self.send(sender, receiver, partial, "r", room, cnt)
                if out != own:
                    self.copy(receiver, own, out, cnt)
                self.add(receiver, self.local(receiver), new_step("re", room, out, cnt))
            elif last:
                self.send(sender, receiver, partial, "rrc", out, cnt, own)
            elif fuses:
                self._gather_fused(order, partial, low, cnt, out)
                return
            else:
                room = self._room(receiver, cnt)
                self.send(sender, receiver, partial, "rrc", room, cnt, own)
                partial = room

    def _room(self, rank: int, cnt: int) -> Place:
        """New chunks of scratch."""
        self.scratch[rank] += cnt
        return ("s", self.scratch[rank] - cnt)

    def _gather_fused(
        self, order: list[int], partial: Place, low: int, cnt: int, out: Place
    ) -> None:
        """Of three ranks the middle one forwards while it receives."""
        first, middle, last = order
        start, forward, end = self._forwarding_blocks(first, middle, last)
        self.add(first, start, new_step("s", partial, out, cnt))
        room = self._room(middle, cnt)
        kind = self.draw.choice(("rrs", "rrcs"))
        self.add(middle, forward, new_step(kind, ("i", low), room, cnt))
        self.add(last, end, new_step("rrc", ("i", low), out, cnt))

    def _forwarding_blocks(self, first: int, middle: int, last: int) -> tuple[int, int, int]:
        """The blocks of three ranks that send, forward and receive."""
        forward = self._forwarder(first, middle, last)
        start = next(a for a, b in self.ways(first, middle) if b == forward)
        end = next(b for a, b in self.ways(middle, last) if a == forward)
        return start, forward, end

    def _forwarder(self, first: int, middle: int, last: int) -> int:
        """A block of ``middle`` that receives from ``first`` and sends to ``last``."""
        for number, block in enumerate(self.gpus[middle]):
            fits = block.recv == first and block.send == last
            receiving = [receiver for _, receiver in self.ways(first, middle)]
            sending = [sender for sender, _ in self.ways(middle, last)]
            if fits and number in receiving and number in sending:
                return number

        channel = self._new_channel(first, middle, last)
        self.gpus[first].append(Block(send=middle, chan=channel))
        self.gpus[middle].append(Block(send=last, recv=first, chan=channel))
        self.gpus[last].append(Block(recv=middle, chan=channel))
        return len(self.gpus[middle]) - 1

    def spread(self, order: list[int], src: Place, dst: Place, cnt: int) -> None:
        """A chain that copies from the first rank to all."""
        if len(order) == 3 and self.draw.random() < 0.5:
            first, middle, last = order
            start, forward, end = self._forwarding_blocks(first, middle, last)
            self.add(first, start, new_step("s", src, dst, cnt))
            self.add(middle, forward, new_step("rcs", src, dst, cnt))
            self.add(last, end, new_step("r", src, dst, cnt))
            return

        for hop, (sender, receiver) in enumerate(pairwise(order)):
            sent = src if hop == 0 else dst
            if self.draw.random() < self.in_scratch / 2:
                room = self._room(receiver, cnt)
                self.send(sender, receiver, sent, "r", room, cnt)
                self.copy(receiver, room, dst, cnt)
            else:
                self.send(sender, receiver, sent, "r", dst, cnt)

    def exchange(self, low: int, cnt: int) -> None:
        """An all-reduce in which all send all to all, and add up what came (in one fused step)."""
        rooms = {}
        for rank in range(self.ranks):
            for peer in self._peers(rank):
                room = self._room(peer, cnt)
                rooms[rank, peer] = room
                self.send(rank, peer, ("i", low), "r", room, cnt)

        for rank in range(self.ranks):
            block = self.local(rank)
            self.add(rank, block, new_step("cpy", ("i", low), ("o", low), cnt))
            peers = self._peers(rank)
            self.draw.shuffle(peers)
            for peer in peers:
                self.add(rank, block, new_step("re", rooms[peer, rank], ("o", low), cnt))

    def algorithm(self) -> None:
        """A right algorithm for the collective."""
        ranks = list(range(self.ranks))
        root = self.draw.choice(ranks)
        extra = self.draw.choice((0, 0, 1, 2))
        for low, cnt in self.parts(0, self.part):
            if extra and self.draw.random() < 0.7:
                extra -= 1
                self.bystander()

            order = list(ranks)
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
                        target = ("o", rank * self.part + low)
                        peers = [peer for peer in order if peer != rank]
                        self.copy(rank, ("i", low), target, cnt)
                        self.spread([rank, *peers], ("i", low), target, cnt)
                case "reducescatter":
                    for rank in ranks:
                        peers = [peer for peer in order if peer != rank]
                        own = rank * self.part + low
                        self.gather([*peers, rank], own, cnt, ("o", low))
                case "alltoall":
                    self.all_to_all(low, cnt)
        if extra:
            self.bystander()

    def all_to_all(self, low: int, cnt: int) -> None:
        """Everybody's chunk for everybody, through scratch where that must be."""
        rooms = {}
        for rank in range(self.ranks):
            for peer in self._peers(rank):
                room = self._room(peer, cnt)
                rooms[rank, peer] = room
                self.send(rank, peer, ("i", peer * self.part + low), "r", room, cnt)

        for rank in range(self.ranks):
            own = rank * self.part + low
            self.copy(rank, ("i", own), ("o", own), cnt)
            for peer in self._peers(rank):
                target = ("o", peer * self.part + low)
                self.copy(rank, rooms[peer, rank], target, cnt)

    def draft(self) -> Draft:
        """The file, with sizes at which messages have several numbers of chunks."""
        room = ROOM[self.protocol]
        if self.protocol == "Simple" and self.collective in {"broadcast", "reduce"}:
            room //= 4

        finest, coarsest = sorted(self.draw.choices((1, 2, 3, 4), k=2))
        least_bytes = self.draw.choice((0, 0, self.chunks * (room // coarsest)))
        most_bytes = self.draw.choice((0, self.chunks * (room // finest), self.chunks * room))
        if most_bytes:
            most_bytes = max(most_bytes, least_bytes)

        head = {
            "proto": self.protocol,
            "coll": self.collective,
            "nchannels": max(self._channels_of(*range(self.ranks)), default=0) + 1,
            "nchunksperloop": self.chunks,
            "inplace": int(True in self.placements),
            "outofplace": int(False in self.placements),
            "minBytes": least_bytes,
            "maxBytes": most_bytes,
        }
        return Draft(head, self.scratch, self.gpus)


def steps_of(draft: Draft) -> list[Position]:
    """Where there are steps."""
    positions = []
    for rank, blocks in enumerate(draft.gpus):
        for number, block in enumerate(blocks):
            positions += [(rank, number, index) for index in range(len(block.steps))]
    return positions


CHANGES = (
    "drop a wait",
    "wait for an earlier step",
    "wait for the next step",
    "publish a flag or not",
    "another wait",
    "swap",
    "swap",
    "move",
    "offset",
    "buffer",
    "count",
    "type",
    "drop",
    "protocol",
    "any size",
    "join",
    "more messages before",
    "delay",
    "delay",
    "press the other way",
    "press the other way",
    "press the other way",
    "press the other way",
    "press the other way",
)
"""The kinds of changes; those named several times are made more often."""


def change(draft: Draft, draw: random.Random) -> None:
    """One change of the kind that people make."""
    positions = steps_of(draft)
    if not positions:
        return

    position = draw.choice(positions)
    rank, number, index = position
    block = draft.gpus[rank][number]
    kind = draw.choice(CHANGES)
    if _change_a_wait(draft, position, kind, draw):
        return
    if _change_the_order(block, index, kind, draw):
        return
    if _change_a_step(block.steps[index], kind, draw):
        return

    if kind == "protocol":
        draft.head["proto"] = draw.choice(tuple(ROOM))
    elif kind == "any size":
        draft.head["minBytes"] = 0
        draft.head["maxBytes"] = 0
    elif kind == "more messages before":
        _more_before(draft, draw)
    elif kind == "delay":
        _delay(draft, rank, block, draw.randrange(1, 9))
    elif kind == "press the other way":
        _press_the_other_way(draft, draw)
    else:
        block.steps.insert(index, new_step("nop"))


def _change_a_wait(draft: Draft, position: Position, kind: str, draw: random.Random) -> bool:
    """A wait dropped, one step off, or new; returns whether it is such a kind."""
    rank, number, index = position
    step = draft.gpus[rank][number].steps[index]
    waiting = []
    for blocks in draft.gpus:
        for block in blocks:
            waiting += [waiter for waiter in block.steps if waiter["depid"] >= 0]

    if kind == "drop a wait" and waiting:
        waiter = draw.choice(waiting)
        waiter["depid"] = -1
        waiter["deps"] = -1
    elif kind == "wait for an earlier step" and waiting:
        waiter = draw.choice(waiting)
        waiter["deps"] = max(-1, waiter["deps"] - draw.choice((1, 1, 2)))
    elif kind == "wait for the next step" and waiting:
        waiter = draw.choice(waiting)
        waiter["deps"] += 1
    elif kind == "publish a flag or not":
        step["hasdep"] = 1 - step["hasdep"]
    elif kind == "another wait":
        step["depid"] = draw.randrange(len(draft.gpus[rank]))
        step["deps"] = draw.randrange(-1, 4)
    else:
        return False
    return True


def _change_the_order(block: Block, index: int, kind: str, draw: random.Random) -> bool:
    """Steps swapped, moved, dropped or joined; returns whether it is such a kind."""
    steps = block.steps
    if kind == "swap" and index + 1 < len(steps):
        steps.insert(index + 1, steps.pop(index))
    elif kind == "move":
        steps.insert(draw.randrange(len(steps)), steps.pop(index))
    elif kind == "drop":
        del steps[index]
    elif kind == "join":
        _join(block, index)
    else:
        return False
    return True


SIMILAR = {
    "r": ("rrc",),
    "rrc": ("r",),
    "rcs": ("rrcs", "rrs"),
    "rrs": ("rcs", "rrcs"),
    "rrcs": ("rrs", "rcs"),
    "re": ("cpy",),
    "cpy": ("re",),
    "s": ("s",),
    "nop": ("nop",),
}
"""Per kind of step, the kinds that it can be mistaken for: connections stay as they are."""


def _change_a_step(step: Step, kind: str, draw: random.Random) -> bool:
    """What a step does, where, or to how many chunks; returns whether it is such a kind."""
    if kind == "offset":
        side = draw.choice(("srcoff", "dstoff"))
        step[side] = max(0, step[side] + draw.choice((-1, 1)))
    elif kind == "buffer":
        side = draw.choice(("srcbuf", "dstbuf"))
        step[side] = draw.choice("ios")
    elif kind == "count":
        step["cnt"] = draw.choice((0, 1, 1, 2, 2, 3, 4))
    elif kind == "type":
        step["type"] = draw.choice(SIMILAR[step["type"]])
    else:
        return False
    return True


def _join(block: Block, index: int) -> None:
    """Two steps in a row that move neighbours become one."""
    if index + 1 >= len(block.steps):
        return
    first, second = block.steps[index : index + 2]
    if first["type"] == second["type"] != "nop" and second["depid"] < 0:
        first["cnt"] += second["cnt"]
        first["hasdep"] |= second["hasdep"]
        del block.steps[index + 1]


def _more_before(draft: Draft, draw: random.Random) -> None:
    """Messages that nobody needs, before others of their connection."""
    rank = draw.randrange(len(draft.gpus))
    for sender in draft.gpus[rank]:
        if sender.send < 0:
            continue
        for receiver in draft.gpus[sender.send]:
            if receiver.recv == rank and receiver.chan == sender.chan:
                count = draw.choice((1, 2, 3))
                room = _new_scratch(draft, sender.send)
                for _ in range(count):
                    _insert(draft.gpus[rank], sender, new_step("s", ("i", 0)))
                    _insert(draft.gpus[sender.send], receiver, new_step("r", dst=room))
                return


def _new_scratch(draft: Draft, rank: int) -> Place:
    """One chunk more of a rank's scratch."""
    draft.scratch[rank] += 1
    return ("s", draft.scratch[rank] - 1)


def _channels_between(gpus: list[list[Block]], source: int, target: int) -> set[int]:
    """The channels on which a rank sends to another, or on which that one receives from it."""
    sending = {block.chan for block in gpus[source] if block.send == target}
    receiving = {block.chan for block in gpus[target] if block.recv == source}
    return sending | receiving


def _delay(draft: Draft, rank: int, block: Block, count: int) -> None:
    """Copies that nobody needs, before all else in a block."""
    room = _new_scratch(draft, rank)
    for _ in range(count):
        _insert(draft.gpus[rank], block, new_step("cpy", ("i", 0), room))


def _press_the_other_way(draft: Draft, draw: random.Random) -> None:
    """Instead of a wait, let full FIFOs order the two steps, and in the wrong order.

    The block that waited tells a peer when it is done; only then does the peer take what the other
    block sends before its step, which is one message more than there is room for.
    """
    candidates = [position for position in steps_of(draft) if _can_be_pressed(draft, position)]
    if not candidates:
        return

    rank, number, index = draw.choice(candidates)
    blocks = draft.gpus[rank]
    late = blocks[number]
    step = late.steps[index]
    early = blocks[step["depid"]]
    goal = step["deps"]
    peer = draw.choice([r for r in range(len(draft.gpus)) if r != rank])
    for block in (late, early):
        if not _connect(draft, block, rank, peer):
            return
    told, full = draft.gpus[peer][-2:]

    junk = _new_scratch(draft, peer)
    nothing = _new_scratch(draft, rank)
    step["depid"] = -1
    step["deps"] = -1
    telling = new_step("r", dst=junk)
    telling["hasdep"] = 1
    told.steps.append(telling)
    _insert(blocks, late, new_step("s", nothing), index + 1)

    room = _new_scratch(draft, peer)
    for turn in range(DEPTH[draft.head["proto"]] + 1):
        _insert(blocks, early, new_step("s", nothing), goal)
        taking = new_step("r", dst=room)
        if turn == 0:
            taking["depid"] = len(draft.gpus[peer]) - 2
            taking["deps"] = 0
        full.steps.append(taking)
    if draw.random() < 0.7:
        _delay(draft, rank, late, draw.randrange(3, 9))


def _can_be_pressed(draft: Draft, position: Position) -> bool:
    """Whether a step waits for one of another block, and neither block sends anything."""
    rank, number, index = position
    blocks = draft.gpus[rank]
    step = blocks[number].steps[index]
    waits_for = step["depid"]
    if not 0 <= waits_for < len(blocks) or waits_for == number or step["type"] == "nop":
        return False
    free = blocks[number].send < 0 and blocks[waits_for].send < 0
    return free and 0 <= step["deps"] < len(blocks[waits_for].steps)


def _connect(draft: Draft, block: Block, rank: int, peer: int) -> bool:
    """Let a block send to a new block of ``peer``, unless its channel is used between the two."""
    used = _channels_between(draft.gpus, rank, peer)
    if block.recv < 0:
        block.chan = next(channel for channel in range(9) if channel not in used)
    elif block.chan in used:
        return False
    block.send = peer
    draft.gpus[peer].append(Block(recv=rank, chan=block.chan))
    draft.head["nchannels"] = max(draft.head["nchannels"], block.chan + 1)
    return True


def _insert(blocks: list[Block], block: Block, step: Step, position: int = 0) -> None:
    """Put in a step; who waits for one after it waits for one step more."""
    number = next(n for n, b in enumerate(blocks) if b is block)
    block.steps.insert(position, step)
    for waiting_block in blocks:
        for waiter in waiting_block.steps:
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
