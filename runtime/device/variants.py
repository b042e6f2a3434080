"""Triton's kernel as the engine launches it: compiled and loaded for each dtype, once, beforehand.

A kernel that is compiled between two launches would only keep others waiting; but one that has to
be loaded while another runs may have to wait for it, and that for a rank that waits for this one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from latecomer.runtime.device.layout import Cut, cut
from latecomer.runtime.device.memory import SymmetricMemory
from latecomer.runtime.device.stamps import DeviceClock
from latecomer.runtime.host import host
from latecomer.verify.device.program import SETS, DeviceAction, DeviceProgram

WARPS = 16
REGISTERS = 80  # of a thread: by itself the assembler takes 32, and spills
FUSION = True  # Triton's default up to 3.9, which warns that it will change; nothing is fused here
TILE = 4096  # elements that a block moves at once,
INTERPRETED_TILE = 128  # and in triton's interpreter
ALIGNMENT = 16  # bytes, of the tensors that the kernel takes: it moves so many at a time
CALIBRATIONS = 3  # launches of each variant; the narrowest bounds on the clock are kept


class LoadedProgram:
    """A rank's rows, on its device."""

    def __init__(self, program: DeviceProgram, rank: int, device: torch.device) -> None:
        self.program = program
        rows = torch.from_numpy(program.rows[rank])
        self.receives = torch.nonzero(rows[:, 0] != DeviceAction.PUT).flatten()
        self.slots = rows[self.receives, 3]
        self.peers = rows[self.receives, 1]
        self.rows = rows.to(device)


@dataclass(frozen=True)
class Launch:
    """What one operation is to its kernel."""

    loaded: LoadedProgram
    average: bool
    epoch: int  # of the first piece, in 32 bits with a sign
    place: int  # among the stamps
    mark: int  # number and checksum


class Kernel:
    """One rank's; ``pieces`` and launches are the same for the same tensor on all ranks.

    ``clock`` is what is known of the device's.
    """

    def __init__(self, memory: SymmetricMemory, rank: int) -> None:
        from latecomer.runtime.device.kernel import (
            all_reduce,  # with triton: only where there is one
        )

        self._call = all_reduce
        self._memory = memory
        self._rank = rank
        self._device = memory.bases.device
        self._has_clock = self._device.type == "cuda"
        self.clock = DeviceClock()

    def compile(self, dtypes: Iterable[torch.dtype], loaded: LoadedProgram) -> None:
        """Compile and load for sums and averages of ``dtypes``; launches without a piece."""
        with torch.cuda.device(self._device) if self._has_clock else contextlib.nullcontext():
            for dtype in dtypes:
                averages = (False, True) if dtype.is_floating_point else (False,)
                for average in averages:
                    empty = torch.zeros(ALIGNMENT, dtype=dtype, device=self._device)
                    for _ in range(CALIBRATIONS):  # the first one compiles
                        self._calibrate(empty, Launch(loaded, average, 0, 0, -1))

    def _calibrate(self, empty: torch.Tensor, launch: Launch) -> None:
        """Relate the device's clock to the host's, by a launch that nothing holds up."""
        before_s = host.monotonic()
        self._launch(empty, launch, 0, 0)
        if self._has_clock:
            torch.cuda.synchronize(self._device)
        after_s = host.monotonic()
        began_ns = self._memory.read(self._memory.stamps[0, self._rank, 1])
        self.clock.observe(before_s, int(began_ns) * 1e-9, after_s)

    def run(self, flat: torch.Tensor, launch: Launch) -> None:
        """Enqueue an operation on the current stream (interpreter: run it), in place."""
        self.run_cut(flat, launch, self.cut(flat, launch.loaded.program))

    def cut(self, flat: torch.Tensor, program: DeviceProgram) -> Cut:
        """How a tensor is cut for a program."""
        return cut(flat.numel(), flat.itemsize, program, self._memory.layout)

    def run_cut(self, flat: torch.Tensor, launch: Launch, slicing: Cut) -> None:
        """As :meth:`run`, of a tensor that is cut so on all ranks."""
        aligned = flat if flat.data_ptr() % ALIGNMENT == 0 else flat.clone()
        self._launch(aligned, launch, slicing.pieces, slicing.part)
        if aligned is not flat:
            flat.copy_(aligned)

    def _launch(self, flat: torch.Tensor, launch: Launch, pieces: int, part: int) -> None:
        layout = self._memory.layout
        loaded = launch.loaded
        self._call[(layout.blocks,)](
            loaded.rows,
            flat,
            self._memory.bases,
            self._memory.stop,
            length=len(loaded.rows),
            received=len(loaded.receives),
            numel=flat.numel(),
            part=part,
            pieces=pieces,
            chunks=loaded.program.chunks,
            epoch=launch.epoch,
            rank=self._rank,
            ranks=layout.ranks,
            place=launch.place,
            mark=launch.mark,
            now=host.monotonic_ns(),
            slots=layout.slots,
            area=layout.area,
            flags_at=layout.flags_at,
            stamps_at=layout.stamps_at,
            SETS=SETS,
            AVERAGE=launch.average,
            DEVICE_CLOCK=self._has_clock,
            TILE=TILE if self._has_clock else INTERPRETED_TILE,
            num_warps=WARPS,
            maxnreg=REGISTERS,
            enable_fp_fusion=FUSION,
        )
