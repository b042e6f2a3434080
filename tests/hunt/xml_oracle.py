"""What MSCCL's executor does with an XML file, at every size declared, in every interleaving.

An own reading of the text and of Azure/msccl-executor-nccl (msccl_parser.cc, msccl_kernel.cu,
msccl_setup.cc, prims_ll.h, prims_simple.h), which shares nothing with ``verify``. It is finer than
what ``verify`` reasons about: chunks of a message move one by one, in any order, read at one moment
and written at a later one. In LL and LL128 a chunk can be taken as soon as it has been sent; the
slot is free when the whole message has been taken. In Simple a message is two slices, each sent,
taken and freed by itself, so that of three messages in flight two can be there in part. Where a
slice ends within a chunk, its two halves are looked at in two variants, of which one cuts before
the chunk and the other after it.
"""

from __future__ import annotations

import random
from itertools import product
from typing import NamedTuple
from xml.etree import ElementTree

from tests.hunt.interleavings import (
    JUNK,
    NEVER,
    Action,
    Undecided,
    Value,
    both_orders,
    ends,
    order_of,
    races_of,
    run,
    samples,
)
from tests.hunt.outcome import Seen

TAKES = {"r", "rcs", "rrs", "rrc", "rrcs"}
GIVES = {"s", "rcs", "rrs", "rrcs"}
READS = {"s", "cpy", "rrs", "rrc", "rrcs"}
STORES = {"r", "rcs", "rrc", "rrcs", "cpy", "re"}
DIVIDED = {"allgather", "reducescatter", "alltoall"}
MESSAGES = {"Simple": 2, "LL": 8, "LL128": 8}
MOST_FUSED = 16
STATES = 400
PAIRS = 30
SCHEDULES = 50


class Fault(Exception):
    """What no executor defines."""


class Transmission(NamedTuple):
    """What the kernel runs as one step: a transfer or a sum, with all it waits for.

    ``flag`` is the kernel's own count where the step publishes it, else None.
    """

    kind: str
    source: str
    source_offsets: list[int]
    target: str
    target_offset: int
    count: int
    waits: list[tuple[int, int]]
    flag: int | None


class Block(NamedTuple):
    """A thread block after the parser."""

    rank: int
    number: int
    send: int
    receive: int
    channel: int
    program: list[Transmission]


class File(NamedTuple):
    """What the text says."""

    collective: str
    protocol: str
    ranks: int
    chunks: int
    placements: list[bool]
    least: int
    most: int
    scratch: list[int]
    blocks: list[Block]


def read(text: bytes) -> File:
    """Read a file as the executor's parser does."""
    root = ElementTree.fromstring(text)
    ranks = int(root.attrib["ngpus"])
    placements = []
    if int(root.attrib["inplace"]):
        placements.append(True)
    if int(root.attrib["outofplace"]):
        placements.append(False)
    scratch = [0] * ranks
    blocks = []
    for gpu in root.findall("gpu"):
        rank = int(gpu.attrib["id"])
        scratch[rank] = int(gpu.attrib["s_chunks"])
        for block in gpu.findall("tb"):
            numbers = [int(block.attrib[name]) for name in ("id", "send", "recv", "chan")]
            program = _program([step.attrib for step in block.findall("step")])
            blocks.append(Block(rank, *numbers, program))
    return File(
        root.attrib["coll"],
        root.attrib["proto"],
        ranks,
        int(root.attrib["nchunksperloop"]),
        placements,
        int(root.attrib["minBytes"]),
        int(root.attrib["maxBytes"]),
        scratch,
        blocks,
    )


