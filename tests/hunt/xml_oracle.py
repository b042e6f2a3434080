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
from tests.hunt.outcome import Outcome

TAKES = {"r", "rcs", "rrs", "rrc", "rrcs"}
GIVES = {"s", "rcs", "rrs", "rrcs"}
READS = {"s", "cpy", "rrs", "rrc", "rrcs"}
STORES = {"r", "rcs", "rrc", "rrcs", "cpy", "re"}
"""The kinds of steps that receive a message, send one, read their source, write their target."""
DIVIDED = {"allgather", "reducescatter", "alltoall"}
MESSAGES = {"Simple": 2, "LL": 8, "LL128": 8}
"""In flight on one connection, whose buffer has 8 steps: a message of Simple takes four of them."""
MOST_FUSED = 16
"""Consecutive ``re`` that the kernel has room for."""
STATES = 400
"""More states than these are not explored, and the program is undecided."""
PAIRS = 30
"""So many races, at most, are tried in both orders before that."""
SCHEDULES = 50
"""Interleavings drawn at random of what has too many states."""


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
    least_bytes: int
    most_bytes: int
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
            blocks.append(
                Block(
                    rank=rank,
                    number=int(block.attrib["id"]),
                    send=int(block.attrib["send"]),
                    receive=int(block.attrib["recv"]),
                    channel=int(block.attrib["chan"]),
                    program=_program([step.attrib for step in block.findall("step")]),
                )
            )

    return File(
        collective=root.attrib["coll"],
        protocol=root.attrib["proto"],
        ranks=ranks,
        chunks=int(root.attrib["nchunksperloop"]),
        placements=placements,
        least_bytes=int(root.attrib["minBytes"]),
        most_bytes=int(root.attrib["maxBytes"]),
        scratch=scratch,
        blocks=blocks,
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

        buffers = (step["dstbuf"], step["dstoff"], step["srcbuf"])
        if kind == "re" and fusible == buffers and depends == -1:
            fused = parsed[-1]
            offsets = [*fused.source_offsets, int(step["srcoff"])]
            parsed[-1] = fused._replace(source_offsets=offsets, count=int(step["cnt"]))
            publishes[-1] = step["hasdep"] == "1"
        else:
            parsed.append(_transmission(step, pending))
            publishes.append(step["hasdep"] == "1")
            pending = []

        fusible = None
        if kind == "re":
            reductions += 1
            if step["hasdep"] != "1" and reductions != MOST_FUSED:
                fusible = buffers
    return _counted(parsed, publishes)


def _transmission(step: dict[str, str], waits: list[tuple[int, int]]) -> Transmission:
    return Transmission(
        kind=step["type"],
        source=step["srcbuf"],
        source_offsets=[int(step["srcoff"])],
        target=step["dstbuf"],
        target_offset=int(step["dstoff"]),
        count=int(step["cnt"]),
        waits=waits,
        flag=None,
    )


def _counted(parsed: list[Transmission], publishes: list[bool]) -> list[Transmission]:
    """The transmissions with the kernel's count of steps as their flags.

    The kernel counts a step more for each further wait and for each further source of a sum.
    """
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
        return steps * 4 * 2**20 // 8  # of a buffer of 4 MiB
    if file.protocol == "LL":
        return 8 * 512 * 16 // 2  # every word has a flag beside it
    return 4_915_200 // 8 * 15 // 16  # every 15 words have one


def per_message(file: File) -> list[int]:
    """How many chunks a message has room for, at all sizes declared; more than all is as all."""
    room = room_of(file, steps=1 if file.collective in {"broadcast", "reduce"} else 4)
    smallest = max(1, -(-file.least_bytes // file.chunks))
    largest = max(4 * room, smallest)
    if file.most_bytes > 0:
        largest = file.most_bytes // file.chunks

    most_chunks = 1
    for block in file.blocks:
        for transmission in block.program:
            if transmission.kind in TAKES | GIVES:
                most_chunks = max(most_chunks, transmission.count)

    possible = []
    for chunks in range(1, most_chunks + 1):
        # the sizes of a chunk of which so many fit, or where more than all fit: one for all
        low = room // (chunks + 1) + 1 if chunks < most_chunks else 1
        high = room // chunks if chunks > 1 else largest
        if max(low, smallest) <= min(high, largest):
            possible.append(chunks)
    return possible


def passes(file: File) -> int:
    """How often the kernel runs the program at the largest size: 2 stands for more."""
    if file.most_bytes <= 0:
        return 2
    return 2 if file.most_bytes // file.chunks > room_of(file, steps=4) else 1


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
        self.inputs: list[list[int]] = []
        for _ in range(file.ranks):
            self.inputs.append([draw.randrange(1, 2**61) for _ in range(self.size["i"])])

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
        collective = self.file.collective
        ranks = range(self.file.ranks)
        if collective == "broadcast":
            return [self._everywhere(self.inputs[root]) for root in ranks]

        total = [sum(contributions) for contributions in zip(*self.inputs, strict=True)]
        if collective == "reduce":
            return [self._at_rank(root, total) for root in ranks]
        if collective == "allreduce":
            return [self._everywhere(total)]
        if collective == "allgather":
            gathered = [value for values in self.inputs for value in values]
            return [self._everywhere(gathered)]

        demand: dict[int, int] = {}
        for rank in ranks:
            own = slice(rank * self.part, (rank + 1) * self.part)
            if collective == "reducescatter":
                demand |= self._at_rank(rank, total[own])
            elif collective == "alltoall":
                demand |= self._at_rank(rank, [v for values in self.inputs for v in values[own]])
        return [demand]

    def _everywhere(self, values: list[int]) -> dict[int, int]:
        """These values in the output of every rank."""
        demand: dict[int, int] = {}
        for rank in range(self.file.ranks):
            demand |= self._at_rank(rank, values)
        return demand

    def _at_rank(self, rank: int, values: list[int]) -> dict[int, int]:
        """These values in the output of one rank."""
        return {self.cell(rank, "o", chunk): value for chunk, value in enumerate(values)}


Raised = dict[tuple[int, int], list[tuple[int, int, int]]]
"""Per rank and block, what its flag becomes: (pass, value, the action after which it is so)."""


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
        self.received: list[Message] = []


class Variant(NamedTuple):
    """One of the ways in which a file is looked at.

    Attributes:
        limit: how many chunks a message has at most.
        turns: how often the kernel runs the program.
        cut_late: a slice that ends within a chunk has the whole chunk, instead of nothing of it.
    """

    in_place: bool
    limit: int
    turns: int
    cut_late: bool

    def __str__(self) -> str:
        placement = "in place" if self.in_place else "out of place"
        text = f"{placement}, {self.limit} chunks a message"
        return f"{text}, {self.turns} passes" if self.turns > 1 else text


class Unrolled:
    """The program at one size as actions; ``cells`` includes those for chunks on their way."""

    def __init__(self, file: File, memory: Memory, variant: Variant) -> None:
        self.file = file
        self.memory = memory
        self.simple = file.protocol == "Simple"
        self.turns = variant.turns
        self.cells = memory.cells * variant.turns
        self.shared = self.cells
        self.connections: dict[tuple[int, int, int], Connection] = {}
        pieces = []
        for number, block in enumerate(file.blocks):
            pieces.append(self._pieces(number, block, variant))
        self._check()
        self._act(pieces)

    def _pieces(self, number: int, block: Block, variant: Variant) -> list[Message]:
        """All messages, slices and other steps of a block, in order."""
        pieces = []
        for turn, (index, step) in product(range(self.turns), enumerate(block.program)):
            pieces_of_step: list[Message] = []
            for chunks in self._slices(step, variant):
                piece = Message(
                    block=number,
                    step=index,
                    turn=turn,
                    number=len(pieces_of_step),
                    chunks=chunks,
                    first=False,
                    last=False,
                )
                pieces_of_step.append(piece)
            pieces_of_step[0] = pieces_of_step[0]._replace(first=True)
            pieces_of_step[-1] = pieces_of_step[-1]._replace(last=True)
            pieces += pieces_of_step

            if step.count and step.kind in GIVES:
                connection = self._connection(block.rank, block.send, block.channel)
                connection.sender.add(number)
                connection.sent += pieces_of_step
            if step.count and step.kind in TAKES:
                connection = self._connection(block.receive, block.rank, block.channel)
                connection.receiver.add(number)
                connection.received += pieces_of_step
        return pieces

    def _slices(self, step: Transmission, variant: Variant) -> list[tuple[int, ...]]:
        """The chunks that move at once, of each message of a step; one of none for no chunks."""
        slices = []
        for low in range(0, step.count, variant.limit):
            chunks = tuple(range(low, min(low + variant.limit, step.count)))
            if self.simple and step.kind in TAKES | GIVES:
                cut = (len(chunks) + variant.cut_late) // 2
                slices += [chunks[:cut], chunks[cut:]]
            else:
                slices.append(chunks)
        return slices or [()]

    def _connection(self, source: int, target: int, channel: int) -> Connection:
        return self.connections.setdefault((source, target, channel), Connection())

    def _check(self) -> None:
        """Each connection is between two blocks of two ranks, and both ends agree on messages."""
        for (source, target, channel), connection in self.connections.items():
            name = f"the connection from {source} to {target} on channel {channel}"
            if not (0 <= source < self.file.ranks and 0 <= target < self.file.ranks):
                raise Fault(f"{name} has no such rank")
            if source == target:
                raise Fault(f"{name} is one to itself")
            if len(connection.sender) > 1 or len(connection.receiver) > 1:
                raise Fault(f"two blocks share {name}")
            for sent, received in zip(connection.sent, connection.received, strict=False):
                if len(sent.chunks) != len(received.chunks):
                    raise Fault(f"{name}: the two ends of a message disagree on its size")
            if len(connection.sent) > len(connection.received):
                raise Fault(f"{name}: a message is left over")

    def _act(self, pieces: list[list[Message]]) -> None:
        """Number all actions, then say what each waits for."""
        self._number(pieces)
        self._connect()
        raised = self._raised(pieces)

        self.actions: list[Action] = []
        for pieces_of_block in pieces:
            before: tuple[int, ...] = ()
            for piece in pieces_of_block:
                waits = [*before, *self._waits_of(piece, raised)]
                self._move(piece, waits)
                before = (self.ends[piece],)

    def _number(self, pieces: list[list[Message]]) -> None:
        """Per chunk of a piece two actions, a read and a write; then one for the piece's end."""
        self.ends: dict[Message, int] = {}
        self.writes: dict[Message, list[int]] = {}
        count = 0
        for pieces_of_block in pieces:
            for piece in pieces_of_block:
                self.writes[piece] = [count + 2 * n + 1 for n in range(len(piece.chunks))]
                count += 2 * len(piece.chunks)
                self.ends[piece] = count
                count += 1

    def _connect(self) -> None:
        """Cells for chunks on their way; what a piece receives, and what frees its slot."""
        self.carried: dict[Message, list[int]] = {}
        self.incoming: dict[Message, Message | None] = {}
        self.room: dict[Message, Message | None] = {}
        depth = MESSAGES[self.file.protocol] * (2 if self.simple else 1)
        for connection in self.connections.values():
            sent = connection.sent
            received = connection.received
            for piece in sent:
                self.carried[piece] = [self._new_cell() for _ in piece.chunks]
            for turn, piece in enumerate(received):
                self.incoming[piece] = sent[turn] if turn < len(sent) else None
            for turn, piece in enumerate(sent):
                if turn >= depth:
                    freed = turn - depth
                    self.room[piece] = received[freed] if freed < len(received) else None

    def _raised(self, pieces: list[list[Message]]) -> Raised:
        """Which flags each block publishes, in order."""
        raised: Raised = {}
        for pieces_of_block in pieces:
            for piece in pieces_of_block:
                block = self.file.blocks[piece.block]
                flag = block.program[piece.step].flag
                if piece.last and flag is not None:
                    flags = raised.setdefault((block.rank, block.number), [])
                    flags.append((piece.turn, flag, self.ends[piece]))
        return raised

    def _new_cell(self) -> int:
        self.cells += 1
        return self.cells - 1

    def _waits_of(self, piece: Message, raised: Raised) -> list[int]:
        """The actions of other blocks that must have happened before a piece begins."""
        block = self.file.blocks[piece.block]
        waits = []
        if piece.first:
            for block_waited_for, goal in block.program[piece.step].waits:
                flags = raised.get((block.rank, block_waited_for), [])
                ended = [end for turn, flag, end in flags if (turn, flag) >= (piece.turn, goal)]
                waits.append(ended[0] if ended else NEVER)

        if piece in self.room:
            freed = self.room[piece]
            waits.append(self.ends[freed] if freed else NEVER)

        if piece in self.incoming:
            came = self.incoming[piece]
            if came is None:
                waits.append(NEVER)
            elif self.simple:
                waits.append(self.ends[came])
        return waits

    def _move(self, piece: Message, waits: list[int]) -> None:
        """Read and write each chunk of a piece, at two moments."""
        block = self.file.blocks[piece.block]
        step = block.program[piece.step]
        came = self.incoming.get(piece)
        for offset_in_piece, chunk in enumerate(piece.chunks):
            sources = self._sources(block, step, chunk, piece.turn)
            after = list(waits)
            if came is not None:
                sources.append(self.carried[came][offset_in_piece])
                if not self.simple:
                    after.append(self.writes[came][offset_in_piece])

            targets = []
            if step.kind in STORES:
                offset = step.target_offset + chunk
                targets.append(self._cell(block, step.target, offset, piece.turn))
            if step.kind == "cpy" and targets == sources:
                targets = []  # the same bytes once more
            if step.kind in GIVES:
                targets.append(self.carried[piece][offset_in_piece])

            held = self._new_cell()
            read = len(self.actions)
            self.actions.append(Action(tuple(after), tuple(sources), (held,)))
            self.actions.append(Action((read,), (held,), tuple(targets)))
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


def look(text: bytes, states: int = STATES, values_of_races: bool = True) -> Outcome:
    """Look at a file at all sizes and placements; ``states``: at most so many at each.

    Where ``values_of_races`` is off, a race is only said to be there.
    """
    file = read(text)
    outcome = Outcome()
    for in_place in file.placements:
        memory = Memory(file, in_place, seed=len(text))
        variants = _variants(file, in_place)
        outcome.decided &= bool(variants)
        for variant in variants:
            try:
                _look_at_variant(file, memory, variant, outcome, states, values_of_races)
            except Fault as fault:
                outcome.fault = outcome.fault or f"{variant}: {fault}"
    return outcome


def _variants(file: File, in_place: bool) -> list[Variant]:
    """The sizes at which a file is looked at, and where slices are cut."""
    variants = []
    cuts = (True, False) if file.protocol == "Simple" else (True,)
    for limit in per_message(file):
        turns = {1, passes(file)} if limit == 1 else {1}
        for turn, cut_late in product(sorted(turns), cuts):
            variants.append(Variant(in_place, limit, turn, cut_late))
    return variants


def _look_at_variant(
    file: File,
    memory: Memory,
    variant: Variant,
    outcome: Outcome,
    states: int,
    values_of_races: bool,
) -> None:
    program = Unrolled(file, memory, variant)
    actions = program.actions
    order = order_of(actions)
    if len(order) < len(actions):
        outcome.hangs = outcome.hangs or str(variant)
        return

    demands = [_of_all_turns(demand, memory, variant) for demand in memory.demands()]
    start = program.start()
    results: set[tuple[Value, ...]] = {tuple(run(actions, order, start))}
    races = races_of(actions, order, program.shared)
    if races:
        outcome.races = outcome.races or str(variant)
        if not values_of_races:
            outcome.decided = False
        else:
            for swapped in both_orders(actions, order, races[:PAIRS]):
                results.add(tuple(run(actions, swapped, start)))
            if all(_met(result, demands) for result in results):
                try:
                    results |= ends(actions, start, program.shared, states)
                except Undecided:
                    outcome.decided = False
                    seed = variant.limit + 1
                    results |= samples(actions, start, program.shared, SCHEDULES, seed)
    if not all(_met(result, demands) for result in results):
        outcome.wrong = outcome.wrong or str(variant)


def _of_all_turns(demand: dict[int, int], memory: Memory, variant: Variant) -> dict[int, int]:
    """The demand on each pass, which has memory of its own."""
    demand_of_all = {}
    for turn in range(variant.turns):
        for cell, value in demand.items():
            demand_of_all[cell + turn * memory.cells] = value
    return demand_of_all


def _met(result: tuple[Value, ...], demands: list[dict[int, int]]) -> bool:
    """Whether memory is as one of the demands says."""
    return any(_meets(result, demand) for demand in demands)


def _meets(result: tuple[Value, ...], demand: dict[int, int]) -> bool:
    return all(result[cell] == value for cell, value in demand.items())
