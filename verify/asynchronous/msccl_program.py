"""What an MSCCL XML file means: the program that Azure/msccl-executor-nccl makes of it and runs.

Where the file and the executor differ in what they seem to say, the executor counts
(msccl_parser.cc, msccl_kernel.cu and msccl_lifecycle.cc at c6f6b36d; for steps see msccl_steps.py):

- ``rrs`` writes nothing; ``rcs`` does not read its source; a ``cpy`` onto itself, as there may be
  in place, only reads.
- In place, ``i`` and ``o`` are one buffer; of allgather ``i[x]`` is ``o[rank N/n + x]``, of
  reducescatter ``o[x]`` is ``i[rank N/n + x]``.
- ``i`` and ``o`` are as large as the collective says, whatever the file declares; ``s`` has
  ``s_chunks``.
"""

from __future__ import annotations

import numpy as np

from verify.asynchronous.model import (
    ALL_RANKS,
    NONE,
    Block,
    Buffer,
    Demand,
    IntArray,
    Program,
    Signal,
    Step,
)
from verify.asynchronous.msccl_steps import (
    READS_SOURCE,
    READS_TARGET,
    RECEIVES,
    SENDS,
    WRITES,
    Transmission,
    text_of,
    transmissions,
)
from verify.asynchronous.msccl_xml import Algorithm, XmlBlock, XmlGpu
from verify.core.verdict import Counterexample, Result, refuted
from verify.errors import FormatError

IN_PLACE = "in place"
OUT_OF_PLACE = "out of place"
MAX_COUNTS = 2**27
"""Ranks times chunks of all buffers: the contributions that there may be to count."""
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
SHARED_OUT = ("allgather", "reducescatter", "alltoall")
"""Collectives of which each rank has a part of the chunks: N / n of them."""


def placements(algorithm: Algorithm) -> tuple[str, ...]:
    """How the file is meant to be used, as far as it says; at least one."""
    inside = algorithm.optional.get("inplace", 0)
    outside = algorithm.optional.get("outofplace", 0 if inside else 1)
    given = [name for name, flag in ((IN_PLACE, inside), (OUT_OF_PLACE, outside)) if flag]
    return tuple(given) or (OUT_OF_PLACE,)


