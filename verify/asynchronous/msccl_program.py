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

from typing import NamedTuple

import numpy as np

from latecomer.verify.asynchronous.model import (
    ALL_RANKS,
    NONE,
    Block,
    BlockProgram,
    Buffer,
    Demand,
    IntArray,
    Signal,
    Step,
)
from latecomer.verify.asynchronous.msccl_steps import (
    READS_SOURCE,
    READS_TARGET,
    RECEIVES,
    SENDS,
    WRITES,
    Transmission,
    text_of,
    transmissions,
)
from latecomer.verify.asynchronous.msccl_xml import Algorithm, XmlBlock, XmlGpu
from latecomer.verify.core.verdict import Counterexample, Result, refuted
from latecomer.verify.errors import FormatError

IN_PLACE = "in place"
OUT_OF_PLACE = "out of place"
MAX_COUNTS = 2**27
"""Ranks times chunks of all buffers: the contributions that there may be to count."""
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce")
SHARED_OUT = ("allgather", "reducescatter", "alltoall")
"""Collectives of which each rank has a part of the chunks: N / n of them."""


def placements(algorithm: Algorithm) -> tuple[str, ...]:
    """How the file is meant to be used, as far as it says; at least one."""
    in_place = algorithm.optional.get("inplace", 0)
    out_of_place = algorithm.optional.get("outofplace", 0 if in_place else 1)
    flags = ((IN_PLACE, in_place), (OUT_OF_PLACE, out_of_place))
    return tuple(name for name, flag in flags if flag) or (OUT_OF_PLACE,)


class _StepPlace(NamedTuple):
    """Where a counterexample is found: the rank, the step's text, and its ``s``."""

    rank: int
    action: str
    position: int


