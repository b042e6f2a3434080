"""What moves the data: TCP connections of our own for CPU tensors, NCCL for CUDA tensors.

Which of the two it is follows from the device alone; there is no falling back from one to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from runtime.executor.nccl import NcclMover
from runtime.executor.operation import Observer, Operation
from runtime.executor.phase_workers import PhaseWorkers
from runtime.executor.tcp.loop import Engine
from runtime.network.control_channel import ControlChannel
from runtime.network.mesh import connect
from runtime.network.store_exchange import StoreExchange
from runtime.torch_versions import Store
from verify.core.schedule import Schedule


def engine(
    store: Store,
    ends: ControlChannel,
    device: torch.device,
    schedules: Sequence[Schedule],
    timeout_s: float,
    *,
    observer: Observer,
    ended: Callable[[Operation], None],
    failed: Callable[[str, Exception | None], None],
) -> Engine | PhaseWorkers:
    """Connect this rank with all others (collective).

    Args:
        store: for connecting.
        ends: has the group's token and this rank's address.
        schedules: all that will be run.
        timeout_s: for connecting; on CUDA also for each operation.
        observer: is told about steps.
        ended: is called with each operation whose result is in place.
        failed: is called once with what was noticed, and with the exception if it is this rank's
            own.

    Raises:
        RankFailure: ranks without a connection after ``timeout_s``.
    """
    rank, size = ends.rank, ends.size
    phases = max(len(schedule.phases) for schedule in schedules)
    if device.type == "cuda":
        mover = NcclMover(store, rank, size, schedules, timeout_s)
        return PhaseWorkers(
            mover, rank, size, phases, observer=observer, ended=ended, failed=failed
        )
    lower, higher = connect(
        StoreExchange(store, rank, size, timeout_s),
        ends.address,
        ends.token,
        to=range(rank),
        origin=range(rank + 1, size),
    )
    return Engine(lower | higher, rank, phases, observer=observer, ended=ended, failed=failed)
