"""What an operation's result must be, given the datagrams of it that did not arrive.

With the records of all ranks (``latecomer.runtime.optireduce.missing``) the result is known to the
last bit, lost datagrams or not: loss is no excuse for a wrong sum, and no sum is called wrong
because of a loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import torch

from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce.missing import Missing
from latecomer.runtime.selftest.conformance import (
    TIMEOUT_S,
    Case,
    ConformanceError,
    compare,
    require,
)
from latecomer.runtime.torch_versions import Store


def expected(
    inputs: Sequence[torch.Tensor],
    records: Sequence[Missing],
    rank: int,
    average: bool,
    payload: int,
) -> torch.Tensor:
    """The result (average or sum) on ``rank``, to the last bit.

    Where the owner's result came back: the contributions that the owner got, added in the order of
    ranks in at least float32, divided by their number (and, for the sum, times the ranks). Where it
    did not: this rank's own contribution (for the sum, times the ranks). ``inputs`` (floating
    point, one dimension) and ``records`` are of each rank, ``payload`` bytes are in a datagram.
    """
    ranks = len(inputs)
    numel = inputs[0].numel()
    dtype = inputs[0].dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    came = torch.ones((ranks, numel), dtype=torch.bool)  # to its owner, by rank
    back = torch.ones(numel, dtype=torch.bool)  # from the owner to this rank
    datagram_elements = payload // dtype.itemsize

    def clear(arrived: torch.Tensor, numbers: Sequence[int]) -> None:
        for number in numbers:
            arrived[number * datagram_elements : (number + 1) * datagram_elements] = False

    for owner in range(ranks):
        shard = slice(numel * owner // ranks, numel * (owner + 1) // ranks)
        for sender, numbers in records[owner].contributions.items():
            clear(came[sender, shard], numbers)
        clear(back[shard], records[rank].results.get(owner, []))
    total = torch.zeros(numel, dtype=wide)
    for sender, contribution in enumerate(inputs):
        total += torch.where(came[sender], contribution.to(wide), 0)
    count = came.sum(0)
    total = total / count if average else total * (ranks / count.double()).to(wide)
    own = inputs[rank] if average else inputs[rank] * ranks
    return torch.where(back, total.to(dtype), own)


class Audit:
    """The check of :func:`latecomer.runtime.selftest.conformance.run` for OptiReduce, on one rank.

    After each case the ranks send each other their records; every element of every rank's result
    must then be what follows from them. Loss is no failure: ``due`` and ``lost`` count datagrams,
    by rank. ``records`` is this rank's ``LossStats.missing``, as it grows; ``payload`` bytes are in
    a datagram; ``store`` carries the records, under a fresh prefix for each run.
    """

    def __init__(
        self, records: list[Missing], payload: int, store: Store, rank: int, size: int
    ) -> None:
        self._group = StoreExchange(store, rank, size, TIMEOUT_S)
        self._payload = payload
        self._records = records
        self._cases = 0
        self.due = Counter[int]()
        self.lost = Counter[int]()

    def __call__(self, case: Case, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
        """Compare one case's result (collective); a ConformanceError names what does not follow."""
        group = self._group
        own = self._records.pop() if self._records else None  # None: it did not go over UBT
        assert not self._records, "a case is one operation"
        answers = group.all_gather(f"{self._cases}", msgspec.json.encode(own).decode())
        self._cases += 1
        records: list[Missing] = []
        for rank in sorted(answers):
            record = msgspec.json.decode(answers[rank], type=Missing | None)
            if record is not None:
                records.append(record)
        if len(records) not in (0, group.world_size):
            count = f"{len(records)} of {len(answers)}"
            raise ConformanceError(f"{case}: over UBT on {count} ranks only")
        for rank, record in enumerate(records):
            self.due[rank] += record.due
            self.lost[rank] += record.lost
        if records:
            right = expected(inputs, records, group.rank, case.average, self._payload)
            require(case, result, right)
        if not any(record.lost for record in records):
            compare(case, inputs, result)

    def losses(self) -> str:
        """How much was lost, and where, for reports."""
        lost = self.lost.total()
        due = self.due.total()
        text = f"{lost} of {due} datagrams lost"
        if not lost:
            return text
        places = ", ".join(f"{n} at rank {rank}" for rank, n in sorted(self.lost.items()) if n)
        return f"{text} ({lost / due:.2%}: {places})"
