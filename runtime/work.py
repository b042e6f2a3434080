"""A collective in flight: the tensors it takes, its handle down to the bytes, who may watch it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar

import torch

from latecomer.runtime.collective import ALL_REDUCE, Collective
from latecomer.runtime.host import host, monotonic_now
from latecomer.runtime.torch_versions import Work
from latecomer.verify.errors import LatecomerError, TensorError

logger = logging.getLogger("latecomer")

ON_HOST = timedelta(days=1)
"""The time limit of a wait that is to hold up the host; the watchdog's comes first."""

FLOATS = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
SUMMABLE = FLOATS | INTEGERS


def unsummable(
    tensor: torch.Tensor, average: bool, dtypes: Collection[torch.dtype] = SUMMABLE
) -> tuple[str, str]:
    """Why a tensor can't be summed in place, and what is required; empty if it can."""
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}", "it must be dense (torch.strided)"
    if tensor.dtype not in dtypes:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"dtype {tensor.dtype}", f"it must be one of {names}"
    if not tensor.is_contiguous():
        return "not contiguous", "pass tensor.contiguous()"
    if average and not tensor.dtype.is_floating_point:
        return f"the average of {tensor.dtype}", "it is not an integer; sum instead"
    return "", ""


def require_summable(
    tensor: torch.Tensor,
    device: torch.device,
    average: bool,
    dtypes: Collection[torch.dtype] = SUMMABLE,
) -> None:
    """Raise TensorError for what can't be carried on ``device``."""
    if tensor.device.type != device.type:
        raise TensorError(f"the tensor is on {tensor.device}, the executor on {device}")
    reason, requirement = unsummable(tensor, average, dtypes)
    if reason:
        raise TensorError(f"a tensor can't be carried: {reason}; {requirement}")


@dataclass(frozen=True, slots=True)
class TransferEnd:
    """This rank's end of a transfer; ``index`` is the same at both ends."""

    index: int
    send: bool
    reduce: bool
    scratch: bool
    peer: int
    chunk: int
    phase: int
    step: int  # position in RankProgram.steps
    after: tuple[int, ...]  # positions of what goes before it at the same chunk, byte by byte


@dataclass(frozen=True)
class RankProgram:
    """All that one rank sends and receives; an end of a transfer is known by its position."""

    ends: tuple[TransferEnd, ...]  # step by step, sends before receives
    steps: tuple[tuple[str, int], ...]  # (phase, round within it)
    phases: int

    @cached_property
    def at(self) -> dict[int, int]:
        """Transfer index -> position."""
        return {end.index: position for position, end in enumerate(self.ends)}

    @cached_property
    def waiting(self) -> list[list[int]]:
        """For each end, the receives that have it in ``after``."""
        waiting: list[list[int]] = [[] for _ in self.ends]
        for position, end in enumerate(self.ends):
            if end.send:
                continue
            for earlier in end.after:
                waiting[earlier].append(position)
        return waiting

    @cached_property
    def receives(self) -> tuple[tuple[int, ...], ...]:
        """For each phase, its receives in order."""
        receives: list[list[int]] = [[] for _ in range(self.phases)]
        for position, end in enumerate(self.ends):
            if not end.send:
                receives[end.phase].append(position)
        return tuple(tuple(positions) for positions in receives)