def _program(steps: list[dict[str, str]]) -> list[Transmission]:
    """The parser's transmissions, then the kernel's count of steps."""
    parsed: list[Transmission] = []
    publishes: list[bool] = []
    pending: list[tuple[int, int]] = []
    fusible: tuple[str, str, str] | None = None
    reductions = 0
    for step in steps:
        kind = step["type"]
        depends = int(step["depid"])
        if depends >= 0:
            pending.append((depends, int(step["deps"])))
        if kind == "nop":
            continue
        place = (step["dstbuf"], step["dstoff"], step["srcbuf"])
        if kind == "re" and fusible == place and depends == -1:
            last = parsed[-1]
            offsets = [*last.source_offsets, int(step["srcoff"])]
            parsed[-1] = last._replace(source_offsets=offsets, count=int(step["cnt"]))
            publishes[-1] = step["hasdep"] == "1"
        else:
            parsed.append(
                Transmission(
                    kind,
                    step["srcbuf"],
                    [int(step["srcoff"])],
                    step["dstbuf"],
                    int(step["dstoff"]),
                    int(step["cnt"]),
                    pending,
                    None,
                )
            )
            publishes.append(step["hasdep"] == "1")
            pending = []
        fusible = None
        if kind == "re":
            reductions += 1
            if step["hasdep"] != "1" and reductions != MOST_FUSED:
                fusible = place
    program = []
    count = 0
    for transmission, raises in zip(parsed, publishes, strict=True):
        if transmission.waits:
            count += len(transmission.waits) - 1
        if transmission.kind == "re" and transmission.count > 0:
            count += len(transmission.source_offsets) - 1
        program.append(transmission._replace(flag=count if raises else None))
        count += 1
    return program


def room_of(file: File, steps: int) -> int:
    """Bytes of data in a message of so many steps of a connection's buffer (in Simple)."""
    if file.protocol == "Simple":
        return steps * 4 * 2**20 // 8
    if file.protocol == "LL":
        return 8 * 512 * 16 // 2
    return 4_915_200 // 8 * 15 // 16


