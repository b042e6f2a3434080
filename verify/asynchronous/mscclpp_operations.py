"""What each operation of an MSCCL++ plan takes; what else would be read otherwise is refused.

The executor reads an operation's areas by their places, whatever they say of themselves: ``copy``
takes the first source and the first target, a target of ``put`` is a number of a remote buffer even
where the file names an own one, packets lie in scratch. Fields of other operations share their
memory (a union in ``execution_common.hpp``), so a ``signal`` with a ``barrier_id`` signals other
channels than it says. Such plans are refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from latecomer.verify.asynchronous.mscclpp_plan import Area, Plan, PlanBlock, PlanGpu, PlanOperation
from latecomer.verify.errors import FormatError

MOST_THREADS = 1024
"""Of a block, on any GPU."""
MOST_BARRIERS = 16
"""``MAX_DEVICE_SYNCERS``: ids are indices of an array."""
ALIGNMENT = 16
"""Bytes that the kernel moves at once; offsets that are no multiple of it are cut down."""

LOCAL = "own"
REMOTE = "remote"
SWITCH = "switch"
PACKETS = "packets in own scratch"
REMOTE_PACKETS = "packets in remote scratch"


class AreaKinds(NamedTuple):
    """Kinds of areas: the first ones in turn, then any number of ``more``."""

    first: tuple[str, ...]
    more: str | None = None

    def __str__(self) -> str:
        more = (f"any number {self.more}",) if self.more else ()
        return ", ".join((*self.first, *more)) or "none"


class Shape(NamedTuple):
    """The sources and targets of an operation; ``pairs``: source by source to target by target."""

    sources: AreaKinds
    targets: AreaKinds
    pairs: bool = False


SHAPES = {
    "put": Shape(AreaKinds((LOCAL,), LOCAL), AreaKinds((REMOTE,), REMOTE), pairs=True),
    "get": Shape(AreaKinds((REMOTE,), REMOTE), AreaKinds((LOCAL,), LOCAL), pairs=True),
    "copy": Shape(AreaKinds((LOCAL,)), AreaKinds((LOCAL,))),
    "re": Shape(AreaKinds((LOCAL,), LOCAL), AreaKinds((LOCAL,))),
    "res": Shape(AreaKinds((LOCAL,), LOCAL), AreaKinds((LOCAL,), REMOTE)),
    "rre": Shape(AreaKinds((LOCAL,), REMOTE), AreaKinds((LOCAL,))),
    "rres": Shape(AreaKinds((LOCAL,), REMOTE), AreaKinds((LOCAL,), REMOTE)),
    "glres": Shape(AreaKinds((SWITCH,)), AreaKinds((SWITCH,))),
    "gstore": Shape(AreaKinds((LOCAL,)), AreaKinds((SWITCH,))),
    "ppkt": Shape(
        AreaKinds((LOCAL,), LOCAL), AreaKinds((REMOTE_PACKETS,), REMOTE_PACKETS), pairs=True
    ),
    "rppkt": Shape(AreaKinds((PACKETS,)), AreaKinds((REMOTE_PACKETS,), REMOTE_PACKETS)),
    "cpkt": Shape(AreaKinds((LOCAL,)), AreaKinds((PACKETS,))),
    "upkt": Shape(AreaKinds((PACKETS,)), AreaKinds((LOCAL,))),
    "respkt": Shape(AreaKinds((LOCAL,), PACKETS), AreaKinds((LOCAL,), REMOTE_PACKETS)),
    "repkt": Shape(AreaKinds((LOCAL,), PACKETS), AreaKinds((LOCAL,))),
    "recpkt": Shape(AreaKinds((LOCAL,), PACKETS), AreaKinds((LOCAL, PACKETS))),
    "recspkt": Shape(AreaKinds((LOCAL,), PACKETS), AreaKinds((LOCAL, PACKETS), REMOTE_PACKETS)),
}
"""The operations that move data."""

CHANNELS = frozenset({"signal", "wait", "rlxsignal", "rlxwait", "flush"})
SEMAPHORES = frozenset({"sem_acquire", "sem_release"})
FIELDS = {
    "channel_ids": CHANNELS | SHAPES.keys(),
    "src_buff": SHAPES.keys(),
    "dst_buff": SHAPES.keys(),
    "barrier_id": {"barrier"},
    "num_threadblocks": {"barrier"},
    "semaphore_ids": SEMAPHORES,
    "iter_context": {"pipeline"},
}
"""Which operations have a field that shares its memory with others' fields."""