class XmlLowering:
    """Makes the program of a file for one placement, and notes what can't be said in a program.

    Args:
        algorithm: the file.
        placement: ``IN_PLACE`` or ``OUT_OF_PLACE``.
        slots: of every FIFO.
        name: of the file, for errors.

    Attributes:
        refutations: property -> refutation of what is wrong before anything runs.
        share: chunks of a rank where the collective divides the buffer; else all chunks.

    Raises:
        FormatError: a collective that is not known, or too much memory.
    """

    def __init__(self, algorithm: Algorithm, placement: str, slots: int, name: str) -> None:
        if algorithm.coll not in COLLECTIVES:
            names = ", ".join(COLLECTIVES)
            raise FormatError(name, f"coll = {algorithm.coll!r}: verify knows {names}")
        self.algorithm = algorithm
        self.placement = placement
        self.slots = slots
        self.refutations: dict[str, Result] = {}

        self.ranks = algorithm.ngpus
        self.chunks = algorithm.nchunksperloop
        self.share = self.chunks
        if algorithm.coll in SHARED_OUT:
            self.share = self.chunks // self.ranks
        self.shares_are_whole = algorithm.coll not in SHARED_OUT or self.chunks % self.ranks == 0

        self.fifos: dict[tuple[int, int, int], int] = {}  # (sender, receiver, channel)
        self.counters: dict[tuple[int, int], int] = {}  # (rank, block)
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
        """Give the buffers of a rank their addresses; in place, one lies within the other."""
        coll = self.algorithm.coll
        chunks = {
            "i": self.share if coll == "allgather" else self.chunks,
            "o": self.share if coll == "reducescatter" else self.chunks,
            "s": gpu.chunks["s"],
        }
        in_place = self.placement == IN_PLACE and self.shares_are_whole
        start = {}
        if not in_place:
            own_addresses = ["i", "o", "s"]
        elif coll == "allgather":
            own_addresses = ["o", "s"]
            start["i"] = self.addresses + gpu.id * self.share
        else:
            own_addresses = ["i", "s"]
            first_chunk = gpu.id * self.share if coll == "reducescatter" else 0
            start["o"] = self.addresses + first_chunk
        for name in own_addresses:
            start[name] = self.addresses
            self.addresses += chunks[name]
        for name, number in chunks.items():
            self.buffers[gpu.id, name] = Buffer(gpu.id, name, start[name], number)

    def program(self) -> BlockProgram:
        """The program; look at ``refutations``, too."""
        blocks = []
        for gpu in self.algorithm.gpus:
            for block in gpu.blocks:
                steps = [self._step(gpu, block, step) for step in transmissions(block)]
                blocks.append(Block(gpu.id, f"tb {block.id}", tuple(steps)))

        input_rank = np.full(self.addresses, -1)
        input_chunk = np.full(self.addresses, -1)
        for rank in range(self.ranks):
            buffer = self.buffers[rank, "i"]
            end = buffer.start + buffer.chunks
            input_rank[buffer.start : end] = rank
            input_chunk[buffer.start : end] = np.arange(buffer.chunks)

        if not self.shares_are_whole:
            self.refutations["right_values"] = refuted(
                Counterexample(
                    property="right_values",
                    expected=f"{self.ranks} ranks to share nchunksperloop = {self.chunks} equally",
                    found="the parts of the ranks do not begin and end with chunks",
                )
            )
        return BlockProgram(
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

    def _step(self, gpu: XmlGpu, block: XmlBlock, transmission: Transmission) -> Step:
        xml = transmission.last
        text = text_of(block, transmission)
        place = _StepPlace(gpu.id, f"tb {block.id}: {text}", xml.s)

        sources: list[int] = []
        targets: list[int] = []
        if xml.type in READS_TARGET:
            sources.append(self._area(xml.dstbuf, xml.dstoff, xml.cnt, place))
        if xml.type in READS_SOURCE or xml.type == "re":
            for offset in transmission.offsets:
                sources.append(self._area(xml.srcbuf, offset, xml.cnt, place))
        if xml.type in WRITES:
            targets.append(self._area(xml.dstbuf, xml.dstoff, xml.cnt, place))
        if xml.type == "cpy" and sources == targets:
            targets = []  # the same bytes once more: for others it is a read

        sends = NONE
        receives = NONE
        if xml.type in SENDS:
            connection = (gpu.id, block.send, block.chan)
            sends = self._fifo(connection, block.send, place)
        if xml.type in RECEIVES:
            connection = (block.recv, gpu.id, block.chan)
            receives = self._fifo(connection, block.recv, place)

        signals: tuple[Signal, ...] = ()
        if transmission.flag is not None:
            signals = (Signal(self._counter(gpu.id, block.id), transmission.flag),)
        waits = [Signal(self._counter(gpu.id, tb), value) for tb, value in transmission.waits]
        return Step(
            text=text,
            position=xml.s,
            count=xml.cnt,
            sources=tuple(sources),
            targets=tuple(targets),
            receives=receives,
            sends=sends,
            waits=tuple(waits),
            signals=signals,
        )

    def _counter(self, rank: int, block: int) -> int:
        return self.counters.setdefault((rank, block), len(self.counters))

    def _fifo(self, connection: tuple[int, int, int], peer: int, place: _StepPlace) -> int:
        if not 0 <= peer < self.ranks or peer == place.rank:
            self._refute(
                "connections_match",
                place,
                expected="its thread block to name another rank as its peer",
                found=f"the peer is {peer}",
            )
        return self.fifos.setdefault(connection, len(self.fifos))

    def _area(self, name: str, offset: int, count: int, place: _StepPlace) -> int:
        """The first address of chunks of a buffer."""
        buffer = self.buffers[place.rank, name]
        if offset < 0 or offset + count > buffer.chunks:
            self._refute(
                "bounds",
                place,
                expected=f"chunks within {name}[0..{buffer.chunks - 1}], which is what the "
                "buffer has",
                found=f"{name}[{offset}..{offset + count - 1}]",
            )
        return buffer.start + offset

    def _refute(self, broken: str, place: _StepPlace, expected: str, found: str) -> None:
        """Note a refutation; the first of a property stays."""
        if broken in self.refutations:
            return
        self.refutations[broken] = refuted(
            Counterexample(
                property=broken,
                rank=place.rank,
                position=place.position,
                action=place.action,
                expected=expected,
                found=found,
            )
        )

    def _demands(self) -> list[Demand]:
        """What is wanted; of broadcast and reduce, whose root no file names, one for each root."""
        if not self.shares_are_whole:
            return []
        coll = self.algorithm.coll
        if coll not in ("broadcast", "reduce"):
            outputs = [self._output(coll, rank) for rank in range(self.ranks)]
            return [self._demand("", outputs)]

        chunks = np.arange(self.chunks)
        demands = []
        for root in range(self.ranks):
            if coll == "broadcast":
                of_root = np.full(self.chunks, root)
                outputs = [_Output(rank, of_root, chunks) for rank in range(self.ranks)]
            else:
                outputs = [_Output(root, np.full(self.chunks, ALL_RANKS), chunks)]
            demands.append(self._demand(f"root {root}", outputs))
        return demands

    def _output(self, coll: str, rank: int) -> _Output:
        """What one rank wants of a collective without a root."""
        chunks = np.arange(self.chunks)
        share = self.share
        if coll == "allreduce":
            return _Output(rank, np.full(self.chunks, ALL_RANKS), chunks)
        if coll == "reducescatter":
            return _Output(rank, np.full(share, ALL_RANKS), rank * share + np.arange(share))
        sender = chunks // share
        chunk_of_share = chunks % share
        if coll == "allgather":
            return _Output(rank, sender, chunk_of_share)
        return _Output(rank, sender, rank * share + chunk_of_share)  # alltoall

    def _demand(self, name: str, outputs: list[_Output]) -> Demand:
        addresses = []
        for output in outputs:
            start = self.buffers[output.rank, "o"].start
            addresses.append(start + np.arange(len(output.chunk)))
        return Demand(
            name,
            address=np.concatenate(addresses),
            rank=np.concatenate([output.of_rank for output in outputs]),
            chunk=np.concatenate([output.chunk for output in outputs]),
        )


class _Output(NamedTuple):
    """What is wanted in the output of ``rank``, from its beginning on: whose chunk, and which."""

    rank: int
    of_rank: IntArray
    chunk: IntArray
