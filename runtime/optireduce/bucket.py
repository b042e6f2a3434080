"""One operation on its way through the engine: tensor, exchange and what has to be done to them.

    encode    transform the tensor (where that is on), lay out its shards, allocate scratch
    reduce    of some datagrams of the own shard: the mean of what arrived (or the sum that it
              stands for), written into the tensor
    finish    fill what is missing, undo the transform

Where a piece of another owner's shard is lost in the second stage, the tensor still holds this
rank's own contribution: that is what stands in for the mean there (own data, of the same
expectation, and no further copy is needed), and times the number of ranks for the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runtime.optireduce import hadamard
from runtime.optireduce.loss import StepRecord
from runtime.optireduce.options import Options
from runtime.optireduce.shards import Shards
from runtime.optireduce.udp.datagram import operation_id
from runtime.optireduce.udp.exchange import Exchange
from runtime.work import AllReduceWork


@dataclass(eq=False)
class Bucket:
    """An operation in flight.

    Args:
        operation: what the caller holds.
        step, bucket: its name on all ranks.
        record: of the step.
        seed: of the transform; ``None``: it is off.
    """

    operation: AllReduceWork
    step: int
    bucket: int
    record: StepRecord
    seed: int | None

    def encode(self, options: Options, rank: int, size: int) -> Exchange:
        """Prepare the tensor; what UBT has to know of it."""
        flat = self.operation.flat
        if self.seed is not None:
            hadamard.transform(flat, self.seed, block=options.hadamard_block)
        self._shards = Shards(flat, size, options.payload_bytes)
        own = len(self._shards.bytes(rank))
        count = -(-own // options.payload_bytes)
        scratch = np.empty((size - 1, count, options.payload_bytes), np.uint8)
        peers = [peer for peer in range(size) if peer != rank]
        self.exchange = Exchange(
            operation_id(self.step, self.bucket),
            self.operation.number,
            rank,
            {r: self._shards.bytes(r) for r in range(size)},
            dict(zip(peers, scratch, strict=True)),
            options.payload_bytes,
            self.reduce,
        )
        return self.exchange

    def reduce(self, first: int, stop: int) -> None:
        """No more comes of datagrams ``first`` to ``stop`` - 1 of the own shard: their mean."""
        exchange = self.exchange
        arrived = {r: s.arrived[first:stop] for r, s in exchange.stages[0].senders.items()}
        scratch = {r: rows[first:stop] for r, rows in exchange.scratch.items()}
        shards, rank = self._shards, exchange.rank
        mean = shards.combine(rank, first, scratch, arrived, self.operation.average)
        shards.run(rank, first, stop - first).copy_(mean)

    def finish(self, options: Options) -> None:
        """The second stage is over: make the result of what is in the tensor."""
        if not self.operation.average:
            for rank, sender in self.exchange.stages[1].senders.items():
                if not sender.complete:
                    self._shards.scale_missing(rank, sender.arrived)
        if self.seed is not None:
            flat = self.operation.flat
            hadamard.transform(flat, self.seed, block=options.hadamard_block, inverse=True)
