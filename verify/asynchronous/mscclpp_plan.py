"""The file of an MSCCL++ execution plan, as far as it means something for the verdict.

Read by ``src/core/executor/execution_plan.cc`` of microsoft/mscclpp; like there, fields that are
not known are passed over. A switch channel's buffer is called ``buffer_type`` by that executor, and
``buff`` in older files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from latecomer.verify.core.format import bounded_text
from latecomer.verify.errors import FormatError

NAMES = frozenset(
    [
        *("nop", "barrier", "pipeline", "sem_acquire", "sem_release", "flush"),
        *("signal", "wait", "rlxsignal", "rlxwait", "put", "get", "copy"),
        *("re", "res", "rre", "rres", "glres", "gstore"),
        *("ppkt", "rppkt", "cpkt", "upkt", "respkt", "repkt", "recpkt", "recspkt"),
    ]
)
"""Operations whose meaning is known here."""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""What the executor keeps in an unsigned word; ids, where it keeps only a byte, are looked up."""

BufferType = Literal["i", "o", "s"]
ChannelType = Literal["none", "memory", "port", "switch"]


class Area(msgspec.Struct, frozen=True):
    """Chunks of a buffer: one's own (``type``), another rank's (``buffer_id``, as the block calls
    it), or all ranks' of a switch channel."""

    index: int
    size: Count
    type: BufferType | None = None
    buffer_id: Count | None = None
    switch_channel_id: Count | None = None


class ThreadBlockPart(msgspec.Struct, frozen=True):
    """Which part of its areas an operation does, where blocks share it."""

    tb_id: Count
    tbg_size: Count


class Rounds(msgspec.Struct, frozen=True):
    """How a pipeline is cut: so many bytes in each round, of so many chunks in all."""

    unit_size: Count
    num_chunks: Count


class PlanOperation(msgspec.Struct, frozen=True):
    """One operation; ids of channels are those that the block gives them."""

    name: str
    channel_type: ChannelType = "none"
    channel_ids: tuple[Count, ...] = ()
    src_buff: tuple[Area, ...] = ()
    dst_buff: tuple[Area, ...] = ()
    tbg_info: ThreadBlockPart | None = None
    barrier_id: Count | None = None
    num_threadblocks: Count | None = None
    semaphore_ids: tuple[Count, ...] = ()
    iter_context: Rounds | None = None
    reduce_op: str | None = None
    ops: tuple[PlanOperation, ...] = ()

    @property
    def barrier(self) -> int:
        """Which barrier; one that is not given is 0."""
        return self.barrier_id or 0

    @property
    def joined(self) -> int:
        """How many blocks a barrier is for; where it is not given, 0."""
        return self.num_threadblocks or 0


class ChannelIds(msgspec.Struct, frozen=True):
    """The GPU's channels of one type that a block uses."""

    channel_type: ChannelType
    channel_ids: tuple[Count, ...]


class RemoteIds(msgspec.Struct, frozen=True):
    """The remote buffers that a block uses over one type of channel."""

    access_channel_type: ChannelType
    remote_buffer_ids: tuple[Count, ...]


class PlanBlock(msgspec.Struct, frozen=True):
    """A thread block."""

    id: Count
    ops: tuple[PlanOperation, ...]
    channels: tuple[ChannelIds, ...] = ()
    remote_buffer_refs: tuple[RemoteIds, ...] = ()

    def memory_channels(self) -> list[int]:
        """The GPU's numbers of the memory channels, as operations of the block count them."""
        return self._ids("memory")

    def switch_channels(self) -> list[int]:
        """Likewise of the switch channels."""
        return self._ids("switch")

    def _ids(self, kind: str) -> list[int]:
        numbers: list[int] = []
        for ids in self.channels:
            if ids.channel_type == kind:
                numbers += ids.channel_ids
        return numbers

    def remote_buffers(self) -> list[int]:
        """The GPU's numbers of the remote buffers behind memory channels."""
        numbers: list[int] = []
        for ids in self.remote_buffer_refs:
            if ids.access_channel_type == "memory":
                numbers += ids.remote_buffer_ids
        return numbers


