"""The conformance suite's check for OptiReduce: each result against what the ledgers say arrived.

After each case the ranks tell each other, through the store, what they did not get; every element
of every rank's result must then be, to the last bit, what follows from that. Loss is counted, by
rank, and is no failure; a wrong element is one, lost datagrams or not.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import torch

from runtime.optireduce.loss import LossStats
from runtime.selftest.conformance import Case, ConformanceError, compare, require
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
        self._store, self.rank, self.size, self._payload = store, rank, size, payload
        self._records = ledger.missing = []
        self._cases = 0
        self.due: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()

    def __call__(self, case: Case, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
        """Compare one case's result. Collective.

        Raises:
            ConformanceError: an element that does not follow from what arrived.
        """
        own = self._records.pop() if self._records else None  # None: it did not go over UBT
        assert not self._records, "a case is one operation"
        name, self._cases = f"{self._cases}", self._cases + 1
        self._store.set(f"{name}/{self.rank}", msgspec.json.encode(own).decode())
        answers = [self._store.get(f"{name}/{r}") for r in range(self.size)]
        told = [msgspec.json.decode(answer, type=Missing | None) for answer in answers]
        records = [record for record in told if record is not None]
        if len(records) not in (0, self.size):
            raise ConformanceError(f"{case}: over UBT on {len(records)} of {self.size} ranks only")
        for rank, record in enumerate(records):
            self.due[rank] += record.due
            self.lost[rank] += record.lost
        if records:
            payload = self._payload
            right = expected(inputs, records, self.rank, average=case.average, payload=payload)
            require(case, result, right)
        if not any(record.lost for record in records):
            compare(case, inputs, result)

    def said(self) -> str:
        """How much was lost, and where, for reports."""
        lost, due = self.lost.total(), self.due.total()
        share = f"{lost} of {due} datagrams lost"
        if not lost:
            return share
        places = ", ".join(
            f"{count} at rank {r}" for r, count in sorted(self.lost.items()) if count
        )
        return f"{share} ({lost / due:.2%}: {places})"
