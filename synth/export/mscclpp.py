"""An MSCCL++ execution plan: each rank does its part in one order, with one-sided puts.

A transfer is a put into the receiver's scratch, in a slot of its own, and a signal; the receiver
waits, then copies or adds the slot into its buffer. So nothing is ever written that its owner may
still read, but the slots of an earlier run: a rank tells everyone who will put to it that it has
begun, and they wait for that before they do. The late rank is waited for only where its data are
needed, or its slots.

A block has at most 64 operations and 16 channels, so a rank's program is cut into blocks, each of
which begins when a semaphore of the block before it is released. What a ``nop`` is for: the threads
of a block run apart, and are together only there.

Limits, of microsoft/mscclpp ``src/core/include/execution_common.hpp``: 16 semaphores, so 17 blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from latecomer.synth.export.ends import End, ends
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError

# Those of execution_common.hpp: MAX_OPERATION, MAX_CHANNEL, MAX_CHANNEL_PER_OPERATION,
# MAX_DEVICE_SEMAPHORES.
MAX_OPERATIONS = 64
MAX_CHANNELS = 16
MAX_CHANNELS_PER_OPERATION = 8
MAX_SEMAPHORES = 16

Operation = dict[str, Any]
NOP: Operation = {"name": "nop"}


def encode(schedule: Schedule, name: str = "latecomer") -> bytes:
    """The plan's text: an in-place all-reduce of buffers whose 16-byte words the chunks divide.

    Raises:
        ArgumentError: a limit of the target is exceeded; it says which.

    Examples:
        >>> from pathlib import Path
        >>> from latecomer import synth, verify
        >>> from latecomer.synth.export import mscclpp
        >>> from latecomer.verify.asynchronous.mscclpp import verify_plan
        >>> text = mscclpp.encode(synth.generate(8, chunks=8))
        >>> verify_plan(text).verdict is verify.Verdict.PROVED
        True
        >>> _ = Path("plan.json").write_bytes(text)
    """
    all_ends = ends(schedule)
    slots: dict[int, int] = {}
    filled = [0] * schedule.ranks
    for end in all_ends:
        if not end.sends:
            slots[end.transfer] = filled[end.rank]
            filled[end.rank] += 1
    plan = {
        "name": name,
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
        "gpus": [
            _gpu(rank, schedule.chunks, filled[rank], _rank(rank, all_ends, slots))
            for rank in range(schedule.ranks)
        ],
    }
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


class _Blocks:
    """The operations of a rank, cut into blocks; peers stand for channels and remote buffers."""

    def __init__(self) -> None:
        self.blocks: list[tuple[list[Operation], list[int]]] = [([], [])]

    def add(self, operation: Operation, peers: Iterable[int] = ()) -> None:
        """Append an operation, in which the peers have the names that the block gives them."""
        operations, block_peers = self.blocks[-1]
        new = [peer for peer in peers if peer not in block_peers]
        # Beside this operation four more begin and end a block: sem_acquire and nop, nop and
        # sem_release.
        if len(operations) > MAX_OPERATIONS - 5 or len(block_peers) + len(new) > MAX_CHANNELS:
            operations = []
            block_peers = []
            self.blocks.append((operations, block_peers))
            new = list(peers)
        block_peers += new
        # A block calls a channel by its place in the list of those that it has.
        names = [block_peers.index(peer) for peer in peers]
        if operation["name"] == "put":
            operation["dst_buff"][0]["buffer_id"] = names[0]
        if names:
            operation |= {"channel_ids": names, "channel_type": "memory"}
        operations.append(operation)

    def each(self, name: str, peers: list[int]) -> None:
        """One kind of operation for any number of peers; one that is there twice gets two of them.

        Each channel of an operation has a thread, so the same one in the next needs a nop between.
        """
        left = list(peers)
        while left:
            now = sorted(set(left))[:MAX_CHANNELS_PER_OPERATION]
            self.add({"name": name}, now)
            for peer in now:
                left.remove(peer)
            if left:
                self.add(dict(NOP))


def _rank(rank: int, all_ends: list[End], slots: dict[int, int]) -> _Blocks:
    """What a rank does: round by round its puts and signals, then its waits and what came."""
    own = [end for end in all_ends if end.rank == rank]
    done = _Blocks()
    # Relaxed: it says that the slots are free, and orders no data.
    done.each("rlxsignal", sorted({end.peer for end in own if not end.sends}))
    to_greet = {end.peer for end in own if end.sends}

    def greet(peers: list[int]) -> bool:
        """Wait until these peers have begun, where that was not waited for before."""
        new = sorted(to_greet.intersection(peers))
        done.each("rlxwait", new)
        to_greet.difference_update(peers)
        return bool(new)

    for _, group in groupby(own, lambda end: end.round):
        of_round = list(group)
        sends = [end for end in of_round if end.sends]
        receives = [end for end in of_round if not end.sends]
        if sends:
            greet([end.peer for end in sends])
            done.add(dict(NOP))
            for end in sends:
                slot = {"index": slots[end.transfer], "size": 1}
                done.add(
                    {"name": "put", "src_buff": [_place("i", end.chunk)], "dst_buff": [slot]},
                    [end.peer],
                )
            done.add(dict(NOP))
            done.each("signal", [end.peer for end in sends])
        if receives:
            if greet([end.peer for end in receives]):
                done.add(dict(NOP))
            done.each("wait", [end.peer for end in receives])
        for end in receives:
            chunk = _place("i", end.chunk)
            slot = _place("s", slots[end.transfer])
            done.add(dict(NOP))
            if end.reduce:
                done.add(
                    {"name": "re", "src_buff": [chunk, slot], "dst_buff": [dict(chunk)]}
                    | {"reduce_op": "sum"}
                )
            else:
                done.add({"name": "copy", "src_buff": [slot], "dst_buff": [chunk]})
    return done


def _place(buffer: str, index: int) -> Operation:
    return {"type": buffer, "index": index, "size": 1}


def _gpu(rank: int, chunks: int, slots: int, done: _Blocks) -> dict[str, Any]:
    """A rank's part of the plan; block b + 1 begins when semaphore b is released."""
    last = len(done.blocks) - 1
    if last > MAX_SEMAPHORES:
        raise ArgumentError(
            "--to",
            "mscclpp",
            f"rank {rank} needs {last + 1} blocks of {MAX_OPERATIONS} operations, the target has "
            f"{MAX_SEMAPHORES} semaphores to chain them: {MAX_SEMAPHORES + 1} blocks",
            "Take fewer ranks or chunks",
        )
    peers = sorted({peer for _, block_peers in done.blocks for peer in block_peers})
    blocks = []
    for number, (operations, block_peers) in enumerate(done.blocks):
        acquired = [{"name": "sem_acquire", "semaphore_ids": [number - 1]}, dict(NOP)]
        released = [dict(NOP), {"name": "sem_release", "semaphore_ids": [number]}]
        ids = [peers.index(peer) for peer in block_peers]
        blocks.append(
            {
                "id": number,
                "ops": (acquired if number else [])
                + operations
                + (released if number < last else []),
                "channels": [{"channel_type": "memory", "channel_ids": ids}],
                "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": ids}],
            }
        )
    return {
        "id": rank,
        "input_chunks": chunks,
        "output_chunks": chunks,
        "scratch_chunks": slots,
        "threadblocks": blocks,
        "channels": [{"channel_type": "memory", "connected_to": peers}],
        "remote_buffers": [
            {"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in peers
        ],
        "semaphores": [{"init_value": 0} for _ in range(last)],
    }
