"""All that can be put behind a DDP model's gradients, as its communication hook.

    from runtime import ddp
    ddp.attach(model, mode="auto")             # finds out who is late: runtime.policy
    ddp.attach(model, "schedule.json")         # always by this schedule
    ddp.attach(model, algorithm="optireduce")  # runtime.optireduce

The hook hands each gradient bucket over and returns at once; backward goes on while buckets wait
for decisions and travel, on threads and connections of our own. Gradients are averaged as DDP does
(divided first, then summed) and are the same bits on all ranks.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

import torch
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from runtime.config import Given, ModeOptions, RunOptions, choose
from runtime.device.choice import make_executor
from runtime.executor.executor import Executor
from runtime.optireduce import ddp as optireduce
from runtime.optireduce.engine import OptiReduceEngine
from runtime.optireduce.options import Options
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Chosen, Mode
from runtime.torch_versions import GradBucket, PrefixStore, Store, store_of
from runtime.work import AllReduceWork, Observer
from verify.errors import ArgumentError

_numbers = itertools.count()  # all ranks count alike: it names the connections


@dataclass(frozen=True)
class Attachment:
    """What ``attach`` returns for a schedule or a mode: what runs a model's all-reduces."""

    engine: Executor | AllReduceDispatcher

    @property
    def executor(self) -> Executor:
        """Runs schedules. Its ``failure`` is the typed error after a failed backward (autograd's is
        a RuntimeError); without a mode ``late`` may be set between steps, to the same everywhere.
        """
        return self.engine if isinstance(self.engine, Executor) else self.engine.executor

    @property
    def reducer(self) -> AllReduceDispatcher:
        """What decides, in a mode; with a schedule there is none, which raises ArgumentError."""
        if isinstance(self.engine, Executor):
            raise ArgumentError("reducer", "schedule", "is there in a mode only")
        return self.engine

    def submit(self, bucket: GradBucket) -> AllReduceWork:
        """Start the average of a bucket (the hook calls it)."""
        work = self.engine.submit(bucket.buffer(), average=True)
        if isinstance(self.engine, AllReduceDispatcher):
            self.engine.source.bucket_submitted(is_last=bucket.is_last())
        return work

    def close(self) -> None:
        """Release threads and connections; call it before ``destroy_process_group``."""
        self.engine.close()


@overload
def attach(
    model: DistributedDataParallel,
    schedule: Given,
    *,
    timeout_s: float = 300.0,
    observer: Observer | None = None,
    **options: Unpack[RunOptions],
) -> Attachment: ...


@overload
def attach(
    model: DistributedDataParallel,
    *,
    mode: Mode,
    timeout_s: float = 300.0,
    **of_mode: Unpack[ModeOptions],
) -> Attachment: ...


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
    schedule: Given | None = None,
    *,
    mode: Mode | None = None,
    algorithm: Literal["schedule", "optireduce"] = "schedule",
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    timeout_s: float = 300.0,
    observer: Observer | None = None,
    **of_mode: Unpack[ModeOptions],
) -> Attachment | optireduce.Attachment:
    """Let ``model`` reduce its gradients by a mode or a schedule. Collective: all ranks call it.

    Args:
        model: wrapped in DDP, with no communication hook yet; dense gradients.
        schedule: a file, or an object; it is verified here.
        mode, of_mode: as for ``runtime.configure``; ``late`` and ``device`` are among these.
        algorithm: ``optireduce`` needs no schedule, but CPU tensors; ``options`` are the same on
            all ranks; with the model's ``optimizer`` steps that lost too much are skipped, and its
            state is re-synchronized with the parameters.
        timeout_s: a rank that keeps others waiting this long is given up by all.
        observer: is told about steps and operations.

    Raises:
        FormatError, ScheduleRefused, ArgumentError, RankFailure: see ``runtime.Executor``.

    Examples:
        On every rank of ``torchrun``:

        >>> import torch, torch.distributed as dist
        >>> from runtime import ddp
        >>> dist.init_process_group("gloo")
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> attachment = ddp.attach(model, mode="auto")  # an Attachment
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> attachment.close()
        >>> dist.destroy_process_group()
    """
    attachment: Attachment | optireduce.Attachment
    if algorithm == "optireduce":
        engine = OptiReduceEngine(*_place(model), options=options, timeout_s=timeout_s)
        attachment = optireduce.Attachment(engine, model, optimizer)
    else:
        chosen = choose(schedule, mode, **of_mode)
        common: dict[str, Any] = {"device": next(model.parameters()).device, "timeout_s": timeout_s}
        if isinstance(chosen, Chosen):
            common |= {"options": chosen.options, "profile": chosen.profile}
            attachment = Attachment(AllReduceDispatcher(*_place(model), **common))
        else:
            common |= {"late": chosen.late, "by": chosen.device, "observer": observer}
            attachment = Attachment(make_executor(chosen.verified, *_place(model), **common))
    model.register_comm_hook(attachment, _hook)
    return attachment


def _place(model: DistributedDataParallel) -> tuple[Store, int, int]:
    """(store, rank, size) for what runs the model's all-reduces."""
    group = model.process_group
    store = PrefixStore(f"latecomer/ddp/{next(_numbers)}", store_of(group))
    return store, group.rank(), group.size()


def _hook(state: Attachment | optireduce.Attachment, bucket: GradBucket) -> Future[torch.Tensor]:
    return state.submit(bucket).future()
