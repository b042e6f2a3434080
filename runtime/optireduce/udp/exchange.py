"""One operation on one rank, as UBT sees it: bytes to send, bytes to receive, two stages.

Stage 0 brings the peers' contributions to the own shard into scratch memory, one piece per sender;
stage 1 brings the owners' results straight into the tensor. An owner begins with its broadcast
before stage 0 is over: run by run, where every contribution is there, so that the two stages
overlap. Shard o of the tensor is read only by the sends to its owner o, and written only by o's
broadcast; o broadcasts a run when it has all contributions to it, or takes no more: so nobody who
still listens ever gets bytes that were overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from runtime.optireduce.udp.datagram import Bytes
from runtime.optireduce.udp.reassembly import Numbers, StageReceiver


@dataclass(eq=False)
class Exchange:
    """An operation in flight.

    Attributes:
        operation: step and bucket as on the wire.
        number: operations count from 0 on every rank.
        shards: per rank, the bytes of its shard in the tensor (uint8 views).
        scratch: per peer, uint8 [datagrams, payload]: its contribution to the own shard.
        reduce: makes the result of the own shard's datagrams ``first`` to ``stop`` - 1 of what has
            arrived of them, in the tensor.
        stages: the receive stages; :meth:`Node.open` makes them.
        entered: peers that have given a sign of having entered.
        credited: by stage and peer, from where on the next credit is due.
        repeated: by stage and peer, what had passed when repeats were due last.
        fresh: datagrams of the own shard since it was last looked for complete runs.
    """

    operation: int
    number: int
    rank: int
    shards: Mapping[int, Bytes]
    scratch: Mapping[int, Bytes]
    payload: int
    reduce: Callable[[int, int], None]
    stages: tuple[StageReceiver, ...] = ()
    entered: set[int] = field(default_factory=set)
    repeat_s: float = 0.0
    credited: dict[tuple[int, int], float] = field(default_factory=dict)
    repeated: dict[tuple[int, int], int] = field(default_factory=dict)
    fresh: int = 0

    def __post_init__(self) -> None:
        self.reduced = np.zeros(-(-len(self.shards[self.rank]) // self.payload), bool)

    def runs(self, least: int) -> Iterator[tuple[int, int]]:
        """Reduce what can be, in runs of at least so many datagrams: (first, one past the last).

        While the first stage goes on that is where all contributions have arrived; after it, all
        the rest.
        """
        self.fresh = 0
        left = ~self.reduced
        first = self.stages[0]
        if first.end is None:
            for sender in first.senders.values():
                left &= sender.arrived
        edges = (np.flatnonzero(left[1:] != left[:-1]) + 1).tolist()
        if len(left) and left[0]:
            edges.insert(0, 0)
        if len(left) and left[-1]:
            edges.append(len(left))
        for begin, stop in zip(edges[::2], edges[1::2], strict=True):
            if stop - begin >= least:
                self.reduce(begin, stop)
                self.reduced[begin:stop] = True
                yield begin, stop

    def place(self, stage: int, sender: int, rows: Bytes, numbers: Numbers) -> None:
        """Copy payloads to where they belong.

        Args:
            rows: uint8 [datagrams, payload bytes].
            numbers: of the datagrams within the shard, all different.
        """
        if stage == 0:
            self.scratch[sender][numbers] = rows
            return
        shard, size = self.shards[sender], self.payload
        whole = len(shard) // size
        table = shard[: whole * size].reshape(whole, size)
        if isinstance(numbers, slice):
            if numbers.stop <= whole:
                table[numbers] = rows
                return
            numbers = np.arange(numbers.start, numbers.stop)
        inside = numbers < whole
        table[numbers[inside]] = rows[inside]
        for row in rows[~inside]:  # the last, partial one
            shard[whole * size :] = row[: len(shard) - whole * size]

    def source(self, stage: int, peer: int) -> Bytes:
        """The bytes that go to ``peer``: its shard first, then the own one."""
        return self.shards[peer if stage == 0 else self.rank]