def require_understood(plan: Plan, name: str) -> None:
    """Refuse what the executor would not read as it is written.

    Raises:
        FormatError: with the first such operation, or what is wrong with a GPU.
    """
    if plan.buffer_alignment % ALIGNMENT or not plan.buffer_alignment:
        raise FormatError(name, f"buffer_alignment must be a multiple of {ALIGNMENT}")
    if not 1 <= plan.num_threads_per_block <= MOST_THREADS:
        raise FormatError(name, f"num_threads_per_block must be from 1 to {MOST_THREADS}")
    _require_sizes(plan, name)
    for gpu in plan.gpus:
        for channel in gpu.channels:
            of_switch = channel.channel_type == "switch"
            if of_switch and channel.buffer_type is None and channel.buff is None:
                raise FormatError(name, f"gpu {gpu.id}: a switch channel of no buffer")
        if [block.id for block in gpu.threadblocks] != list(range(len(gpu.threadblocks))):
            problem = f"gpu {gpu.id}: threadblocks must be numbered from 0, in order"
            raise FormatError(name, problem)
        for block in gpu.threadblocks:
            where = f"gpu {gpu.id} threadblock {block.id}"
            _require_block(gpu, block, f"{where}:", name)
            for position, operation in enumerate(block.ops):
                reader = _Reader(plan, gpu, block, f"{where} operation {position}", name)
                reader.require(operation)


def _require_sizes(plan: Plan, name: str) -> None:
    """Chunks have one size everywhere, and the input has some."""
    first = plan.gpus[0] if plan.gpus else None
    if first is None:
        raise FormatError(name, "has no gpus")
    for gpu in plan.gpus:
        chunks = (gpu.input_chunks, gpu.output_chunks)
        if chunks != (first.input_chunks, first.output_chunks):
            problem = f"gpu {gpu.id} has other input_chunks or output_chunks than gpu 0"
            raise FormatError(name, problem)
    if first.input_chunks == 0:
        raise FormatError(name, "has no input chunks")
    if first.output_chunks:
        shares = len(plan.gpus) if plan.collective == "allgather" else 1
        if first.output_chunks != shares * first.input_chunks:
            problem = f"{first.input_chunks} input_chunks and {first.output_chunks} output_chunks"
            raise FormatError(name, f"{problem} do not fit the collective {plan.collective}")
    elif not (plan.inplace and plan.collective == "allreduce"):
        raise FormatError(name, "has no output chunks")


def _require_block(gpu: PlanGpu, block: PlanBlock, where: str, name: str) -> None:
    """The channels and remote buffers of a block are there, no channel twice."""
    channels = block.memory_channels()
    if len(set(channels)) < len(channels):
        raise FormatError(name, f"{where} a channel is listed twice")
    if any(channel >= len(gpu.peers()) for channel in channels):
        raise FormatError(name, f"{where} a channel is not there")
    for number in block.remote_buffers():
        if number >= len(gpu.remote_buffers):
            raise FormatError(name, f"{where} a remote buffer is not there")
        if "memory" not in gpu.remote_buffers[number].access_channel_types:
            raise FormatError(name, f"{where} remote buffer {number} is not for memory channels")
    for number in block.switch_channels():
        if number >= len(gpu.switches()):
            raise FormatError(name, f"{where} a switch channel is not there")


