"""What runs schedules on a device: one kernel per operation, or transfers. Decided by all together.

Every way in asks here (DDP's hook, the backend, the modes). Kernels run where all ranks can run
them: one for an operation where all are on one machine, and where they are on several, of equally
many ranks, one for each stage inside these. Else none does, all take transfers, and all know why.
It is said once, by rank 0, and of every operation (``CollectiveWork.by``, and ``Record.by`` in what
``latecomer.watch`` remembers).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from latecomer.runtime.device.allreduce import KernelsAndTransfers
from latecomer.runtime.device.capability import agree_on_machines
from latecomer.runtime.device.in_machines import IN_STAGES
from latecomer.runtime.device.option import OnDevice
from latecomer.runtime.device.several_machines import KernelsInMachines
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.load import Runnable
from latecomer.runtime.executor.nccl.engine import DeviceEngine
from latecomer.runtime.executor.nccl.streams import Device, device_of
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import PrefixStore, Store
from latecomer.verify.errors import ArgumentError, KernelUnavailable, LatecomerError

logger = logging.getLogger("latecomer")
REMEDY = "device='auto' takes transfers there"


def make_executor(
    schedules: Runnable | Sequence[Runnable],
    store: Store,
    rank: int,
    size: int,
    *,
    device: Device | torch.device | str = "cpu",
    by: OnDevice = "auto",
    **options: Any,
) -> Executor:
    """An executor for ``device``, on which ``by`` counts if it has streams. Collective.

    Args:
        schedules, store, rank, size, options: see :class:`latecomer.Executor`.

    Raises:
        ArgumentError: ranks ask for different things.
        KernelUnavailable: ``by`` is kernel, and a rank can't run it.
        RankFailure, ScheduleRefused: as :class:`latecomer.Executor`.
    """
    streams = device_of(device)
    if streams is None:
        return Executor(schedules, store, rank, size, device=device, **options)
    # before all else: ranks that go different ways would wait for each other until the time-out
    _require_alike(StoreExchange(store, rank, size, options.get("timeout_s", 300.0)), by)
    reason = ""
    if by != "transfers":
        try:
            with_kernels, way = _with_kernels(
                schedules, PrefixStore("kernels", store), rank, size, streams, options
            )
        except KernelUnavailable as error:
            if by == "kernel":
                raise KernelUnavailable(f"{error}. {REMEDY}") from error
            reason = str(error)
        else:
            return _reported(with_kernels, f"all-reduces by a schedule run as {way}")
    executor = Executor(
        schedules, PrefixStore("transfers", store), rank, size, device=streams, **options
    )
    if not reason:
        return _reported(executor, "all-reduces run as transfers, as asked for")
    assert isinstance(executor.engine, DeviceEngine)
    executor.engine.transfers = f"transfers: {reason}"
    return _reported(
        executor, f"all-reduces run as transfers, without a kernel: {reason}", logging.WARNING
    )


def _with_kernels(
    schedules: Runnable | Sequence[Runnable],
    store: Store,
    rank: int,
    size: int,
    device: Device,
    options: dict[str, Any],
) -> tuple[Executor, str]:
    """An executor with kernels, of one machine or several, and how it runs schedules (collective).

    Raises:
        KernelUnavailable: there are none, on all ranks for the same reason.
    """
    group = StoreExchange(store, rank, size, options.get("timeout_s", 300.0))
    ranks_per_machine = agree_on_machines(group, device.machine)
    if ranks_per_machine is None:
        one = KernelsAndTransfers(schedules, store, rank, size, device=device, **options)
        return one, "one kernel each"
    several = KernelsInMachines(
        schedules,
        store,
        rank,
        size,
        device=device,
        ranks_per_machine=ranks_per_machine,
        **options,
    )
    return several, f"{IN_STAGES}, {size // ranks_per_machine} machines of {ranks_per_machine}"


def _require_alike(group: StoreExchange, by: OnDevice) -> None:
    """ArgumentError if ranks ask for different things (collective)."""
    differing = group.differing("on device", by)
    if differing:
        ranks = ", ".join(map(str, differing))
        theirs = next(iter(differing.values()))
        requirement = f"must be the same on all ranks; rank(s) {ranks}: {theirs}"
        raise ArgumentError("device", by, requirement, "Set LATECOMER_DEVICE alike everywhere")


def _reported(executor: Executor, text: str, level: int = logging.INFO) -> Executor:
    """Say what runs, once in the job; and later, if it comes to that, that it has failed."""
    if executor.rank == 0:
        logger.log(level, "%s (%d ranks)", text, executor.size)

    def failed(error: LatecomerError) -> None:
        # no host may be waiting on a device: whoever has gone on is told here at once
        logger.error("rank %d: all-reduces have failed: %s", executor.rank, error)

    executor.watchdog.on_failure(failed)
    return executor