def per_message(file: File) -> list[int]:
    """How many chunks a message has room for, at all sizes declared; more than all is as all."""
    room = room_of(file, steps=1 if file.collective in {"broadcast", "reduce"} else 4)
    smallest = max(1, -(-file.least // file.chunks))
    largest = file.most // file.chunks if file.most > 0 else max(4 * room, smallest)
    counts = [t.count for b in file.blocks for t in b.program if t.kind in TAKES | GIVES]
    most = max([1, *counts])
    possible = set()
    for many in range(1, most + 1):
        # the sizes of a chunk of which so many fit
        low = room // (many + 1) + 1 if many < most else 1
        high = room // many if many > 1 else largest
        if max(low, smallest) <= min(high, largest):
            possible.add(many)
    return sorted(possible)


def passes(file: File) -> int:
    """How often the kernel runs the program at the largest size: 2 stands for more."""
    return 2 if file.most <= 0 or file.most // file.chunks > room_of(file, steps=4) else 1


class Memory:
    """Addresses of all ranks' buffers, for one placement."""

    def __init__(self, file: File, in_place: bool, seed: int) -> None:
        self.file = file
        self.in_place = in_place
        self.part = file.chunks // file.ranks if file.collective in DIVIDED else file.chunks
        self.size = {"i": file.chunks, "o": file.chunks}
        if file.collective == "allgather":
            self.size["i"] = self.part
        if file.collective == "reducescatter":
            self.size["o"] = self.part
        self.starts = []
        total = 0
        for rank in range(file.ranks):
            self.starts.append({"i": total, "o": total + file.chunks, "s": total + 2 * file.chunks})
            total += 2 * file.chunks + file.scratch[rank]
        self.cells = total
        draw = random.Random(seed)
        self.inputs = [
            [draw.randrange(1, 2**61) for _ in range(self.size["i"])] for _ in range(file.ranks)
        ]

    def cell(self, rank: int, buffer: str, offset: int) -> int:
        """The one address of a chunk."""
        size = self.file.scratch[rank] if buffer == "s" else self.size[buffer]
        if not 0 <= offset < size:
            raise Fault(f"rank {rank} leaves its buffer: {buffer}[{offset}]")
        if self.in_place and buffer == "o" and self.file.collective == "reducescatter":
            buffer = "i"
            offset = offset + rank * self.part
        elif self.in_place and buffer == "i" and self.file.collective == "allgather":
            buffer = "o"
            offset = offset + rank * self.part
        elif self.in_place and buffer == "o" and self.file.collective != "allgather":
            buffer = "i"
        return self.starts[rank][buffer] + offset

    def start(self) -> list[Value]:
        """What is there before the program."""
        cells: list[Value] = [JUNK] * self.cells
        for rank, values in enumerate(self.inputs):
            for chunk, value in enumerate(values):
                cells[self.cell(rank, "i", chunk)] = value
        return cells

    def demands(self) -> list[dict[int, int]]:
        """What is to be where at the end; any one of them will do."""
        file, ranks, part = self.file, range(self.file.ranks), self.part
        inputs = self.inputs
        rows: list[list[tuple[int, int, int]]] = []
        if file.collective in {"allreduce", "reduce"}:
            total = [sum(inputs[r][c] for r in ranks) for c in range(file.chunks)]
            of_rank = [[(r, c, total[c]) for c in range(file.chunks)] for r in ranks]
            rows = (
                of_rank
                if file.collective == "reduce"
                else [[row for rows_of in of_rank for row in rows_of]]
            )
        elif file.collective == "broadcast":
            rows = [
                [(r, c, inputs[root][c]) for r in ranks for c in range(file.chunks)]
                for root in ranks
            ]
        elif file.collective == "allgather":
            rows = [
                [(r, c, inputs[c // part][c % part]) for r in ranks for c in range(file.chunks)]
            ]
        elif file.collective == "alltoall":
            rows = [
                [
                    (r, c, inputs[c // part][r * part + c % part])
                    for r in ranks
                    for c in range(file.chunks)
                ]
            ]
        elif file.collective == "reducescatter":
            rows = [
                [
                    (r, c, sum(inputs[other][r * part + c] for other in ranks))
                    for r in ranks
                    for c in range(part)
                ]
            ]
        return [{self.cell(r, "o", c): value for r, c, value in demand} for demand in rows]


class Message(NamedTuple):
    """A message, or one slice of one: which chunks of its step, and the step.

    ``number`` counts those of a step, as two slices without a chunk would else be one.
    """

    block: int
    step: int
    turn: int
    number: int
    chunks: tuple[int, ...]
    first: bool
    last: bool


class Connection:
    """What goes through one FIFO: the pieces sent and taken, and by which blocks."""

    def __init__(self) -> None:
        self.sender: set[int] = set()
        self.receiver: set[int] = set()
        self.sent: list[Message] = []
        self.taken: list[Message] = []


class Unrolled:
    """The program at one size as actions; ``memory`` has cells for chunks on their way, too."""

    def __init__(self, file: File, memory: Memory, many: int, turns: int, cut_late: bool) -> None:
        self.file = file
        self.memory = memory
        self.simple = file.protocol == "Simple"
        self.turns = turns
        self.cells = memory.cells * turns
        self.shared = self.cells
        self.connections: dict[tuple[int, int, int], Connection] = {}
        pieces = [self._pieces(n, block, many, cut_late) for n, block in enumerate(file.blocks)]
        self._check()
        self._act(pieces)

    def _pieces(self, number: int, block: Block, many: int, cut_late: bool) -> list[Message]:
        pieces = []
        for turn, (at, step) in product(range(self.turns), enumerate(block.program)):
            own: list[Message] = []
            for low in range(0, step.count, many):
                chunks = tuple(range(low, min(low + many, step.count)))
                slices = [chunks]
                if self.simple and step.kind in TAKES | GIVES:
                    cut = (len(chunks) + cut_late) // 2
                    slices = [chunks[:cut], chunks[cut:]]
                for part in slices:
                    own.append(Message(number, at, turn, len(own), part, False, False))
            if not own:
                own = [Message(number, at, turn, 0, (), False, False)]
            own[0] = own[0]._replace(first=True)
            own[-1] = own[-1]._replace(last=True)
            pieces += own
            if not step.count:
                continue
            if step.kind in GIVES:
                way = self.connections.setdefault(
                    (block.rank, block.send, block.channel), Connection()
                )
                way.sender.add(number)
                way.sent += own
            if step.kind in TAKES:
                way = self.connections.setdefault(
                    (block.receive, block.rank, block.channel), Connection()
                )
                way.receiver.add(number)
                way.taken += own
        return pieces

    def _check(self) -> None:
        for (source, target, channel), way in self.connections.items():
            name = f"the connection from {source} to {target} on channel {channel}"
            if not (0 <= source < self.file.ranks and 0 <= target < self.file.ranks):
                raise Fault(f"{name} has no such rank")
            if source == target:
                raise Fault(f"{name} is one to itself")
            if len(way.sender) > 1 or len(way.receiver) > 1:
                raise Fault(f"two blocks share {name}")
            for sent, taken in zip(way.sent, way.taken, strict=False):
                if len(sent.chunks) != len(taken.chunks):
                    raise Fault(f"{name}: the two ends of a message disagree on its size")
            if len(way.sent) > len(way.taken):
                raise Fault(f"{name}: a message is left over")

    def _act(self, pieces: list[list[Message]]) -> None:
        """Number all actions, then say what each waits for."""
        file = self.file
        self.actions: list[Action] = []
        self.ends: dict[Message, int] = {}
        self.writes: dict[Message, list[int]] = {}
        self.carried: dict[Message, list[int]] = {}
        count = 0
        for of_block in pieces:
            for piece in of_block:
                self.writes[piece] = [count + 2 * n + 1 for n in range(len(piece.chunks))]
                count += 2 * len(piece.chunks)
                self.ends[piece] = count
                count += 1
        for way in self.connections.values():
            for piece in way.sent:
                self.carried[piece] = [self._new() for _ in piece.chunks]
        incoming: dict[Message, Message | None] = {}
        room: dict[Message, Message | None] = {}
        depth = MESSAGES[file.protocol] * (2 if self.simple else 1)
        for way in self.connections.values():
            for at, piece in enumerate(way.taken):
                incoming[piece] = way.sent[at] if at < len(way.sent) else None
            for at, piece in enumerate(way.sent):
                if at >= depth:
                    freed = at - depth
                    room[piece] = way.taken[freed] if freed < len(way.taken) else None
        raised: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for of_block in pieces:
            for piece in of_block:
                block = file.blocks[piece.block]
                flag = block.program[piece.step].flag
                if piece.last and flag is not None:
                    where = raised.setdefault((block.rank, block.number), [])
                    where.append((piece.turn, flag, self.ends[piece]))
        for of_block in pieces:
            before: tuple[int, ...] = ()
            for piece in of_block:
                self._piece(piece, before, incoming, room, raised)
                before = (self.ends[piece],)

    def _new(self) -> int:
        self.cells += 1
        return self.cells - 1

    def _piece(
        self,
        piece: Message,
        before: tuple[int, ...],
        incoming: dict[Message, Message | None],
        room: dict[Message, Message | None],
        raised: dict[tuple[int, int], list[tuple[int, int, int]]],
    ) -> None:
        block = self.file.blocks[piece.block]
        step = block.program[piece.step]
        waits = list(before)
        if piece.first:
            for other, goal in step.waits:
                known = raised.get((block.rank, other), [])
                ended = [end for turn, flag, end in known if (turn, flag) >= (piece.turn, goal)]
                waits.append(ended[0] if ended else NEVER)
        if piece in room:
            freed = room[piece]
            waits.append(self.ends[freed] if freed else NEVER)
        came = incoming.get(piece, piece)
        if came is None:
            waits.append(NEVER)
        elif came is not piece and self.simple:
            waits.append(self.ends[came])
        for at, chunk in enumerate(piece.chunks):
            sources = self._sources(block, step, chunk, piece.turn)
            after = list(waits)
            if came is not None and came is not piece:
                sources.append(self.carried[came][at])
                if not self.simple:
                    after.append(self.writes[came][at])
            targets = []
            if step.kind in STORES:
                targets.append(
                    self._cell(block, step.target, step.target_offset + chunk, piece.turn)
                )
            if step.kind == "cpy" and targets == sources:
                targets = []  # the same bytes once more
            if step.kind in GIVES:
                targets.append(self.carried[piece][at])
            held = self._new()
            self.actions.append(Action(tuple(after), tuple(sources), (held,)))
            self.actions.append(Action((len(self.actions) - 1,), (held,), tuple(targets)))
        self.actions.append(Action(tuple(waits + self.writes[piece])))

    def _sources(self, block: Block, step: Transmission, chunk: int, turn: int) -> list[int]:
        cells = []
        if step.kind == "re":
            cells.append(self._cell(block, step.target, step.target_offset + chunk, turn))
        if step.kind in READS or step.kind == "re":
            for offset in step.source_offsets:
                cells.append(self._cell(block, step.source, offset + chunk, turn))
        return cells

    def _cell(self, block: Block, buffer: str, offset: int, turn: int) -> int:
        return self.memory.cell(block.rank, buffer, offset) + turn * self.memory.cells

    def start(self) -> list[Value]:
        """All cells before the program."""
        return self.memory.start() * self.turns + [JUNK] * (self.cells - self.shared)


def look(text: bytes, states: int = STATES, values_of_races: bool = True) -> Seen:
    """Look at a file at all sizes and placements; ``states``: at most so many at each.

    Where ``values_of_races`` is off, a race is only said to be there.
    """
    file = read(text)
    seen = Seen()
    for in_place in file.placements:
        memory = Memory(file, in_place, seed=len(text))
        sizes = per_message(file)
        seen.decided &= bool(sizes)
        for many in sizes:
            turns = {1, passes(file)} if many == 1 else {1}
            cuts = (True, False) if file.protocol == "Simple" else (True,)
            for turn, cut in product(sorted(turns), cuts):
                where = f"{'in' if in_place else 'out of'} place, {many} chunks a message"
                if turn > 1:
                    where += f", {turn} passes"
                try:
                    _at_one_size(
                        file, memory, many, turn, cut, where, seen, states, values_of_races
                    )
                except Fault as fault:
                    seen.fault = seen.fault or f"{where}: {fault}"
    return seen


def _at_one_size(
    file: File,
    memory: Memory,
    many: int,
    turns: int,
    cut_late: bool,
    where: str,
    seen: Seen,
    states: int,
    values_of_races: bool,
) -> None:
    program = Unrolled(file, memory, many, turns, cut_late)
    actions = program.actions
    order = order_of(actions)
    if len(order) < len(actions):
        seen.hangs = seen.hangs or where
        return
    demands = [
        {cell + turn * memory.cells: value for turn in range(turns) for cell, value in d.items()}
        for d in memory.demands()
    ]
    start = program.start()
    results: set[tuple[Value, ...]] = {tuple(run(actions, order, start))}
    races = races_of(actions, order, program.shared)
    if races:
        seen.races = seen.races or where
        if not values_of_races:
            seen.decided = False
        else:
            for swapped in both_orders(actions, order, races[:PAIRS]):
                results.add(tuple(run(actions, swapped, start)))
            if all(_met(result, demands) for result in results):
                try:
                    results |= ends(actions, start, program.shared, states)
                except Undecided:
                    seen.decided = False
                    results |= samples(actions, start, program.shared, SCHEDULES, seed=many + 1)
    if not all(_met(result, demands) for result in results):
        seen.wrong = seen.wrong or where


def _met(result: tuple[Value, ...], demands: list[dict[int, int]]) -> bool:
    return any(all(result[cell] == value for cell, value in demand.items()) for demand in demands)