@dataclass(eq=False, repr=False)
class CollectiveWork:
    """A collective under way; its caller waits for it, or takes a future of it.

    ``flat`` is the buffer that it runs on, in place, of all ranks alike.
    """

    number: int  # operations count from 0 on every rank, in the same order
    tensor: torch.Tensor  # the caller's, which holds the result in the end
    average: bool = False  # every rank divides by the number of ranks before the sum
    arrived_s: float = field(default_factory=monotonic_now)  # when it was submitted
    done_s: float = 0.0  # when it was done
    error: LatecomerError | None = None  # why it failed, if it did
    key: tuple[int, tuple[int, ...]] | None = None  # by which schedule it runs, and who is late
    program: RankProgram | None = None  # this rank's part in that
    bounds: tuple[int, ...] = ()  # chunk c is ``flat[bounds[c]:bounds[c + 1]]``
    join: Callable[[], None] | None = None  # on a device: lets the current stream wait
    on_stream: Callable[[], torch.futures.Future[Any]] | None = None  # makes one to wait behind
    by: str = ""  # on a device: kernel, transfers or library; why not the kernel
    before_done: Callable[[], None] | None = None  # called with the result, before who waits

    collective: ClassVar[Collective]
    flat: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.flat = self.tensor.detach().view(-1)
        self._done = host.Event()
        self._to_tell: deque[Callable[[LatecomerError | None], None]] = deque()

    def begin(self) -> None:
        """See to it that ``flat`` is what a schedule begins with."""

    def finish(self) -> None:
        """See to it that ``tensor`` has what a schedule has made of ``flat``."""

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.flat.nbytes

    @property
    def kind(self) -> str:
        """What ranks must have in common besides the collective and the number of bytes."""
        dtype = str(self.flat.dtype)
        return f"{dtype}, averaged" if self.average else dtype

    @property
    def what(self) -> str:
        """What is done with the buffers, in a word or two."""
        return "average" if self.average else "sum"

    @property
    def description(self) -> str:
        """What all ranks must agree on."""
        dtype = str(self.flat.dtype).removeprefix("torch.")
        by = ""
        if self.key is not None:
            schedule, late = self.key
            by = f" by schedule {schedule}, late {list(late)}"
        return f"operation {self.number}: {self.what} of {self.flat.numel()} x {dtype}{by}"

    def chunk(self, number: int) -> torch.Tensor:
        """The elements of one chunk (a view; empty where the tensor is too small)."""
        return self.flat[self.bounds[number] : self.bounds[number + 1]]

    @property
    def is_done(self) -> bool:
        """Whether the result is there, or has failed."""
        return self._done.is_set()

    def settle(self, error: LatecomerError | None = None) -> None:
        """Mark as done or failed, once."""
        self.error = error
        self.done_s = host.monotonic()
        before_done = self.before_done
        # It may refer to this work: the tensor would live until Python looks for cycles.
        self.before_done = None
        try:
            if error is None and before_done is not None:
                before_done()
        finally:  # an exception there must leave nobody waiting
            self._done.set()
            self._tell()

    def then(self, call: Callable[[LatecomerError | None], None]) -> None:
        """Call ``call`` with :attr:`error` when it is done: on the thread that settles it, or now.

        It may take its time, and start other operations. (A callback of a torch future may not
        wait on a simulated host: it is called from C++, whose stack stays where it is.)
        """
        self._to_tell.append(call)
        if self.is_done:
            self._tell()

    def _tell(self) -> None:
        """Call whoever has not been called yet; each once, whichever thread takes it out."""
        while self._to_tell:
            try:
                call = self._to_tell.popleft()
            except IndexError:
                return
            try:
                call(self.error)
            except Exception:  # whoever waits for the operation has its result all the same
                logger.exception("operation %d: what was to come after it failed", self.number)

    def wait(self, timeout: timedelta | None = None) -> torch.Tensor:
        """Block until done and return the tensor; on a device only if there is a ``timeout``.

        Without one the current stream waits there, as with NCCL, and later waits raise.

        Raises:
            RankFailure, LossExceeded: why it failed.
            TimeoutError: not done within ``timeout`` (the operation goes on).
        """
        limit_s = timeout.total_seconds() if timeout else None
        blocks = timeout or not self.join
        if blocks and not self._done.wait(limit_s):
            raise TimeoutError(f"operation {self.number} is not done after {timeout}")
        if self.error is not None:
            raise self.error
        if self.join is not None:
            self.join()
        return self.tensor

    def future(self, *, as_list: bool = False) -> torch.futures.Future[Any]:
        """A future of the tensor (or of ``[tensor]``) that raises what ``wait`` raises."""

        def result(_: torch.futures.Future[Any]) -> Any:
            tensor = self.wait()
            return [tensor] if as_list else tensor

        if self.on_stream is not None and not self.is_done:
            return self.on_stream().then(result)
        # torch orders the streams of a future of CUDA tensors, if it is told of their device
        devices: list[Any] = [self.tensor.device] if self.tensor.device.type == "cuda" else []
        over: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        # It is completed with a value even on failure and raises in the callback: torch loses the
        # type of an exception set on a future of a DDP hook, and DDP crashes on one set on a future
        # of a process group.
        self.then(lambda error: over.set_result(None))
        return over.then(result)


