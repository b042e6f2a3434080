"""All-reduce on several machines: kernels inside each, transfers between them; what an executor is.

Setup is collective, and ends the same way on all ranks (``latecomer.runtime.device.allreduce``).
Symmetric memory is that of a machine's ranks alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from latecomer.runtime.device.allreduce import KernelExecutor
from latecomer.runtime.device.in_machines import MachineKernels, StagedEngine
from latecomer.runtime.device.layout import Layout
from latecomer.runtime.device.stages import ProvedStages, RankStages, unfit_for_stages
from latecomer.runtime.executor.engine import DataEngine
from latecomer.runtime.executor.load import Runnable, Verified
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import KernelUnavailable


class KernelsInMachines(KernelExecutor[ProvedStages, RankStages]):
    """Runs schedules in stages, and by transfers what does not go so.

    Args:
        schedules, store, rank, size, options: see :class:`KernelExecutor`.
        ranks_per_machine: ranks are numbered machine by machine, equally many on each.

    Raises:
        KernelUnavailable: also if none of the schedules goes in stages.
    """

    def __init__(
        self,
        schedules: Runnable | Sequence[Runnable],
        store: Store,
        rank: int,
        size: int,
        *,
        ranks_per_machine: int,
        **options: Any,
    ) -> None:
        self._per_machine = ranks_per_machine
        self._unfit: dict[int, str] = {}
        super().__init__(schedules, store, rank, size, **options)

    def unfit(self, schedule: int) -> str:
        """Why a schedule does not go in stages; empty if it does. Alike on all ranks."""
        if schedule not in self._unfit:
            runnable = self.schedules[schedule]
            self._unfit[schedule] = unfit_for_stages(runnable, self._per_machine)
        return self._unfit[schedule]

    def _require_fit(self, schedule: int) -> None:
        if reason := self.unfit(schedule):
            machines = self.size // self._per_machine
            where = f"the ranks are on {machines} machines of {self._per_machine}"
            raise KernelUnavailable(f"{where}, and {self.schedules[schedule].name}: {reason}")

    def _prove(self, schedule: int) -> ProvedStages:
        runnable = self.schedules[schedule]
        assert isinstance(runnable, Verified)
        return ProvedStages(runnable, self._per_machine)

    def _load_anew(self, proved: ProvedStages, late: tuple[int, ...]) -> RankStages:
        return proved.of_rank(self.rank, late, self.device)

    def _connect(self, group: StoreExchange) -> DataEngine:
        fit = self._fit()
        kernel_group = group.under("kernel")
        loaded = [self._load(number, self.schedules[number].late) for number in fit]
        slots = max(stages.widest.slots for stages in loaded)
        layout = Layout.within(self._staging, self._per_machine, self._blocks, slots)
        memory = self._join(layout, kernel_group, self._per_machine)
        local_rank = self.rank % self._per_machine
        first = next(iter(loaded[0].kernels.values()))
        kernel = self._compiled(memory, local_rank, kernel_group, first)
        return self._connect_transfers(
            self._streams,
            group,
            engine=partial(
                StagedEngine,
                kernels=MachineKernels(self._streams, memory, kernel),
                stages_of=self._loaded_for,
                unfit=self._unfit_now,
                dtypes=self._dtypes,
            ),
        )
