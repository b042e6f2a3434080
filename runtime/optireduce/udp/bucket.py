"""One bucket on its way over UBT: its tensor, its shards, what has arrived, and what is made of it.

Stage 0 brings the peers' contributions to the own shard into scratch memory, one piece per sender;
stage 1 brings the owners' results straight into the tensor. An owner begins with its broadcast
before stage 0 is over: run by run, where every contribution is there, so that the two stages
overlap. Shard o of the tensor is read only by the sends to its owner o, and written only by o's
broadcast; o broadcasts a run when it has all contributions to it, or takes no more: so no rank that
still listens ever gets bytes that were overwritten.

The divisor is that of each datagram's range by itself: the mean over the contributions that came,
the own one always among them; the weights add up to one. Where a piece of another owner's shard is
lost in the second stage, the tensor still holds this rank's own contribution: that stands in for
the mean there (no further copy is needed), and times the number of ranks for the sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from runtime.optireduce import hadamard
from runtime.optireduce.options import Options
from runtime.optireduce.udp.compiled.data_path import NUMPY, DataPath
from runtime.optireduce.udp.datagram import Bytes, operation_id
from runtime.optireduce.udp.reassembly import Numbers, SenderBitmap, StageReceiver
from runtime.work import AllReduceWork

KEPT_BYTES = 256 * 2**20


class ScratchPool:
    """Memory that buckets had, for the next ones: fresh pages cost more than what is put there."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self, nbytes: int) -> Bytes:
        """So much, with anything in it."""
        for place, memory in enumerate(self._free):
            if len(memory) == nbytes:
                return self._free.pop(place)
        return np.empty(nbytes, np.uint8)

    def give(self, memory: Bytes) -> None:
        """Nobody uses it any more; what was given first is dropped where too much would be kept."""
        self._free.append(memory)
        while sum(map(len, self._free)) > KEPT_BYTES:
            del self._free[0]


@dataclass(eq=False)
class Bucket:
    """An operation in flight: :meth:`encode`, ``UdpProtocol.open``, then :meth:`finish`."""

    work: AllReduceWork
    step: int
    index: int
    rank: int
    bounds: Sequence[int]  # world_size + 1 element offsets; rank r owns those from bounds[r] on
    options: Options
    seed: int | None = None  # of the transform; None: it is off
    path: DataPath = NUMPY
    stages: tuple[StageReceiver, ...] = ()
    repeat_s: float = 0.0  # when credits are repeated
    due_s: float = 0.0  # when its timers have something to do, unless something comes for it
    fresh: int = 0  # datagrams of the own shard since it was last looked for complete runs

    def __post_init__(self) -> None:
        self.number, self.operation = self.work.number, operation_id(self.step, self.index)

    def encode(self, pool: ScratchPool) -> None:
        """Transform the tensor (where that is on), lay out its shards, allocate scratch."""
        flat = self.work.flat
        payload = self.options.payload_bytes
        if self.seed is not None:
            hadamard.transform(flat, self.seed, block=self.options.hadamard_block)
        raw = flat.view(torch.uint8).numpy()
        width = flat.element_size()
        size = len(self.bounds) - 1
        self._each = payload // width
        ends = itertools.pairwise(bound * width for bound in self.bounds)
        self.shards: list[Bytes] = [raw[first:stop] for first, stop in ends]
        count = -(-len(self.shards[self.rank]) // payload)
        self.memory = pool.take((size - 1) * count * payload)  # for contributions to the own shard
        self._pieces = self.memory.reshape(size - 1, count, payload)
        peers = [peer for peer in range(size) if peer != self.rank]
        self.scratch: dict[int, Bytes] = dict(zip(peers, self._pieces, strict=True))
        self._reduced = np.zeros(count, bool)

    def open(self, now_s: float, bound_s: float) -> None:
        """Receive from now on; ``bound_s``: of a stage."""
        payload = self.options.payload_bytes
        absence_s = self.options.absence_s
        own = dict.fromkeys(self.scratch, len(self.shards[self.rank]))
        others = {peer: len(self.shards[peer]) for peer in self.scratch}
        bounds_s = (own, bound_s), (others, 2 * bound_s)
        when = payload, now_s, absence_s
        self.stages = tuple(StageReceiver(s, *when, b, self.path.bitmap) for s, b in bounds_s)
        self._arrived = np.zeros(self._pieces.shape[:2], bool)  # of the first stage, in one table
        for row, bitmap in zip(self._arrived, self.stages[0].senders.values(), strict=True):
            bitmap.arrived = row

    def source(self, stage: int, peer: int) -> Bytes:
        """The bytes that go to ``peer``: its shard first, then the own one."""
        return self.shards[peer if stage == 0 else self.rank]

    def places(self) -> Iterator[tuple[int, int, SenderBitmap, Bytes]]:
        """Of each stage that is not over: it, a sender, its bitmap, and where its bytes belong."""
        for number, stage in enumerate(self.stages):
            for sender, bitmap in stage.senders.items() if stage.end is None else ():
                yield number, sender, bitmap, self._into(number, sender)

    def place(self, stage: int, sender: int, rows: Bytes, numbers: Numbers) -> None:
        """Copy payloads, uint8 [datagrams, bytes], to where they belong; no number comes twice."""
        self.path.place(self._into(stage, sender), self.options.payload_bytes, rows, numbers)

    def reduce_runs(self, least: int) -> Iterator[tuple[int, int]]:
        """Reduce what can be, in runs of at least so many datagrams: (first, one past the last).

        While the first stage goes on that is where all contributions have arrived; then the rest.
        """
        self.fresh = 0
        every = self.stages[0].end is not None
        for first, stop in self.path.runs(self._arrived, self._reduced, least, every):
            self.reduce(first, stop)
            yield first, stop

    def reduce(self, first: int, stop: int) -> None:
        """No more comes of datagrams ``first`` to ``stop`` - 1 of the own shard: their mean."""
        each = self.options.payload_bytes
        what = (self.work.flat.dtype, self.rank, self._pieces)
        own = self.shards[self.rank][first * each : stop * each]
        arrived = self._arrived
        self.path.average(own, *what, first, arrived[:, first:stop], self.work.average)

    def finish(self) -> None:
        """The second stage is over: make the result of what is in the tensor."""
        if not self.work.average:
            for rank, sender in self.stages[1].senders.items():
                for number in np.flatnonzero(~sender.arrived).tolist():
                    self.scale_missing(rank, number)
        if self.seed is not None:
            block = self.options.hadamard_block
            hadamard.transform(self.work.flat, self.seed, block=block, inverse=True)

    def scale_missing(self, rank: int, number: int) -> None:
        """Let the own contribution stand for the sum in a lost datagram of a rank's shard."""
        self._run(rank, number, number + 1).mul_(len(self.shards))

    def _into(self, stage: int, sender: int) -> Bytes:
        return self.scratch[sender].reshape(-1) if stage == 0 else self.shards[sender]

    def _run(self, rank: int, first: int, stop: int) -> torch.Tensor:
        """The elements of datagrams ``first`` to ``stop`` - 1 of a rank's shard (a view)."""
        shard = self.work.flat[self.bounds[rank] : self.bounds[rank + 1]]
        return shard[first * self._each : stop * self._each]


def shard_bounds(numel: int, world_size: int) -> list[int]:
    """world_size + 1 element offsets: as even as can be."""
    return [numel * rank // world_size for rank in range(world_size + 1)]
