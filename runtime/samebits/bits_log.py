"""A log of hashes: where do two runs part? For ``latecomer compare-bits``.

With ``LATECOMER_HASHES=DIR`` each rank writes, for each step, a short hash of every averaged
gradient as it left the all-reduce, before anything else sees it; and of the inputs of microbatches,
where the program notes them. Hashes are made on the threads that bring results. A step is written
by one system call when its last bucket is there, so that a job that is killed loses no more than
the step that it was in.

A rank whose file can't be written says so once, in the log, and training goes on.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from latecomer.runtime.host import host
from latecomer.runtime.samebits.gradients import names_of_parameters
from latecomer.runtime.samebits.hash_files import (
    VARIABLE,
    End,
    FileName,
    Gradient,
    Head,
    Input,
    Line,
    encode,
)
from latecomer.runtime.torch_versions import GradBucket
from latecomer.verify.errors import ArgumentError

HASH_BYTES = 8  # two hashes are compared where they should be the same: no need for more
logger = logging.getLogger("latecomer")
_attachments = itertools.count()  # of this process, that have a log


@dataclass(eq=False)
class _Step:
    """What is known of a step whose buckets are under way."""

    number: int
    inputs: list[Line] = field(default_factory=list)
    buckets: list[list[Line]] = field(default_factory=list)  # in the order of their submission
    arrived: int = 0  # how many of the buckets have their lines
    has_all_buckets: bool = False

    @property
    def is_over(self) -> bool:
        """Whether all that belongs to it is there."""
        return self.has_all_buckets and self.arrived == len(self.buckets)


class BitsLog:
    """One rank's file.

    Args:
        path: is made when the first step is over.
        head: its first line.
        model: whose gradients; is not kept alive.

    Raises:
        ArgumentError: the directory can't be made, or has this file already.
    """

    def __init__(self, path: Path, head: Head, model: DistributedDataParallel) -> None:
        self._path = path
        self._head = head
        self._names = names_of_parameters(model)
        self._lock = host.Lock()  # guards all that follows: buckets arrive on several threads
        self._step = _Step(0)
        self._file: io.FileIO | None = None
        self._is_closed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            requirement = f"must be a directory: {error.strerror}"
            raise ArgumentError(VARIABLE, str(path.parent), requirement) from None
        if path.exists():
            requirement = f"has {path.name} already, of an earlier run"
            remedy = "Name another directory, or delete this one"
            raise ArgumentError(VARIABLE, str(path.parent), requirement, remedy)

    def note_input(self, tensors: Sequence[torch.Tensor], microbatch: int | None) -> None:
        """Note what a microbatch of the step that is under way is computed from."""
        digest = hashlib.blake2b(digest_size=HASH_BYTES)
        for tensor in tensors:
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(_bytes_of(tensor))
        with self._lock:
            noted = Input(self._step.number, digest.hexdigest(), microbatch)
            self._step.inputs.append(Line(input=noted))

    def behind(self, average: Future[torch.Tensor], bucket: GradBucket) -> Future[torch.Tensor]:
        """``average``, done when the hashes of the bucket's gradients have been noted, too."""
        parameters = bucket.parameters()
        names = [self._names[parameter] for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        with self._lock:
            step = self._step
            position = len(step.buckets)
            step.buckets.append([])
            if bucket.is_last():
                step.has_all_buckets = True
                self._step = _Step(step.number + 1)

        def note(done: Future[torch.Tensor]) -> torch.Tensor:
            flat = done.value()
            lines = []
            for name, gradient in zip(names, torch.split(flat, sizes), strict=True):
                digest = hashlib.blake2b(_bytes_of(gradient), digest_size=HASH_BYTES)
                noted = Gradient(step.number, name, digest.hexdigest())
                lines.append(Line(gradient=noted))
            with self._lock:
                step.buckets[position] = lines
                step.arrived += 1
                if step.is_over:
                    self._write(step)
            return flat

        return average.then(note)

    def close(self) -> None:
        """Nothing is written any more."""
        with self._lock:
            self._is_closed = True
            if self._file is not None:
                self._file.close()

    def _write(self, step: _Step) -> None:
        if self._is_closed:
            return
        gradients = itertools.chain.from_iterable(step.buckets)
        end = Line(end=End(step.number))
        lines = b"".join(encode(line) for line in (*step.inputs, *gradients, end))
        try:
            if self._file is None:
                self._file = io.FileIO(self._path, "xb")
                lines = encode(Line(head=self._head)) + lines
            while lines:
                written = self._file.write(lines)
                lines = lines[written:]
        except OSError as error:
            logger.warning("%s: nothing more is written to %s: %s", VARIABLE, self._path, error)
            self._is_closed = True


class WithBitsLog:
    """What an attachment has where LATECOMER_HASHES is set."""

    bits_log: BitsLog | None = None

    def note_input(self, *tensors: torch.Tensor, microbatch: int | None = None) -> None:
        """Have a microbatch's inputs in the log of hashes, if there is one (LATECOMER_HASHES).

        To be called before the backward pass of the microbatch. Which rank has which microbatch may
        differ between two runs that are compared: a step's inputs are compared over all its ranks.

        Args:
            tensors: all that it is computed from: samples, targets, masks.
            microbatch: its number in the step, over all ranks; then a difference is told by it.

        Raises:
            ArgumentError: one is no tensor.
        """
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                raise ArgumentError("tensors", type(tensor).__name__, "must be tensors")
        if self.bits_log is not None:
            self.bits_log.note_input(tensors, microbatch)

    def close_bits_log(self) -> None:
        """Nothing is noted any more."""
        if self.bits_log is not None:
            self.bits_log.close()


def log_by_environment(
    model: DistributedDataParallel, bits: str, contributions: int | None
) -> BitsLog | None:
    """A log of what is attached to ``model`` now, if LATECOMER_HASHES asks for it.

    Raises:
        ArgumentError: it names what is no directory, or one with the hashes of an earlier run.
    """
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    ranks = tuple(dist.get_process_group_ranks(model.process_group))
    head = Head(
        rank=dist.get_rank(),
        ranks=ranks,
        bits=bits,
        contributions=contributions or len(ranks),
        conditions=_conditions(next(model.parameters()).device),
    )
    name = FileName(head.rank, next(_attachments))
    return BitsLog(name.within(Path(directory)), head, model)


def _conditions(device: torch.device) -> dict[str, str]:
    """What else the bits depend on, by names that a reader of a comparison knows."""
    is_cuda = device.type == "cuda"
    hardware = torch.cuda.get_device_name(device) if is_cuda else device.type
    return {
        "torch": str(torch.__version__),  # it is of a subclass of str
        "threads": str(torch.get_num_threads()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "device": hardware,
        "CPU": torch.backends.cpu.get_cpu_capability(),
    }


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """All elements in order, on the host."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data