class Lowering:
    """Makes the program of a file for one placement, and notes what can't be said in a program.

    Attributes:
        found: property -> refutation of what is wrong before anything runs.
    """

    def __init__(self, algorithm: Algorithm, placement: str, slots: int, name: str) -> None:
        if algorithm.coll not in COLLECTIVES:
            known = ", ".join(COLLECTIVES)
            raise FormatError(name, f"coll = {algorithm.coll!r}: verify knows {known}")
        self.algorithm = algorithm
        self.placement = placement
        self.slots = slots
        self.found: dict[str, Result] = {}
        self.chunks = algorithm.nchunksperloop
        self.ranks = algorithm.ngpus
        self.part = self.chunks // self.ranks if algorithm.coll in SHARED_OUT else self.chunks
        self.fifos: dict[tuple[int, int, int], int] = {}
        self.counters: dict[tuple[int, int], int] = {}
        self.buffers: dict[tuple[int, str], Buffer] = {}
        self.addresses = 0
        for gpu in algorithm.gpus:
            self._allocate(gpu)
        if self.ranks * self.addresses > MAX_COUNTS:
            raise FormatError(
                name,
                f"{self.ranks} ranks and {self.addresses} chunks of memory: their product must be "
                f"at most {MAX_COUNTS}",
            )

    def _allocate(self, gpu: XmlGpu) -> None:
        coll = self.algorithm.coll
        whole = self.chunks
        part = self.part
        sizes = {
            "i": part if coll == "allgather" else whole,
            "o": part if coll == "reducescatter" else whole,
            "s": gpu.chunks["s"],
        }
        start = dict.fromkeys(sizes, 0)
        even = coll not in SHARED_OUT or whole % self.ranks == 0
        shared = self.placement == IN_PLACE and even
        if not shared:
            order = ["i", "o"]
        elif coll == "allgather":
            order = ["o"]
            start["i"] = self.addresses + gpu.id * part
        else:
            order = ["i"]
            start["o"] = self.addresses + (gpu.id * part if coll == "reducescatter" else 0)
        for name in [*order, "s"]:
            start[name] = self.addresses
            self.addresses += sizes[name]
        for name, size in sizes.items():
            self.buffers[gpu.id, name] = Buffer(gpu.id, name, start[name], size)

    def program(self) -> Program:
        """The program; look at ``found``, too."""
        blocks = [
            Block(gpu.id, f"tb {block.id}", tuple(self._steps(gpu, block)))
            for gpu in self.algorithm.gpus
            for block in gpu.blocks
        ]
        input_rank = np.full(self.addresses, -1)
        input_chunk = np.full(self.addresses, -1)
        for rank in range(self.ranks):
            area = self.buffers[rank, "i"]
            input_rank[area.start : area.start + area.chunks] = rank
            input_chunk[area.start : area.start + area.chunks] = np.arange(area.chunks)
        if self.algorithm.coll in SHARED_OUT and self.chunks % self.ranks:
            self.found["right_values"] = refuted(
                Counterexample(
                    property="right_values",
                    expected=f"{self.ranks} ranks to share nchunksperloop = {self.chunks} equally",
                    found="the parts of the ranks do not begin and end with chunks",
                )
            )
        return Program(
            kind=self.algorithm.coll,
            placement=self.placement,
            ranks=self.ranks,
            blocks=tuple(blocks),
            slots=self.slots,
            sliced=self.algorithm.proto == "Simple",  # a message is two slices
            fifos=tuple(f"rank {a} -> rank {b} channel {c}" for a, b, c in self.fifos),
            counters=tuple(f"the flag of rank {rank} tb {tb}" for rank, tb in self.counters),
            buffers=tuple(self.buffers.values()),
            addresses=self.addresses,
            input_rank=input_rank,
            input_chunk=input_chunk,
            demands=tuple(self._demands()),
        )

    def _steps(self, gpu: XmlGpu, block: XmlBlock) -> list[Step]:
        return [self._step(gpu, block, made) for made in transmissions(block)]

    def _step(self, gpu: XmlGpu, block: XmlBlock, made: Transmission) -> Step:
        xml = made.last
        kind = xml.type
        sources: list[int] = []
        targets: list[int] = []
        text = text_of(block, made)
        where = (gpu.id, f"tb {block.id}: {text}", xml.s)
        if kind in READS_TARGET:
            sources.append(self._area(xml.dstbuf, xml.dstoff, xml.cnt, *where))
        if kind in READS_SOURCE or kind == "re":
            sources += [self._area(xml.srcbuf, at, xml.cnt, *where) for at in made.offsets]
        if kind in WRITES:
            targets.append(self._area(xml.dstbuf, xml.dstoff, xml.cnt, *where))
        if kind == "cpy" and sources == targets:
            targets = []  # the same bytes once more: for others it is a read
        sends = receives = NONE
        if kind in SENDS:
            sends = self._fifo((gpu.id, block.send, block.chan), block.send, *where)
        if kind in RECEIVES:
            receives = self._fifo((block.recv, gpu.id, block.chan), block.recv, *where)
        flag = () if made.flag is None else (Signal(self._counter(gpu.id, block.id), made.flag),)
        return Step(
            text=text,
            place=xml.s,
            count=xml.cnt,
            sources=tuple(sources),
            targets=tuple(targets),
            receives=receives,
            sends=sends,
            waits=tuple(Signal(self._counter(gpu.id, tb), value) for tb, value in made.waits),
            signals=flag,
        )

    def _counter(self, rank: int, block: int) -> int:
        return self.counters.setdefault((rank, block), len(self.counters))

    def _fifo(self, key: tuple[int, int, int], peer: int, rank: int, action: str, s: int) -> int:
        if not 0 <= peer < self.ranks or peer == rank:
            self._refute(
                "connections_match",
                (rank, action, s),
                "its thread block to name another rank as its peer",
                f"the peer is {peer}",
            )
        return self.fifos.setdefault(key, len(self.fifos))

    def _area(self, name: str, at: int, count: int, rank: int, action: str, s: int) -> int:
        buffer = self.buffers[rank, name]
        if at < 0 or at + count > buffer.chunks:
            self._refute(
                "bounds",
                (rank, action, s),
                f"chunks within {name}[0..{buffer.chunks - 1}], which is what the buffer has",
                f"{name}[{at}..{at + count - 1}]",
            )
        return buffer.start + at

    def _refute(self, broken: str, where: tuple[int, str, int], expected: str, got: str) -> None:
        rank, action, s = where
        if broken not in self.found:
            self.found[broken] = refuted(
                Counterexample(
                    property=broken,
                    rank=rank,
                    position=s,
                    action=action,
                    expected=expected,
                    found=got,
                )
            )

    def _demands(self) -> list[Demand]:
        coll = self.algorithm.coll
        part = self.part
        ranks = range(self.ranks)
        whole = np.arange(self.chunks)
        if self.algorithm.coll in SHARED_OUT and self.chunks % self.ranks:
            return []
        if coll == "allreduce":
            return [self._demand("", [(r, ALL_RANKS + 0 * whole, whole) for r in ranks])]
        if coll == "reducescatter":
            own = np.arange(part)
            return [self._demand("", [(r, ALL_RANKS + 0 * own, r * part + own) for r in ranks])]
        if coll == "allgather":
            return [self._demand("", [(r, whole // part, whole % part) for r in ranks])]
        if coll == "alltoall":
            return [self._demand("", [(r, whole // part, r * part + whole % part) for r in ranks])]
        if coll == "broadcast":
            return [
                self._demand(f"root {root}", [(r, root + 0 * whole, whole) for r in ranks])
                for root in ranks
            ]
        return [
            self._demand(f"root {root}", [(root, ALL_RANKS + 0 * whole, whole)]) for root in ranks
        ]

    def _demand(self, name: str, rows: list[tuple[int, IntArray, IntArray]]) -> Demand:
        address = [self.buffers[r, "o"].start + np.arange(len(chunk)) for r, _, chunk in rows]
        return Demand(
            name,
            np.concatenate(address),
            np.concatenate([rank for _, rank, _ in rows]),
            np.concatenate([chunk for _, _, chunk in rows]),
        )