class RankGroup(msgspec.Struct, frozen=True):
    """The ranks behind one switch channel."""

    ranks: tuple[Count, ...]


class PlanChannel(msgspec.Struct, frozen=True):
    """Channels of one type, one for each of ``connected_to`` or ``rank_groups``."""

    channel_type: ChannelType
    connected_to: tuple[Count, ...] = ()
    rank_groups: tuple[RankGroup, ...] = ()
    buffer_type: BufferType | None = None
    buff: BufferType | None = None


class RemoteBuffer(msgspec.Struct, frozen=True):
    """A buffer of another rank."""

    rank: Count
    type: BufferType
    access_channel_types: tuple[ChannelType, ...] = ("memory",)


class PlanSemaphore(msgspec.Struct, frozen=True):
    """A semaphore within a GPU."""

    init_value: Count


class PlanGpu(msgspec.Struct, frozen=True):
    """What one rank does."""

    id: Count
    input_chunks: Count
    output_chunks: Count
    scratch_chunks: Count
    threadblocks: tuple[PlanBlock, ...]
    channels: tuple[PlanChannel, ...] = ()
    remote_buffers: tuple[RemoteBuffer, ...] = ()
    semaphores: tuple[PlanSemaphore, ...] = ()

    def peers(self) -> list[int]:
        """Whom each memory channel joins this rank to."""
        peers: list[int] = []
        for channel in self.channels:
            if channel.channel_type == "memory":
                peers += channel.connected_to
        return peers

    def switches(self) -> list[tuple[BufferType, tuple[int, ...]]]:
        """The switch channels: which buffer of which ranks."""
        switches: list[tuple[BufferType, tuple[int, ...]]] = []
        for channel in self.channels:
            buffer = channel.buffer_type or channel.buff
            if channel.channel_type == "switch" and buffer is not None:
                switches += [(buffer, group.ranks) for group in channel.rank_groups]
        return switches


class Plan(msgspec.Struct, frozen=True):
    """A whole plan."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: tuple[PlanGpu, ...]
    reuse_resources: bool = False
    use_double_scratch_buffer: bool = False
    num_threads_per_block: Count = 1024
    buffer_alignment: Count = 16
    max_message_size: int = 2**64 - 1


def is_plan(data: bytes) -> bool:
    """Whether a JSON text looks like a plan: an object with ``gpus`` and a ``collective``."""
    if b'"gpus"' not in data:
        return False
    try:
        _head.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def decode_plan(data: bytes, name: str = "<bytes>") -> Plan:
    """Parse the text of a plan.

    Raises:
        FormatError: not a plan, or one with operations, channels or ranks that are not known.
    """
    bounded_text(data, name)
    try:
        plan = _plan.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(name, str(error)) from None

    if [gpu.id for gpu in plan.gpus] != list(range(len(plan.gpus))):
        raise FormatError(name, "gpus must be numbered from 0, in order")
    for gpu in plan.gpus:
        if not all(0 <= peer < len(plan.gpus) for peer in gpu.peers()):
            raise FormatError(name, f"gpu {gpu.id} has a channel to a rank that is not there")
        for where, operation in _operations(gpu):
            if operation.name not in NAMES:
                raise FormatError(name, f"{where}: the operation {operation.name!r} is not known")
            if operation.channel_type == "port":
                raise FormatError(name, f"{where}: port channels are not known here")
            if operation.tbg_info is not None and operation.tbg_info.tbg_size == 0:
                raise FormatError(name, f"{where}: tbg_size is 0")
    return plan


def _operations(gpu: PlanGpu) -> Iterator[tuple[str, PlanOperation]]:
    """All operations, those in pipelines, too, with where they stand in the file."""
    for block in gpu.threadblocks:
        for position, outer in enumerate(block.ops):
            where = f"gpu {gpu.id} threadblock {block.id} operation {position}"
            for operation in (outer, *outer.ops):
                yield where, operation


class _Head(msgspec.Struct, frozen=True):
    collective: str
    gpus: list[msgspec.Raw]


_head = msgspec.json.Decoder(_Head)
_plan = msgspec.json.Decoder(Plan)
