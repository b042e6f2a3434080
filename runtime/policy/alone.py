"""A group of one rank: its all-reduces are done as soon as they are submitted.

So that a script runs unchanged in one process, as it does at its author's desk before it meets a
cluster: with the same handle, and with records for ``latecomer.watch``.
"""

from __future__ import annotations

from collections import deque

import torch

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.network.clock import Alignment
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.options import Options
from latecomer.runtime.telemetry.recorder import OperationRecorder
from latecomer.runtime.telemetry.records import NATIVE, Record
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import AllReduceWork, CollectiveWork, require_summable
from latecomer.verify.errors import LatecomerError

REASON = "a group of one: there is nothing to sum"


class GroupOfOne:
    """What a mode's dispatcher is where there is one rank only; the same methods, no threads.

    Args:
        store, options, timeout_s: as for ``AllReduceDispatcher``; nobody is waited for.
        device: on which the tensors are.
    """

    def __init__(
        self, store: Store, *, options: Options, device: torch.device, timeout_s: float
    ) -> None:
        self.options = options
        self.rank = 0
        self.size = 1
        self.timeout_s = timeout_s
        self.is_off = False  # as a dispatcher's; it makes no difference
        self._device = device
        self._submitted = 0
        self._is_closed = False
        group = StoreExchange(store, rank=0, world_size=1, timeout_s=timeout_s)
        own_clock = Alignment(offset_s=0.0, uncertainty_s=0.0)
        self.source = OperationRecorder(group, lambda: own_clock, lambda: self._submitted)
        self.records: deque[Record] = self.source.records
        close_at_exit(self)

    @property
    def entered(self) -> int:
        """Operations that were submitted."""
        return self._submitted

    @property
    def failure(self) -> LatecomerError | None:
        """Why operations fail, if they do."""
        return LatecomerError("rank 0 has closed its group of one") if self._is_closed else None

    def submit(self, tensor: torch.Tensor, *, average: bool = False) -> CollectiveWork:
        """The sum (or average) of ``tensor`` over one rank, which is what it holds.

        Raises:
            TensorError: a tensor that could not be summed over several ranks either.
            LatecomerError: it was closed before.
        """
        require_summable(tensor, self._device, average)
        failure = self.failure
        if failure is not None:
            raise failure
        number = self._submitted
        self._submitted += 1
        work = AllReduceWork(number, tensor, average)
        work.before_done = lambda: self.source.record(work, number, way=NATIVE, reason=REASON)
        work.settle()
        return work

    def close(self, *, at_once: bool = False) -> None:
        """Nothing is submitted any more."""
        has_closed(self)
        self._is_closed = True
        self.source.close()
