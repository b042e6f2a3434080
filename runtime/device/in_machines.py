"""Runs an operation in stages: kernels inside the machine, transfers to the others.

A tensor is cut into *pieces* of as much as the staging holds. Each goes through the stages in
order, and a stage of one piece runs beside later stages of the piece before it. All kernels of a
rank are on one stream, so there is never more than one of them on the device. They, and transfers,
are enqueued in the same order on all ranks, by the sum of piece and stage: what a kernel or a
transfer waits for was enqueued before it on all ranks. No host waits.

**A rank that gives up says so to whom it sends.** A kernel whose stop word is raised gives up, and
what its rank holds then is no sum. The stream goes on, though, to transfers for ranks of other
machines, which know nothing of it. So the stop word goes along with every message between machines,
behind its data, and who receives one that is raised has its own raised, on the device, before it
goes on: its kernels give up, too, put nothing, and it passes the word on in turn. The host raises
the word before it ends the transfers that are under way, so that none of them, cut short, is
followed by anything that passes for a sum. An operation has its sum only if the word is down at its
end.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from latecomer.runtime.device.launcher import FIRST_EPOCH, keep_if_running
from latecomer.runtime.device.layout import Cut, epoch_after, stamp_place
from latecomer.runtime.device.memory import SymmetricMemory
from latecomer.runtime.device.stages import RankStages
from latecomer.runtime.device.variants import Kernel, Launch, LoadedProgram
from latecomer.runtime.executor.nccl.engine import TRANSFERS, DeviceEngine, exchange
from latecomer.runtime.executor.nccl.groups import TensorEnd
from latecomer.runtime.executor.nccl.streams import Device, StreamEvent
from latecomer.runtime.work import CollectiveWork, TransferEnd

IN_STAGES = "kernels inside machines, transfers between"
"""What is said of operations that run so (``CollectiveWork.by``)."""


@dataclass(frozen=True)
class Piece:
    """Elements of a tensor that go through the stages together.

    Attributes:
        flat: the piece; part: elements of a slice of it; slices: of a chunk.
    """

    flat: torch.Tensor
    part: int
    slices: int

    def chunk(self, number: int) -> torch.Tensor:
        """What the piece has of a chunk, maybe nothing."""
        size = self.part * self.slices
        return self.flat[number * size : (number + 1) * size]


class MachineKernels:
    """Launches this rank's kernels inside its machine, in order, on a stream of their own."""

    def __init__(self, device: Device, memory: SymmetricMemory, kernel: Kernel) -> None:
        self.stream = device.stream()
        self.memory = memory
        self._kernel = kernel
        self._epoch = FIRST_EPOCH
        self._launches = itertools.count(1)

    def pieces(self, work: CollectiveWork, stages: RankStages) -> list[Piece]:
        """The same on all ranks for the same tensor; none of an empty one."""
        slicing = self._kernel.cut(work.flat, stages.widest)
        slices = self.memory.layout.blocks
        size = stages.widest.chunks * slices * slicing.part
        starts = range(0, work.flat.numel(), size)
        return [Piece(work.flat[at : at + size], slicing.part, slices) for at in starts]

    def launch(self, work: CollectiveWork, loaded: LoadedProgram, piece: Piece) -> None:
        """Enqueue the next kernel; all ranks of the machine launch the same ones in this order."""
        kind = work.description.partition(": ")[2]
        mark = next(self._launches) % 2**31 << 32 | zlib.crc32(kind.encode())
        launch = Launch(loaded, False, self._epoch, stamp_place(mark), mark)
        self._epoch = epoch_after(self._epoch, 1)
        cut = Cut(1, piece.part)
        self.stream.launch(lambda: self._kernel.run_cut(piece.flat, launch, cut))

    def words(self, ends: list[TransferEnd], received: list[torch.Tensor]) -> list[TensorEnd]:
        """The stop word to each receiver of ``ends``; those of each sender go to ``received``."""
        words: list[TensorEnd] = []
        for send, peer in dict.fromkeys((end.send, end.peer) for end in ends):
            word = self.memory.stop
            if not send:
                word = torch.zeros_like(word)
                received.append(word)
            words.append((send, word, peer))
        return words

    def is_stopped(self) -> bool:
        """Whether the stop word is raised, by whomever."""
        return bool(self.memory.read(self.memory.stop).any())

    def close(self) -> None:
        """Keep what kernels use that do not end."""
        keep_if_running(self.stream, (self.memory, self._kernel))


