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

from latecomer.runtime.optireduce import hadamard
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.data_path import NUMPY, DataPath
from latecomer.runtime.optireduce.udp.events import Bytes, ExpectedShard, operation_id
from latecomer.runtime.optireduce.udp.reassembly import StageReceiver
from latecomer.runtime.work import CollectiveWork

KEPT_BYTES = 256 * 2**20  # of scratch memory that no bucket uses


class ScratchPool:
    """Memory that buckets had, for the next ones: fresh pages cost more than what is put there."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self, nbytes: int) -> Bytes:
        """So much, with anything in it."""
        for index, memory in enumerate(self._free):
            if len(memory) == nbytes:
                return self._free.pop(index)
        return np.empty(nbytes, np.uint8)

    def give(self, memory: Bytes) -> None:
        """Nobody uses it any more; what was given first is dropped where too much would be kept."""
        self._free.append(memory)
        while sum(map(len, self._free)) > KEPT_BYTES:
            del self._free[0]


@dataclass(eq=False)
class Bucket:
    """An operation in flight.

    :meth:`transform` (where it is), :meth:`lay_out`, ``UdpProtocol.open``, then :meth:`finish`
    unless it :attr:`is_finished`.
    """

    work: CollectiveWork
    step: int
    index: int
    rank: int
    bounds: Sequence[int]  # world_size + 1 element offsets; rank r owns those from bounds[r] on
    options: Options
    seed: int | None = None  # of the transform; None: it is off
    path: DataPath = NUMPY
    stages: tuple[StageReceiver, ...] = ()
    repeat_s: float = 0.0  # when credits are repeated
    due_s: float = 0.0  # when its timers have something to do, unless something comes to end it
    fresh: int = 0  # datagrams of the own shard since it was last looked for complete runs

    def __post_init__(self) -> None:
        self.number = self.work.number
        self.operation = operation_id(self.step, self.index)

    @property
    def is_transformed(self) -> bool:
        """It is carried with the transform."""
        return self.seed is not None

    @property
    def is_finished(self) -> bool:
        """Its second stage is over, and has left nothing for :meth:`finish` to do."""
        return not self.is_transformed and (self.work.average or not self.stages[1].lost)

    def transform(self) -> None:
        """Transform the tensor."""
        assert self.seed is not None
        hadamard.transform(self.work.flat, self.seed, block=self.options.hadamard_block)

    def lay_out(self, pool: ScratchPool) -> None:
        """Tell its shards apart, and allocate scratch."""
        flat = self.work.flat
        payload_bytes = self.options.payload_bytes
        raw = flat.view(torch.uint8).numpy()
        element_bytes = flat.element_size()
        world_size = len(self.bounds) - 1
        self._datagram_elements = payload_bytes // element_bytes
        ends = itertools.pairwise(bound * element_bytes for bound in self.bounds)
        self.shards: list[Bytes] = [raw[first:stop] for first, stop in ends]

        # contributions to the own shard, whose last datagram is full here: so that each is a row
        count = self._datagrams(self.rank)
        self.memory = pool.take((world_size - 1) * count * payload_bytes)
        self._contributions = self.memory.reshape(world_size - 1, count, payload_bytes)
        peers = [peer for peer in range(world_size) if peer != self.rank]
        self.scratch: dict[int, Bytes] = dict(zip(peers, self._contributions, strict=True))
        self._reduced = np.zeros(count, bool)

    def open(self, now_s: float, bound_s: float) -> None:
        """Receive from now on; ``bound_s``: of a stage."""
        absence_s = self.options.absence_s
        own_count = self._datagrams(self.rank)
        contribution_counts = dict.fromkeys(self.scratch, own_count)
        result_counts = {peer: self._datagrams(peer) for peer in self.scratch}
        self.stages = (
            StageReceiver(contribution_counts, now_s=now_s, absence_s=absence_s, bound_s=bound_s),
            StageReceiver(result_counts, now_s=now_s, absence_s=absence_s, bound_s=2 * bound_s),
        )
        # of the first stage in one table, since a datagram is reduced when all of a column is there
        self._arrived_contributions = np.zeros((len(self.scratch), own_count), bool)
        self.arrived: tuple[dict[int, np.ndarray], dict[int, np.ndarray]] = (
            dict(zip(self.scratch, self._arrived_contributions, strict=True)),
            {peer: np.zeros(count, bool) for peer, count in result_counts.items()},
        )

    def source(self, stage: int, peer: int) -> Bytes:
        """The bytes that go to ``peer``: its shard first, then the own one."""
        return self.shards[peer if stage == 0 else self.rank]

    def expected(self) -> Iterator[ExpectedShard]:
        """What each peer has to send in both stages, and where that belongs."""
        own_bytes = len(self.shards[self.rank])
        for peer, arrived in self.arrived[0].items():
            into = self.scratch[peer].reshape(-1)[:own_bytes]
            yield ExpectedShard(stage=0, sender=peer, arrived=arrived, into=into)
        for peer, arrived in self.arrived[1].items():
            yield ExpectedShard(stage=1, sender=peer, arrived=arrived, into=self.shards[peer])

    def reduce_runs(self, least: int) -> Iterator[tuple[int, int]]:
        """Reduce what can be, in runs of at least so many datagrams: (first, one past the last).

        While the first stage goes on that is where all contributions have arrived; then the rest.
        """
        self.fresh = 0
        is_over = self.stages[0].end is not None
        for first, stop in self.path.runs(
            self._arrived_contributions, self._reduced, least, is_over
        ):
            self.reduce(first, stop)
            yield first, stop

    def reduce(self, first: int, stop: int) -> None:
        """No more comes of datagrams ``first`` to ``stop`` - 1 of the own shard: their mean."""
        payload_bytes = self.options.payload_bytes
        self.path.average(
            self.shards[self.rank][first * payload_bytes : stop * payload_bytes],
            self.work.flat.dtype,
            self.rank,
            self._contributions,
            first,
            self._arrived_contributions[:, first:stop],
            self.work.average,
        )

    def finish(self) -> None:
        """The second stage is over: make the result of what is in the tensor."""
        if not self.work.average:
            for rank, arrived in self.arrived[1].items():
                for number in np.flatnonzero(~arrived).tolist():
                    self.scale_missing(rank, number)
        if self.seed is not None:
            block = self.options.hadamard_block
            hadamard.transform(self.work.flat, self.seed, block=block, inverse=True)

    def scale_missing(self, rank: int, number: int) -> None:
        """Let the own contribution stand for the sum in a lost datagram of a rank's shard."""
        self.elements(rank, number, number + 1).mul_(len(self.shards))

    def elements(self, rank: int, first: int, stop: int) -> torch.Tensor:
        """Those of datagrams ``first`` to ``stop`` - 1 of a rank's shard (a view)."""
        shard = self.work.flat[self.bounds[rank] : self.bounds[rank + 1]]
        return shard[first * self._datagram_elements : stop * self._datagram_elements]

    def _datagrams(self, rank: int) -> int:
        """How many datagrams a rank's shard is."""
        return -(-len(self.shards[rank]) // self.options.payload_bytes)


def shard_bounds(numel: int, world_size: int) -> list[int]:
    """world_size + 1 element offsets: as even as can be."""
    return [numel * rank // world_size for rank in range(world_size + 1)]