class AllReduceWork(CollectiveWork):
    """A tensor that is being reduced, in place."""

    collective = ALL_REDUCE


@dataclass(eq=False, repr=False)
class ReduceScatterWork(CollectiveWork):
    """A tensor of which each rank gets the sum of its part; ``given`` stays as it is."""

    collective = "reduce_scatter"

    given: torch.Tensor = field(kw_only=True)  # as many parts as there are ranks
    rank: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flat = self.given.detach().view(-1)

    def begin(self) -> None:
        """Sum in a copy: partial sums of all parts pass through it."""
        self.flat = self.flat.clone()

    def finish(self) -> None:
        """Hand over this rank's part, and let go of the copy."""
        part = self.tensor.detach().view(-1)
        first = self.rank * part.numel()
        part.copy_(self.flat[first : first + part.numel()])
        self.flat = self.given.detach().view(-1)

    @property
    def what(self) -> str:
        """As in the base class."""
        return f"reduce_scatter ({super().what})"


@dataclass(eq=False, repr=False)
class AllGatherWork(CollectiveWork):
    """A tensor that gets the parts of all ranks; this rank's is ``given``, which may lie in it."""

    collective = "all_gather"

    given: torch.Tensor = field(kw_only=True)
    rank: int = field(kw_only=True)

    def begin(self) -> None:
        """Put this rank's part in its place."""
        part = self.given.detach().view(-1)
        first = self.rank * part.numel()
        place = self.flat[first : first + part.numel()]
        if place.data_ptr() != part.data_ptr():
            place.copy_(part)

    @property
    def what(self) -> str:
        """As in the base class."""
        return self.collective


class PendingWork(Work):
    """A collective as torch wants to see it."""

    def __init__(self, work: CollectiveWork) -> None:
        super().__init__()
        self._work = work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """As :meth:`CollectiveWork.wait`."""
        self._work.wait(timeout)
        return True

    def synchronize(self) -> None:
        """As :meth:`wait` without a time limit; also what ``block_current_stream`` does."""
        self._work.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether the result is there, or has failed."""
        return self._work.is_done

    def is_success(self) -> bool:
        """Whether the result is there."""
        return self._work.is_done and self._work.error is None

    def exception(self) -> LatecomerError | None:
        """Why it failed, if it did."""
        return self._work.error

    def result(self) -> list[torch.Tensor]:
        """The list of tensors, once they are done."""
        return [self._work.wait()]

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the list of tensors."""
        return self._work.future(as_list=True)


class Observer:
    """Is told what happens to operations, on the threads that do it; overrides what it needs.

    Rounds overlap: one may begin before the last has ended. An exception from an observer breaks
    this rank, which is how tests inject faults at a named place.

    Examples:
        >>> from latecomer import Observer
        >>> class Failures(Observer):
        ...     def done(self, operation):
        ...         if operation.error is not None:
        ...             print(operation.description, operation.error)
        >>> observer = Failures()  # for ddp.attach or Executor
    """

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        """The first bytes of a rank's round are about to move (CUDA: to be enqueued)."""

    def step_ends(self, operation: int, phase: str, round: int) -> None:
        """What was received in this round is in place, what was sent is on its way."""

    def done(self, operation: CollectiveWork) -> None:
        """An operation is complete (or has failed: see ``operation.error``)."""
