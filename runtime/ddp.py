"""All that can be put behind a DDP model's gradients, as its communication hook.

    from runtime import ddp
    ddp.attach(model, mode="auto")             # finds out who is late: runtime.policy.modes
    ddp.attach(model, "schedule.json")         # always by this schedule
    ddp.attach(model, algorithm="optireduce")  # runtime.optireduce

The hook hands each gradient bucket to the executor and returns at once; backward goes on while
buckets travel on the executor's own threads and connections. Gradients are averaged as DDP does
(divided first, then summed) and are the same bits on all ranks.
"""

import os
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch.nn.parallel import DistributedDataParallel

from runtime.executor.executor import Executor
from runtime.executor.load import Late, Verified, load, require_size
from runtime.optireduce import ddp as optireduce
from runtime.optireduce.options import Options
from runtime.policy import modes
from runtime.policy.cost_model import Profile
from runtime.policy.options import Mode
from runtime.torch_versions import GradBucket, PrefixStore, store_of
from runtime.work import Observer
from verify.core.schedule import Schedule
from verify.errors import ArgumentError

_attached = 0


@dataclass(frozen=True)
class Attachment:
    """What :func:`attach` returns: the executor behind a model's gradients.

    ``executor.late`` may be set between steps, to the same everywhere; ``executor.failure``
    holds the typed error after a failed backward (autograd itself reports a RuntimeError).
    """

    executor: Executor

    def close(self) -> None:
        """Release threads and connections; call it before ``destroy_process_group``."""
        self.executor.close()


@overload
def attach(
    model: DistributedDataParallel,
    schedule: str | os.PathLike[str] | Schedule | Verified,
    *,
    late: Late = None,
    timeout_s: float = 300.0,
    observer: Observer | None = None,
) -> Attachment: ...


@overload
def attach(
    model: DistributedDataParallel,
    *,
    mode: Mode,
    late: Late = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    timeout_s: float = 300.0,
) -> modes.Attachment: ...


@overload
def attach(
    model: DistributedDataParallel,
    *,
    algorithm: Literal["optireduce"],
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    timeout_s: float = 300.0,
) -> optireduce.Attachment: ...


def attach(
    model: DistributedDataParallel,
    schedule: str | os.PathLike[str] | Schedule | Verified | None = None,
    *,
    mode: Mode | None = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    algorithm: Literal["schedule", "optireduce"] = "schedule",
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    late: Late = None,
    timeout_s: float = 300.0,
    observer: Observer | None = None,
) -> Attachment | modes.Attachment | optireduce.Attachment:
    """Let ``model`` reduce its gradients by a mode or a schedule. Collective: all ranks call it.

    Args:
        model: wrapped in DDP, with no communication hook yet; dense gradients.
        schedule: a file, or an object; it is verified here.
        mode: instead of a schedule: ``auto`` and the others of :mod:`runtime.policy`; for it,
            ``threshold_s``, ``most_late`` and ``profile`` see :func:`runtime.policy.modes.choose`.
        algorithm: ``optireduce`` needs no schedule; for it, ``options`` and ``optimizer`` see
            :func:`runtime.optireduce.ddp.attach`.
        late: the late rank, or several in the order of their arrival; default: as the schedule
            says. In mode ``static`` it must be given, the other modes find out.
        timeout_s: a rank that keeps others waiting this long is given up by all.
        observer: is told about steps and operations.

    Raises:
        FormatError, ScheduleRefused, ArgumentError, RankFailure: see :class:`Executor`.
    """
    global _attached  # noqa: PLW0603  (all ranks count alike: it names the connections)
    if algorithm == "optireduce":
        return optireduce.attach(model, options=options, optimizer=optimizer, timeout_s=timeout_s)
    if mode is not None:
        if schedule is not None:
            raise ArgumentError("mode", mode, "makes its own schedules", "Leave one of both out")
        chosen = modes.choose(
            mode, late=late, threshold_s=threshold_s, most_late=most_late, profile=profile
        )
        return modes.attach(model, chosen, timeout_s)
    if schedule is None:
        raise ArgumentError("schedule", schedule, "must be a file or a schedule", "Or set mode=")
    group = model.process_group
    verified = load(schedule)
    require_size(verified, group.size())
    prefix = f"latecomer/ddp/{_attached}"
    _attached += 1
    executor = Executor(
        verified,
        PrefixStore(prefix, store_of(group)),
        group.rank(),
        group.size(),
        device=next(model.parameters()).device,
        late=late,
        timeout_s=timeout_s,
        observer=observer,
    )

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return executor.submit(bucket.buffer(), average=True).future()

    model.register_comm_hook(None, hook)
    return Attachment(executor)
