"""The file of an MSCCL++ execution plan, as far as it means something for the verdict.

Read by ``src/core/executor/execution_plan.cc`` of microsoft/mscclpp; like there, fields that are
not known are passed over. A switch channel's buffer is called ``buffer_type`` by that executor, and
``buff`` in older files.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from verify.core.format import bounded_text
from verify.errors import FormatError

NAMES = frozenset(
    [
        *("nop", "barrier", "pipeline", "sem_acquire", "sem_release", "flush"),
        *("signal", "wait", "rlxsignal", "rlxwait", "put", "get", "copy"),
        *("re", "res", "rre", "rres", "glres", "gstore"),
        *("ppkt", "rppkt", "cpkt", "upkt", "respkt", "repkt", "recpkt", "recspkt"),
    ]
)
"""Operations whose meaning is known here."""


class Area(msgspec.Struct, frozen=True):
    """Chunks of a buffer: one's own (``type``), another rank's (``buffer_id``, as the block calls
    it), or all ranks' of a switch channel."""

    index: int
    size: int
    type: str | None = None
    buffer_id: int | None = None
    switch_channel_id: int | None = None


class Part(msgspec.Struct, frozen=True):
    """Which part of its areas an operation does, where blocks share it."""

    tb_id: int
    tbg_size: int


class PlanOperation(msgspec.Struct, frozen=True):
    """One operation; ids of channels are those that the block gives them."""

    name: str
    channel_type: str = "none"
    channel_ids: tuple[int, ...] = ()
    src_buff: tuple[Area, ...] = ()
    dst_buff: tuple[Area, ...] = ()
    tbg_info: Part | None = None
    barrier_id: int = 0
    num_threadblocks: int = 0
    semaphore_ids: tuple[int, ...] = ()
    ops: tuple[PlanOperation, ...] = ()


class ChannelIds(msgspec.Struct, frozen=True):
    """The GPU's channels of one type that a block uses."""

    channel_type: str
    channel_ids: tuple[int, ...]


class RemoteIds(msgspec.Struct, frozen=True):
    """The remote buffers that a block uses over one type of channel."""

    access_channel_type: str
    remote_buffer_ids: tuple[int, ...]


class PlanBlock(msgspec.Struct, frozen=True):
    """A thread block."""

    id: int
    ops: tuple[PlanOperation, ...]
    channels: tuple[ChannelIds, ...] = ()
    remote_buffer_refs: tuple[RemoteIds, ...] = ()


class RankGroup(msgspec.Struct, frozen=True):
    """The ranks behind one switch channel."""

    ranks: tuple[int, ...]


class PlanChannel(msgspec.Struct, frozen=True):
    """Channels of one type, one for each of ``connected_to`` or ``rank_groups``."""

    channel_type: str
    connected_to: tuple[int, ...] = ()
    rank_groups: tuple[RankGroup, ...] = ()
    buffer_type: str | None = None
    buff: str | None = None


class RemoteBuffer(msgspec.Struct, frozen=True):
    """A buffer of another rank."""

    rank: int
    type: str


class PlanSemaphore(msgspec.Struct, frozen=True):
    """A semaphore within a GPU."""

    init_value: int


class PlanGpu(msgspec.Struct, frozen=True):
    """What one rank does."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[PlanBlock, ...]
    channels: tuple[PlanChannel, ...] = ()
    remote_buffers: tuple[RemoteBuffer, ...] = ()
    semaphores: tuple[PlanSemaphore, ...] = ()

    def peers(self) -> list[int]:
        """Whom each memory channel joins this rank to."""
        memory = [c.connected_to for c in self.channels if c.channel_type == "memory"]
        return [peer for peers in memory for peer in peers]


class Plan(msgspec.Struct, frozen=True):
    """A whole plan."""

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: tuple[PlanGpu, ...]
    reuse_resources: bool = False
    use_double_scratch_buffer: bool = False


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
        for place, operation in _operations(gpu):
            if operation.name not in NAMES:
                raise FormatError(name, f"{place}: the operation {operation.name!r} is not known")
            if operation.channel_type == "port":
                raise FormatError(name, f"{place}: port channels are not known here")
    return plan


def _operations(gpu: PlanGpu) -> Iterator[tuple[str, PlanOperation]]:
    for block in gpu.threadblocks:
        for number, outer in enumerate(block.ops):
            for operation in (outer, *outer.ops):
                yield f"gpu {gpu.id} threadblock {block.id} operation {number}", operation


class _Head(msgspec.Struct, frozen=True):
    collective: str
    gpus: list[msgspec.Raw]


_head = msgspec.json.Decoder(_Head)
_plan = msgspec.json.Decoder(Plan)
