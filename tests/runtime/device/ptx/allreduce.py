"""All-reduces on the machine: launched as the runtime launches them, compared with an oracle.

The parameters of each launch are those that ``latecomer.runtime.device.variants`` passes: its own
code is called, with a recorder in the kernel's place. The oracle runs the schedule's rounds, on
torch's tensors.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from latecomer.runtime.device.kernel import all_reduce
from latecomer.runtime.device.launcher import _place, _signed
from latecomer.runtime.device.layout import Cut, Layout, cut
from latecomer.runtime.device.variants import Kernel, Launch, LoadedProgram
from latecomer.verify import Schedule
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.device.check import check
from latecomer.verify.device.program import DeviceProgram, device_program
from tests.runtime.device.ptx.builds import build
from tests.runtime.device.ptx.machine import KernelLaunch, Machine
from tests.runtime.device.ptx.memory import GAP, Memory, Region, Wrong
from tests.runtime.device.ptx.program import Program
from tests.runtime.schedules import by_rounds

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp64": torch.float64,
    "i32": torch.int32,
}
RAW = {2: np.uint16, 4: np.uint32, 8: np.uint64}
ProgramOf = Callable[[str, bool], Program]


@dataclass(frozen=True)
class Operation:
    """One all-reduce: of which schedule, dtype (as Triton calls it), and how many elements."""

    schedule: Schedule
    dtype: str
    average: bool
    numel: int


@dataclass(frozen=True)
class Case:
    """All-reduces one after another, with the same memory.

    ``staging`` as for KernelAllReduce; ``epoch`` is that of the first piece; ``seed`` for the data.
    """

    ranks: int
    blocks: int
    staging: int
    epoch: int
    operations: tuple[Operation, ...]
    seed: int = 0


@functools.cache
def shipped(arch: int, dtype: str, average: bool) -> Program:
    """The shipped kernel, compiled for a GPU."""
    return Program(build(all_reduce, arch, dtype, average).asm["ptx"])


PROVED: dict[int, tuple[Schedule, DeviceProgram]] = {}
"""By the identity of a schedule, which has no hash."""


def proved(schedule: Schedule) -> DeviceProgram:
    """A schedule's device program, of which ``verify --device`` says that it is proved."""
    if id(schedule) not in PROVED:
        program = device_program(schedule)
        report = check(program, schedule)
        assert report.verdict is Verdict.PROVED, report
        PROVED[id(schedule)] = schedule, program
    return PROVED[id(schedule)][1]


