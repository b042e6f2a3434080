"""Modes: the runtime finds out who is late, or is told, and decides how each all-reduce runs.

    from runtime import ddp
    ddp.attach(model, mode="auto")

The communication hook hands each gradient bucket to a reducer and returns at once; backward goes on
while buckets wait for decisions and travel. What modes there are: ``runtime.policy``.
"""

import itertools
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from runtime.executor.executor import Executor
from runtime.executor.load import Late
from runtime.policy import profile as profiles
from runtime.policy.cost_model import Profile
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Mode, Options
from runtime.torch_versions import GradBucket, PrefixStore, store_of

_attached = itertools.count()  # all ranks count alike: it names the connections


@dataclass(frozen=True)
class Chosen:
    """A mode with its options and, where it is known, the profile."""

    options: Options
    profile: Profile | None = None


def choose(
    mode: Mode,
    *,
    late: Late = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
) -> Chosen:
    """A mode, with what :class:`runtime.policy.options.Options` describes.

    Args:
        profile: a file written by ``python -m runtime profile``; default: measured at the start.

    Raises:
        ArgumentError: an option is out of its range or does not go with the mode.
    """
    named = () if late is None else (late,) if isinstance(late, int) else tuple(late)
    options = Options(mode, named, threshold_s, most_late)
    if profile is None or isinstance(profile, Profile):
        return Chosen(options, profile)
    return Chosen(options, profiles.read(profile))


@dataclass(frozen=True)
class Attachment:
    """What ``ddp.attach(model, mode=...)`` returns: the reducer behind a model's gradients."""

    reducer: AllReduceDispatcher

    @property
    def executor(self) -> Executor:
        """Runs the schedules; its ``failure`` is the typed error after a failed backward."""
        return self.reducer.executor

    def close(self) -> None:
        """Release threads and connections; call it before ``destroy_process_group``."""
        self.reducer.close()


def attach(model: DistributedDataParallel, chosen: Chosen, timeout_s: float) -> Attachment:
    """Let ``model`` reduce its gradients in the chosen mode. Collective: all ranks call it.

    Raises:
        ArgumentError, RankFailure: see :class:`AllReduceDispatcher`.
    """
    group = model.process_group
    reducer = AllReduceDispatcher(
        PrefixStore(f"latecomer/mode/{next(_attached)}", store_of(group)),
        group.rank(),
        group.size(),
        options=chosen.options,
        profile=chosen.profile,
        device=next(model.parameters()).device,
        timeout_s=timeout_s,
    )

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return reducer.submit(bucket.buffer(), average=True).future()

    model.register_comm_hook(None, hook)
    return Attachment(reducer)
