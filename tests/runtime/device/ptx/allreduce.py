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
from latecomer.runtime.device.launcher import FIRST_EPOCH
from latecomer.runtime.device.layout import Cut, Layout, cut, epoch_after, stamp_place
from latecomer.runtime.device.variants import ALIGNMENT, Kernel, Launch, LoadedProgram
from latecomer.verify import Schedule
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.device.check import check
from latecomer.verify.device.program import SETS, DeviceProgram, device_program
from tests.runtime.device.ptx.block import Block
from tests.runtime.device.ptx.builds import shipped_ptx
from tests.runtime.device.ptx.machine import KernelLaunch, Machine
from tests.runtime.device.ptx.memory import Memory
from tests.runtime.device.ptx.program import Program
from tests.runtime.device.ptx.regions import GAP, Region, Wrong
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
    There are at least so many ``slots``: ranks may have other schedules, too, that need them. Where
    it is ``calibrated``, each rank first launches its kernel as the runtime does after it has
    compiled it: without a piece, on some zeros.
    """

    ranks: int
    blocks: int
    staging: int
    epoch: int
    operations: tuple[Operation, ...]
    seed: int = 0
    slots: int = 0
    calibrated: bool = False


@functools.cache
def shipped(arch: int, dtype: str, average: bool) -> Program:
    """The shipped kernel, compiled for a GPU."""
    return Program(shipped_ptx(arch, dtype, average))


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
        programs: by operation, proved.
        own: by (operation, rank), where the user's tensor lies.
        symmetric: by rank, where its symmetric memory lies.
        regions: all of them.
    """

    def __init__(self, case: Case, program_of: ProgramOf, units: int = 1) -> None:
        self.case = case
        dice = np.random.default_rng(case.seed)
        programs = [proved(operation.schedule) for operation in case.operations]
        slots = max(case.slots, *(program.slots for program in programs))
        self.layout = Layout.within(case.staging, case.ranks, case.blocks, slots)
        self.programs = programs
        self.cuts = [
            cut(operation.numel, DTYPES[operation.dtype].itemsize, program, self.layout)
            for operation, program in zip(case.operations, programs, strict=True)
        ]
        self.inputs = [_inputs(operation, case.ranks, dice) for operation in case.operations]
        self.regions: list[Region] = []
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
        self._zeros = [
            self._region(rank, "own", 8 * ALIGNMENT, -1)
            for rank in range(case.ranks * case.calibrated)
        ]
        size = self._end // GAP * GAP + GAP
        rank_of = tuple(i // case.blocks for i in range(case.ranks * case.blocks))
        self.memory = Memory(self.regions, size, rank_of, case.seed)
        self._fill()
        if case.epoch != FIRST_EPOCH:
            self._raise_flags()
        self.epochs: list[int] = []
        queues = self._launches(program_of)
        stops = [region.start + self.layout.stop_at for region in self.symmetric]
        self.machine = Machine(self.memory, queues, case.blocks, stops, units)

    def _region(self, rank: int, what: str, size: int, launch: int = 0) -> Region:
        region = Region(rank, what, self._end, size, launch)
        self.regions.append(region)
        self._end += -(-size // GAP) * GAP + GAP
        return region

    def _fill(self) -> None:
        bases = np.array([region.start for region in self.symmetric], np.int64)
        for region in self._bases:
            self.memory.view(region, np.int64)[:] = bases
        for (number, rank), region in self._rows.items():
            self.memory.view(region, np.int32)[:] = self.programs[number].rows[rank].ravel()
        for (number, rank), region in self.own.items():
            if region.size:
                data = self.inputs[number][rank].view(torch.uint8).numpy()
                self.memory.view(region, np.uint8)[:] = data

    def _raise_flags(self) -> None:
        """Those of a set hold the last epoch before the first one, as if each had been used."""
        layout = self.layout
        for region in self.symmetric:
            flags = self.memory.view(region, np.uint8)[layout.flags_at : layout.stamps_at]
            size = 4 * layout.slots * layout.blocks
            for parity in range(SETS):
                age = 2 - (self.case.epoch - parity) % 2
                epoch = np.int64(epoch_after(self.case.epoch, -age))
                flags[parity * size :][:size].view(np.int32)[:] = epoch

    def _launches(self, program_of: ProgramOf) -> list[tuple[KernelLaunch, ...]]:
        """By rank, what its host launches: epochs and marks as the launcher counts them."""
        queues: list[list[KernelLaunch]] = [[] for _ in range(self.case.ranks)]
        if self.case.calibrated:
            self._calibrate(queues, program_of)
        epoch = self.case.epoch
        self.marks = []
        for number, operation in enumerate(self.case.operations):
            self.epochs.append(epoch)
            mark = (number + 1) % 2**31 << 32 | zlib.crc32(repr(operation.numel).encode())
            self.marks.append(mark)
            for rank, queue in enumerate(queues):
                flat = torch.empty(operation.numel, dtype=DTYPES[operation.dtype])
                recorder, kernel = self._recording(rank)
                loaded = LoadedProgram(self.programs[number], rank, torch.device("cpu"))
                launch = Launch(loaded, operation.average, epoch, stamp_place(mark), mark)
                kernel.run(flat, launch)
                assert recorder.pointers[0] is loaded.rows
                assert recorder.pointers[1].numel() == operation.numel
                own = self.own[number, rank].start
                program = program_of(operation.dtype, operation.average)
                queue.append(self._launched(program, recorder, number, rank, own))
            epoch = epoch_after(epoch, self.cuts[number].pieces)
        return [tuple(queue) for queue in queues]

    def _calibrate(self, queues: list[list[KernelLaunch]], program_of: ProgramOf) -> None:
        """As ``Kernel.compile`` launches a kernel, once."""
        operation = self.case.operations[0]
        for rank, queue in enumerate(queues):
            empty = torch.zeros(ALIGNMENT, dtype=DTYPES[operation.dtype])
            recorder, kernel = self._recording(rank)
            loaded = LoadedProgram(self.programs[0], rank, torch.device("cpu"))
            kernel._launch(empty, Launch(loaded, operation.average, 0, 0, -1), 0, 0)
            program = program_of(operation.dtype, operation.average)
            own = self._zeros[rank].start
            queue.append(self._launched(program, recorder, 0, rank, own))

    def _recording(self, rank: int) -> tuple[_Recorder, Kernel]:
        """A rank's Kernel of ``variants``, with a recorder in the place of Triton's."""
        recorder = _Recorder()
        kernel = object.__new__(Kernel)
        kernel._call = recorder
        kernel._memory = SimpleNamespace(layout=self.layout, bases="bases", stop="stop")
        kernel._rank = rank
        kernel._has_clock = True
        return recorder, kernel

    def _launched(
        self, program: Program, recorder: _Recorder, number: int, rank: int, own: int
    ) -> KernelLaunch:
        """What was recorded, with the addresses that things have here."""
        assert recorder.grid == (self.case.blocks,)
        assert recorder.pointers[2:] == ("bases", "stop")
        where = {
            "rows": self._rows[number, rank].start,
            "own": own,
            "bases": self._bases[rank].start,
            "stop": self.symmetric[rank].start + self.layout.stop_at,
        }
        constants = {parameter.name for parameter in all_reduce.params if parameter.is_constexpr}
        given = where | recorder.named
        values = [given[name] for name in all_reduce.arg_names if name not in constants]
        values += [0] * (len(program.text.parameters) - len(values))  # Triton's scratch: none
        parameters = {
            name: value & (1 << bits) - 1
            for (name, bits), value in zip(program.text.parameters, values, strict=True)
        }
        return KernelLaunch(program, parameters)

    def blocks_of(self, number: int, rank: int) -> tuple[Block, ...]:
        """The blocks of a rank's kernel of an operation, which has begun."""
        return self.machine.ranks[rank].past[number + self.case.calibrated]

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
        result = torch.empty(operation.numel, dtype=DTYPES[operation.dtype])
        if operation.numel:
            raw = self.memory.view(self.own[number, rank], np.uint8)
            result.view(torch.uint8).numpy()[:] = raw
        return result

    def check_results(self, has_done: Callable[[int, int, int], bool]) -> None:
        """Wrong unless every block that ``has_done`` its part in an operation has the right bits.

        (operation, rank, block); and the first element of each other block is NaN.
        """
        for region in self._zeros:
            if self.memory.view(region, np.uint8).any():
                raise Wrong("a launch without a piece has stored something")
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
            words = stamps.view(np.int64)[: len(stamps) // (16 * layout.ranks) * 2 * layout.ranks]
            words = words.reshape(-1, layout.ranks, 2)
            for number, mark in enumerate(self.marks):
                of_operation = words[stamp_place(mark)]
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