class AllReduces:
    """A case, set up.

    Attributes:
        machine: with all launches of all ranks.
        layout: of the symmetric memory.
        cuts: by operation.
        epochs: by operation, that of its first piece.
        own: by (operation, rank), where the user's tensor lies.
    """

    def __init__(self, case: Case, program_of: ProgramOf, units: int = 1) -> None:
        self.case = case
        dice = np.random.default_rng(case.seed)
        programs = [proved(operation.schedule) for operation in case.operations]
        slots = max(program.slots for program in programs)
        self.layout = Layout.within(case.staging, case.ranks, case.blocks, slots)
        self.programs = programs
        self.cuts = [
            cut(operation.numel, DTYPES[operation.dtype].itemsize, program, self.layout)
            for operation, program in zip(case.operations, programs, strict=True)
        ]
        self.inputs = [_inputs(operation, case.ranks, dice) for operation in case.operations]
        self._regions: list[Region] = []
        self._end = GAP
        self.symmetric = [
            self._region(rank, "symmetric", self.layout.nbytes) for rank in range(case.ranks)
        ]
        self._bases = [self._region(rank, "bases", 8 * case.ranks) for rank in range(case.ranks)]
        self.own: dict[tuple[int, int], Region] = {}
        self._rows: dict[tuple[int, int], Region] = {}
        for number, operation in enumerate(case.operations):
            for rank in range(case.ranks):
                size = operation.numel * DTYPES[operation.dtype].itemsize
                rows = programs[number].rows[rank]
                self.own[number, rank] = self._region(rank, "own", size, number)
                self._rows[number, rank] = self._region(rank, "rows", rows.nbytes, number)
        size = self._end // GAP * GAP + GAP
        rank_of = tuple(i // case.blocks for i in range(case.ranks * case.blocks))
        self.memory = Memory(self._regions, size, rank_of, dice)
        self._fill()
        self.epochs: list[int] = []
        queues = self._launches(program_of)
        stops = [region.start + self.layout.stop_at for region in self.symmetric]
        self.machine = Machine(self.memory, queues, case.blocks, stops, units)

    def _region(self, rank: int, what: str, size: int, launch: int = 0) -> Region:
        region = Region(rank, what, self._end, size, launch)
        self._regions.append(region)
        self._end += -(-size // GAP) * GAP + GAP
        return region

    def _fill(self) -> None:
        bases = np.array([region.start for region in self.symmetric], np.int64)
        for region in self._bases:
            self.memory.view(region, np.int64)[:] = bases
        for (number, rank), region in self._rows.items():
            self.memory.view(region, np.int32)[:] = self.programs[number].rows[rank].ravel()
        for (number, rank), region in self.own.items():
            data = self.inputs[number][rank].view(torch.uint8).numpy()
            self.memory.view(region, np.uint8)[:] = data

    def _launches(self, program_of: ProgramOf) -> list[tuple[KernelLaunch, ...]]:
        """By rank, what its host launches: epochs and marks as the launcher counts them."""
        queues: list[list[KernelLaunch]] = [[] for _ in range(self.case.ranks)]
        epoch = self.case.epoch
        self.marks = []
        for number, operation in enumerate(self.case.operations):
            self.epochs.append(epoch)
            mark = (number + 1) % 2**31 << 32 | zlib.crc32(repr(operation.numel).encode())
            self.marks.append(mark)
            for rank in range(self.case.ranks):
                program = program_of(operation.dtype, operation.average)
                values = self._arguments(number, rank, epoch, mark)
                names = [name for name, _ in program.text.parameters]
                values += [0] * (len(names) - len(values))  # Triton's scratch memory: none
                parameters = {
                    name: value & (1 << bits) - 1
                    for (name, bits), value in zip(program.text.parameters, values, strict=True)
                }
                queues[rank].append(KernelLaunch(program, parameters))
            epoch = _signed(epoch + self.cuts[number].pieces)
        return [tuple(queue) for queue in queues]

    def _arguments(self, number: int, rank: int, epoch: int, mark: int) -> list[int]:
        """What ``variants`` launches a kernel with, in the order of the kernel's parameters."""
        operation = self.case.operations[number]
        loaded = LoadedProgram(self.programs[number], rank, torch.device("cpu"))
        recorder = _Recorder()
        kernel = object.__new__(Kernel)
        kernel._call = recorder
        kernel._memory = SimpleNamespace(layout=self.layout, bases="bases", stop="stop")
        kernel._rank = rank
        kernel._has_clock = True
        flat = torch.empty(operation.numel, dtype=DTYPES[operation.dtype])
        launch = Launch(loaded, operation.average, epoch, _place(mark), mark)
        kernel.run(flat, launch)
        assert recorder.grid == (self.case.blocks,)
        rows, own, bases, stop = recorder.pointers
        assert rows is loaded.rows
        assert (bases, stop) == ("bases", "stop")
        assert own.numel() == operation.numel
        where = {
            "rows": self._rows[number, rank].start,
            "own": self.own[number, rank].start,
            "bases": self._bases[rank].start,
            "stop": self.symmetric[rank].start + self.layout.stop_at,
        }
        constants = {parameter.name for parameter in all_reduce.params if parameter.is_constexpr}
        given = where | recorder.named
        return [given[name] for name in all_reduce.arg_names if name not in constants]

    # -- what has to hold at the end

    def slices(self, number: int, block: int) -> np.ndarray:
        """The elements of an operation that a block has, in ascending order."""
        slicing: Cut = self.cuts[number]
        elements = np.arange(self.case.operations[number].numel)
        return elements[elements // slicing.part % self.case.blocks == block]

    def expected(self, number: int) -> torch.Tensor:
        """What the rounds of the schedule make of an operation's inputs, on every rank."""
        operation = self.case.operations[number]
        inputs = self.inputs[number]
        if operation.average:
            inputs = [data / self.case.ranks for data in inputs]
        size = self.cuts[number].part * self.case.blocks
        chunk_of = torch.arange(operation.numel) // size % operation.schedule.chunks
        state = {
            (rank, chunk): data[chunk_of == chunk]
            for rank, data in enumerate(inputs)
            for chunk in range(operation.schedule.chunks)
        }
        sums = by_rounds(operation.schedule, state, torch.add)
        result = torch.empty(operation.numel, dtype=DTYPES[operation.dtype])
        for chunk in range(operation.schedule.chunks):
            result[chunk_of == chunk] = sums[0, chunk]
        return result

    def result(self, number: int, rank: int) -> torch.Tensor:
        """What a rank's tensor holds."""
        operation = self.case.operations[number]
        dtype = DTYPES[operation.dtype]
        raw = self.memory.view(self.own[number, rank], np.uint8)
        return torch.from_numpy(raw.copy()).view(dtype)

    def check_results(self, has_done: Callable[[int, int, int], bool]) -> None:
        """Wrong unless every block that ``has_done`` its part in an operation has the right bits.

        (operation, rank, block); and the first element of each other block is NaN.
        """
        for number, operation in enumerate(self.case.operations):
            expected = self.expected(number)
            for rank in range(self.case.ranks):
                result = self.result(number, rank)
                for block in range(self.case.blocks):
                    elements = self.slices(number, block)
                    where = f"operation {number}, rank {rank}, block {block}"
                    if has_done(number, rank, block):
                        if not same_bits(result[elements], expected[elements]):
                            raise Wrong(f"wrong bits: {where}")
                    elif (
                        operation.dtype != "i32"
                        and len(elements)
                        and not result[elements[0]].isnan()
                    ):
                        raise Wrong(f"no mark of what is no sum: {where}")

    def check_stamps(self) -> None:
        """Wrong unless each rank knows when each rank's kernels began."""
        layout = self.layout
        for rank, region in enumerate(self.symmetric):
            stamps = self.memory.view(region, np.uint8)[layout.stamps_at : layout.stop_at]
            words = stamps.view(np.int64)[: 512 * layout.ranks].reshape(256, layout.ranks, 2)
            for number, mark in enumerate(self.marks):
                of_operation = words[_place(mark)]
                if not (of_operation[:, 0] == mark).all() or (of_operation[:, 1] == 0).any():
                    raise Wrong(f"stamps of operation {number} on rank {rank}")


class _Recorder:
    """In the place of a Triton kernel: keeps what it is launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> _Recorder:
        self.grid = grid
        return self

    def __call__(self, *pointers: object, **named: int) -> None:
        self.pointers = pointers
        self.named = named


def _inputs(operation: Operation, ranks: int, dice: np.random.Generator) -> list[torch.Tensor]:
    """Random numbers of very different sizes, so that the order of additions shows."""
    dtype = DTYPES[operation.dtype]
    shape = (ranks, operation.numel)
    if operation.dtype == "i32":
        data = torch.from_numpy(dice.integers(-(2**31), 2**31, shape)).to(dtype)
    else:
        data = torch.from_numpy(dice.standard_normal(shape) * 2.0 ** dice.integers(-6, 6, shape))
        data = data.to(dtype)
    return list(data)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit; NaN is NaN."""
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
    nan = a.isnan() & b.isnan()
    return bool((nan | (a.view(kind) == b.view(kind))).all())
