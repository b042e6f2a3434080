"""The conformance suite's check for OptiReduce: each result against what the ledgers say arrived.

After each case the ranks tell each other, through the store, what they did not get; every element
of every rank's result must then be, to the last bit, what follows from that. Loss is counted, by
rank, and is no failure; a wrong element is one, lost datagrams or not.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import torch

from runtime.network.store_exchange import StoreExchange
from runtime.optireduce.loss import LossStats
from runtime.selftest.conformance import TIMEOUT_S, Case, ConformanceError, compare, require
from runtime.selftest.missing import Missing, expected
from runtime.torch_versions import Store


class Audit:
    """A check for :func:`runtime.selftest.conformance.run`, on one rank.

    Args:
        ledger: of the engine that reduces; from now on it records what is missing.
        store: carries the records; a fresh prefix for each run.
        payload: bytes of the tensor in a datagram.

    Attributes:
        due, lost: datagrams so far, by rank.
    """

    def __init__(self, ledger: LossStats, store: Store, rank: int, size: int, payload: int) -> None:
        self._group, self._payload = StoreExchange(store, rank, size, TIMEOUT_S), payload
        self._records = ledger.missing = []
        self._cases = 0
        self.due: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()

    def __call__(self, case: Case, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
        """Compare one case's result. Collective.

        Raises:
            ConformanceError: an element that does not follow from what arrived.
        """
        group = self._group
        own = self._records.pop() if self._records else None  # None: it did not go over UBT
        assert not self._records, "a case is one operation"
        answers = group.all_gather(f"{self._cases}", msgspec.json.encode(own).decode())
        self._cases += 1
        found = [msgspec.json.decode(answers[r], type=Missing | None) for r in sorted(answers)]
        records = [record for record in found if record is not None]
        if len(records) not in (0, group.world_size):
            raise ConformanceError(f"{case}: over UBT on {len(records)} of {len(found)} ranks only")
        for rank, record in enumerate(records):
            self.due[rank] += record.due
            self.lost[rank] += record.lost
        if records:
            payload = self._payload
            right = expected(inputs, records, group.rank, average=case.average, payload=payload)
            require(case, result, right)
        if not any(record.lost for record in records):
            compare(case, inputs, result)

    def said(self) -> str:
        """How much was lost, and where, for reports."""
        lost, due = self.lost.total(), self.due.total()
        share = f"{lost} of {due} datagrams lost"
        if not lost:
            return share
        places = ", ".join(f"{n} at rank {rank}" for rank, n in sorted(self.lost.items()) if n)
        return f"{share} ({lost / due:.2%}: {places})"