class _Reader:
    """Looks at the operations of one block."""

    def __init__(self, plan: Plan, gpu: PlanGpu, block: PlanBlock, where: str, name: str) -> None:
        self.plan = plan
        self.gpu = gpu
        self.block = block
        self.where = where
        self.name = name

    def refuse(self, problem: str) -> FormatError:
        return FormatError(self.name, f"{self.where}: {problem}")

    def require(self, operation: PlanOperation) -> None:
        """Refuse an operation that is not as the executor reads it."""
        for field, owners in FIELDS.items():
            if getattr(operation, field) not in (None, ()) and operation.name not in owners:
                raise self.refuse(f"{operation.name} with {field}")
        if operation.barrier >= MOST_BARRIERS:
            raise self.refuse(f"barrier {operation.barrier}; there are {MOST_BARRIERS}")
        if operation.name == "pipeline":
            self._require_pipeline(operation)
        elif operation.name in SHAPES:
            self._require_shape(operation, SHAPES[operation.name])
        elif operation.name in CHANNELS:
            self._require_ids(operation.channel_ids, len(self.block.memory_channels()), "channel")
        elif operation.name in SEMAPHORES:
            ids = operation.semaphore_ids
            self._require_ids(ids, len(self.gpu.semaphores), "semaphore")
            if len(set(ids)) < len(ids):
                raise self.refuse("a semaphore is there twice, for two threads at once")

    def _require_ids(self, ids: Sequence[int], existing: int, kind: str) -> None:
        """Every id is below the number of those that exist, and has a thread of its own."""
        if any(number >= existing for number in ids):
            raise self.refuse(f"a {kind} is not there")
        if len(ids) > self.plan.num_threads_per_block:
            raise self.refuse(f"has more {kind}s than the block has threads")

    def _require_pipeline(self, operation: PlanOperation) -> None:
        """A pipeline takes its operations' areas piece by piece, all at the same places."""
        rounds = operation.iter_context
        if rounds is None:
            raise self.refuse("a pipeline without iter_context")
        if rounds.unit_size == 0 or rounds.unit_size % ALIGNMENT:
            raise self.refuse(f"unit_size must be a multiple of {ALIGNMENT}")
        for inner in operation.ops:
            if inner.name == "pipeline":
                raise self.refuse("a pipeline in a pipeline")
            if inner.name.endswith("pkt"):
                raise self.refuse("packets in a pipeline, which would be the same in each round")
            if inner.tbg_info is not None:
                raise self.refuse("blocks that share an operation of a pipeline")
            if any(area.size != rounds.num_chunks for area in (*inner.src_buff, *inner.dst_buff)):
                problem = "an area of a pipeline must have its num_chunks"
                raise self.refuse(f"{problem}; beyond it, or short of it, the executor goes on")
            self.require(inner)

    def _require_shape(self, operation: PlanOperation, shape: Shape) -> None:
        """The areas of an operation are of the kinds and sizes that the executor takes."""
        sources = operation.src_buff
        targets = operation.dst_buff
        if not sources and not targets:
            return
        self._require_kinds(operation.name, "sources", sources, shape.sources)
        self._require_kinds(operation.name, "targets", targets, shape.targets)

        if shape.pairs:
            self._require_pairs(operation)
        elif len({area.size for area in (*sources, *targets)}) > 1:
            raise self.refuse("areas of different sizes")
        part = operation.tbg_info
        if part is not None and part.tb_id >= part.tbg_size:
            raise self.refuse(f"part {part.tb_id} of {part.tbg_size}")
        if operation.reduce_op not in (None, "sum"):
            raise self.refuse(f"reduce_op {operation.reduce_op!r}; the executor adds up")

    def _require_pairs(self, operation: PlanOperation) -> None:
        """Each source goes to one target of its size."""
        sources = operation.src_buff
        targets = operation.dst_buff
        if len(sources) != len(targets):
            raise self.refuse(f"{len(sources)} sources and {len(targets)} targets")
        pairs = zip(sources, targets, strict=True)
        if any(source.size != target.size for source, target in pairs):
            raise self.refuse("a source and its target have different sizes")
        if operation.name != "get" and len({source.type for source in sources}) > 1:
            raise self.refuse("sources in different buffers; all are read in the first one's")

    def _require_kinds(
        self, name: str, side: str, areas: Sequence[Area], wanted: AreaKinds
    ) -> None:
        kinds = [self._kind(area) for area in areas]
        wanted_kinds = list(wanted.first)
        if wanted.more is not None:
            wanted_kinds += [wanted.more] * (len(kinds) - len(wanted_kinds))
        if len(kinds) != len(wanted_kinds) or not all(map(_fits, kinds, wanted_kinds)):
            found = ", ".join(kinds) or "none"
            raise self.refuse(f"{name} with these {side}: {found}; expected: {wanted}")

    def _kind(self, area: Area) -> str:
        """``own i``, ``remote s``, ``switch``: what an area is."""
        names = (area.type, area.buffer_id, area.switch_channel_id)
        if sum(name is not None for name in names) != 1:
            raise self.refuse("an area needs exactly one of type, buffer_id and switch_channel_id")
        if area.switch_channel_id is not None:
            if area.switch_channel_id >= len(self.block.switch_channels()):
                raise self.refuse("a switch channel is not there")
            return SWITCH
        if area.buffer_id is not None:
            buffers = self.block.remote_buffers()
            if area.buffer_id >= len(buffers):
                raise self.refuse("a remote buffer is not there")
            return f"{REMOTE} {self.gpu.remote_buffers[buffers[area.buffer_id]].type}"
        return f"{LOCAL} {area.type}"


def _fits(kind: str, wanted: str) -> bool:
    """Whether an area as :meth:`_Reader._kind` calls it is one that is wanted."""
    if wanted == PACKETS:
        return kind == f"{LOCAL} s"
    if wanted == REMOTE_PACKETS:
        return kind == f"{REMOTE} s"
    return kind.startswith(wanted)