class StagedEngine(DeviceEngine):
    """Transfers as ever, and operations in stages.

    Args:
        device: see :class:`DeviceEngine`, which takes all ``arguments``, too.
        kernels: of this rank.
        stages_of: what this rank does in an operation that goes in stages.
        unfit: why an operation with a program does not; empty if it does.
    """

    def __init__(
        self,
        device: Device,
        *arguments: Any,
        kernels: MachineKernels,
        stages_of: Callable[[CollectiveWork], RankStages],
        unfit: Callable[[CollectiveWork], str],
        dtypes: Iterable[torch.dtype],
        **options: Any,
    ) -> None:
        super().__init__(device, *arguments, **options)
        self._kernels = kernels
        self._stages_of = stages_of
        self._unfit = unfit
        self._load_what_follows_kernels(dtypes)

    def submit(self, work: CollectiveWork) -> None:
        """Enqueue an operation; ArgumentError where a graph is captured that can't hold it."""
        if work.program is not None:
            reason = self._unfit(work)
            work.by = f"{TRANSFERS}: {reason}" if reason else IN_STAGES
        super().submit(work)

    def abort(self) -> None:
        """Stop at once: first this rank's kernels and its word, then what is being transferred."""
        self._is_over = True
        try:
            self._kernels.memory.raise_stop()
        finally:  # a device that is broken refuses it
            super().abort()

    def close(self) -> None:
        """Stop when the operations under way are done, or after some seconds."""
        self._watcher.close()
        if not self._watcher.idle:
            self._is_over = True
            self._kernels.memory.raise_stop()
        super().close()
        self._kernels.close()

    def _enqueue(self, work: CollectiveWork) -> tuple[StreamEvent, StreamEvent]:
        if work.by != IN_STAGES:
            return super()._enqueue(work)
        stages = self._stages_of(work)
        pieces = self._kernels.pieces(work, stages)
        arrival = done = self._device.current().record()
        stream = self._kernels.stream
        if work.average:
            done = self._after(done, stream, work, True, [])

        reached = [done] * len(pieces)
        for turn in range(len(pieces) + stages.stages - 1):
            for stage in reversed(range(stages.stages)):  # what is behind makes room for others
                number = turn - stage
                if 0 <= number < len(pieces):
                    reached[number] = self._enqueue_stage(
                        work, stages, stage, pieces[number], reached[number]
                    )
        for event in reached:
            stream.wait(event)
        seal = [lambda: self._seal(work.flat)]
        return arrival, self._after(done, stream, work, False, seal)

    def _enqueue_stage(
        self,
        work: CollectiveWork,
        stages: RankStages,
        stage: int,
        piece: Piece,
        before: StreamEvent,
    ) -> StreamEvent:
        """One stage of a piece, behind ``before``; the place at which it is done."""
        if (loaded := stages.kernels.get(stage)) is not None:
            stream = self._kernels.stream
            stream.wait(before)
            self._kernels.launch(work, loaded, piece)
            stream.keep(work.flat)
            return stream.record()

        assert work.program is not None
        ends = stages.between.get(stage, ())
        for step, of_step in itertools.groupby(ends, lambda end: end.step):
            ends_of_step = list(of_step)
            phase = ends_of_step[0].phase
            call = partial(self._between, phase, work, step, ends_of_step, piece)
            before = self._after(before, self._streams[phase], work, False, [call])
        return before

    def _between(
        self, phase: int, work: CollectiveWork, step: int, ends: list[TransferEnd], piece: Piece
    ) -> None:
        """One round of transfers, and the stop words of those from whom something came."""
        assert work.program is not None
        phase_name, round_in_phase = work.program.steps[step]
        received: list[torch.Tensor] = []
        self._observer.step_begins(work.number, phase_name, round_in_phase)
        exchange(
            self._groups[phase],
            ends,
            piece.chunk,
            lambda moving: self._kernels.words(moving, received),
        )
        if received:
            self._kernels.memory.raise_stop_if(torch.cat(received))
        self._observer.step_ends(work.number, phase_name, round_in_phase)

    def _seal(self, flat: torch.Tensor) -> None:
        """The last that an operation does: mark what is no sum, as kernels do with their parts."""
        self._results.seal(flat)
        if flat.is_floating_point():
            flat[:1].masked_fill_(self._kernels.memory.stop != 0, torch.nan)

    def _land(self, work: CollectiveWork) -> None:
        """Over, unless this rank or one that it heard from has given up on the way."""
        if work.by == IN_STAGES and self._kernels.is_stopped():
            if not self._is_over:  # else it is a consequence of the failure that stopped us
                self._watcher.stop()
                self._failed(f"rank {self._rank} heard of a stop in operation {work.number}", None)
            return
        super()._land(work)

    def _load_what_follows_kernels(self, dtypes: Iterable[torch.dtype]) -> None:
        """Run once all that runs behind kernels: what has to be loaded might wait for one."""

        def run() -> None:
            down = torch.zeros_like(self._kernels.memory.stop)
            self._kernels.memory.raise_stop_if(torch.cat([down, down]))
            for dtype in dtypes:
                flat = torch.zeros(2, dtype=dtype, device=down.device)
                flat.add_(flat).copy_(torch.empty_like(flat))
                self._seal(flat)
                if dtype.is_floating_point:
                    flat.div_(self._world_size)

        self._kernels.stream.launch(run)
        self._kernels.stream.synchronize()
