"""All that can be put behind a DDP model's gradients, as its communication hook.

    from latecomer import ddp
    ddp.attach(model, mode="auto")             # finds out who is late: latecomer.runtime.policy
    ddp.attach(model, "schedule.json")         # always by this schedule
    ddp.attach(model, algorithm="optireduce")  # latecomer.runtime.optireduce
    ddp.attach(model, mode="off")              # natively, to be switched on later
    ddp.attach(model, mode="auto", bits="same")  # the same bits, whoever is late

The hook hands each gradient bucket over and returns at once; backward goes on while buckets wait
for decisions and travel, on threads and connections of our own. Gradients are averaged as DDP does
(divided first, then summed) and are the same bits on all ranks; with ``bits="same"`` they are those
of an undisturbed run, too (:mod:`latecomer.runtime.samebits`).
"""

import itertools
import logging
from collections.abc import Callable
from typing import Any, Literal, Unpack, cast, overload
from weakref import WeakKeyDictionary

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from latecomer.runtime.config import (
    ModeOptions,
    RunOptions,
    Scheduled,
    ScheduleSource,
    choose,
    require_any_bits,
)
from latecomer.runtime.device.choice import make_executor
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce import ddp as optireduce
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.policy import options as modes
from latecomer.runtime.policy.alone import GroupOfOne
from latecomer.runtime.policy.cost_model import Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine, make_engine
from latecomer.runtime.policy.options import OFF, Chosen, Mode
from latecomer.runtime.samebits.bits_log import WithBitsLog, log_by_environment
from latecomer.runtime.samebits.gradients import Gradients
from latecomer.runtime.samebits.model import SameBitsOfModel
from latecomer.runtime.samebits.option import Bits, require_contributions
from latecomer.runtime.samebits.repetition import (
    Repetition,
    RepetitionAlone,
    connect_repetition,
)
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.telemetry.session import watch_by_environment
from latecomer.runtime.torch_versions import GradBucket, PrefixStore, Store, hooks_of, store_of
from latecomer.runtime.work import CollectiveWork, Observer
from latecomer.verify.errors import ArgumentError

_numbers = itertools.count()  # all ranks count alike: it names the connections
logger = logging.getLogger("latecomer")

Engine = Executor | ModeEngine


class Attachment(WithBitsLog):
    """What ``attach`` returns for a schedule or a mode: what runs a model's all-reduces."""

    def __init__(
        self,
        engine: Engine,
        group: StoreExchange,
        make: Callable[[Mode, Profile | None], Engine],
    ) -> None:
        self.engine = engine
        self._same_bits: SameBitsOfModel | None = None
        self.is_closed = False
        self._group = group
        self._make = make
        self._is_off = False
        self._switches = 0  # changes of the mode so far, on all ranks alike
        self._engines = 0  # that summed the same bits so far, on all ranks alike

    @property
    def executor(self) -> Executor:
        """Runs schedules. Its ``failure`` is the typed error after a failed backward (autograd's is
        a RuntimeError); without a mode ``late`` may be set between steps, to the same everywhere.

        ArgumentError is raised where there is one rank only, which runs none.
        """
        if isinstance(self.engine, GroupOfOne):
            raise ArgumentError("executor", "one rank", "is there with two ranks or more")
        return self.engine if isinstance(self.engine, Executor) else self.engine.executor

    @property
    def reducer(self) -> ModeEngine:
        """What decides, in a mode; with a schedule there is none, which raises ArgumentError."""
        if isinstance(self.engine, Executor):
            raise ArgumentError("reducer", "schedule", "is there in a mode only")
        return self.engine

    @property
    def same_bits(self) -> SameBitsOfModel:
        """With ``bits="same"``: what checkpoints have to hold, and how often a sum was repeated.

        ArgumentError is raised without.
        """
        if self._same_bits is None:
            raise ArgumentError("same_bits", "any", "is there with bits='same' only")
        return self._same_bits

    @property
    def mode(self) -> str:
        """The mode now; ``off`` while it is switched off; ``schedule`` without a mode.

        To be set on all ranks between the same two steps, which is checked: they wait for each
        other. ``off`` lets gradients go natively as they would without us, and the mode that was
        there before comes back at once; another mode connects anew, which takes a second or so.
        With a schedule there are ``off`` and ``schedule``.

        Raises:
            ArgumentError: no such mode, or ranks that switch differently or after different
                operations; nothing has changed then.
            RankFailure: a rank that did not set it within ``timeout_s``.
        """
        if self._is_off:
            return OFF
        return "schedule" if isinstance(self.engine, Executor) else self.engine.options.mode

    @mode.setter
    def mode(self, mode: str) -> None:
        allowed = ("schedule",) if isinstance(self.engine, Executor) else modes.MODES
        if mode != OFF and mode not in allowed:
            raise ArgumentError("mode", mode, f"must be one of {', '.join((OFF, *allowed))}")
        if mode == OFF and self._same_bits is not None and isinstance(self.engine, Executor):
            requirement = "would let gradients go as DDP sums them, with other bits"
            raise ArgumentError("mode", mode, requirement, "Attach a mode in place of a schedule")
        self._require_same_switch(mode)

        is_another = not isinstance(self.engine, Executor) and self.engine.options.mode != mode
        if mode != OFF and is_another:
            before = self.engine
            measured = before.profile if isinstance(before, AllReduceDispatcher) else None
            self.engine = self._make(cast(Mode, mode), measured)
            if self._same_bits is not None:
                self._same_bits.change_engine()
            before.close()
        self._is_off = mode == OFF
        if not isinstance(self.engine, Executor):
            self.engine.is_off = self._is_off
        logger.info("rank %d: all-reduces go by %s from now on", self._group.rank, mode)

    @property
    def runs_natively(self) -> bool:
        """Whether DDP's own all-reduce runs, since a schedule is switched off or this is closed."""
        return self.is_closed or (self._is_off and isinstance(self.engine, Executor))

    def submit(self, bucket: GradBucket) -> CollectiveWork:
        """Start the average of a bucket (the hook calls it)."""
        if self._same_bits is None:
            work = self.engine.submit(bucket.buffer(), average=True)
        else:
            work = self._same_bits.submit(bucket, self.engine.submit)
        if isinstance(self.engine, AllReduceDispatcher):
            self.engine.source.bucket_submitted(is_last=bucket.is_last())
        return work

    def close(self) -> None:
        """Release threads and connections; call it before ``destroy_process_group``.

        A backward pass after it is DDP's own, and ``attach`` may be called again.
        """
        self.is_closed = True
        if self._same_bits is not None:
            self._same_bits.close()
        self.engine.close()
        self.close_bits_log()

    def sum_the_same_bits(self, gradients: Gradients) -> None:
        """Sum ``gradients`` with the same bits from now on (collective; before the first step).

        RankFailure is raised for ranks that are lost meanwhile; all is closed then.
        """
        try:
            self._same_bits = SameBitsOfModel(gradients, lambda: self._make_sums(gradients))
        except BaseException:
            gradients.close()
            self.close()
            raise

    def _make_sums(self, gradients: Gradients) -> SameBits:
        """What sums over the engine that there is now (collective)."""
        self._engines += 1
        repetition: Repetition = RepetitionAlone()
        watchdog = None
        if not isinstance(self.engine, GroupOfOne):
            watchdog = self.executor.watchdog
            group = self._group.under(f"repetition/{self._engines}")
            repetition = connect_repetition(group, watchdog)
        return SameBits(gradients.contributions, gradients.device, repetition, watchdog)

    def _require_same_switch(self, mode: str) -> None:
        """ArgumentError unless all ranks switch to ``mode`` before the same operation."""
        self._switches += 1
        own_text = f"{mode} before operation {self.engine.entered}"
        differing = self._group.differing(f"mode/{self._switches}", own_text)
        if differing:
            ranks = ", ".join(map(str, differing))
            theirs = next(iter(differing.values()))
            requirement = (
                f"must be set on all ranks between the same two steps; here: {own_text}, "
                f"rank(s) {ranks}: {theirs}"
            )
            raise ArgumentError("mode", mode, requirement)


class _GradientHook:
    """The communication hook of a model, which DDP takes once and for ever.

    So it asks who is attached now; while nobody is, gradients go DDP's own way.
    """

    def __init__(self, group: Any) -> None:
        self.attached: Attachment | optireduce.Attachment | None = None
        self._group = group

    def is_free(self) -> bool:
        """Whether something may be attached."""
        return self.attached is None or self.attached.is_closed

    def average(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Start the average of a bucket over all ranks."""
        attached = self.attached
        average: Future[torch.Tensor]
        if attached is None or attached.runs_natively:
            average = allreduce_hook(self._group, bucket)
        else:
            average = attached.submit(bucket).future()
        if attached is None or attached.bits_log is None or attached.is_closed:
            return average
        return attached.bits_log.behind(average, bucket)


_hooks: WeakKeyDictionary[DistributedDataParallel, _GradientHook] = WeakKeyDictionary()


@overload
def attach(
    model: DistributedDataParallel,
    schedule: ScheduleSource,
    *,
    contributions: int | None = None,
    timeout_s: float = 300.0,
    observer: Observer | None = None,
    **options: Unpack[RunOptions],
) -> Attachment: ...


@overload
def attach(
    model: DistributedDataParallel,
    *,
    mode: Mode | Literal["off"],
    contributions: int | None = None,
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
    schedule: ScheduleSource | None = None,
    *,
    mode: Mode | Literal["off"] | None = None,
    algorithm: Literal["schedule", "optireduce"] = "schedule",
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    contributions: int | None = None,
    timeout_s: float = 300.0,
    observer: Observer | None = None,
    **of_mode: Unpack[ModeOptions],
) -> Attachment | optireduce.Attachment:
    """Let ``model`` reduce its gradients by a mode or a schedule. Collective: all ranks call it.

    Args:
        model: wrapped in DDP, with no communication hook yet; dense gradients.
        schedule: a file, or an object; it is verified here.
        mode, of_mode: as for ``latecomer.configure``; ``late``, ``device`` and ``bits`` are among
            these. It may be changed later: :attr:`Attachment.mode`. In a job of one rank there is
            nothing to do.
        algorithm: ``optireduce`` needs no schedule, but CPU tensors; ``options`` are the same on
            all ranks; with the model's ``optimizer`` steps that lost too much are skipped, and its
            state is re-synchronized with the parameters.
        contributions: with ``bits="same"``: how many microbatches all ranks together have in a
            step. Then each is a contribution of its own, and the average is the same on however
            many ranks they are; all but the last of a rank run within ``model.no_sync()``.
            Default: a rank's gradients are one contribution.
        timeout_s: a rank that keeps others waiting this long is given up by all.
        observer: is told about steps and operations.

    Raises:
        ArgumentError: ``model`` is not wrapped in DDP, has a communication hook, or has something
            attached that is not closed; or a bad option.
        FormatError, ScheduleRefused, RankFailure: see ``latecomer.Executor``.

    Examples:
        On every rank of ``torchrun``:

        >>> import torch, torch.distributed as dist
        >>> from latecomer import ddp
        >>> dist.init_process_group("gloo")
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> attachment = ddp.attach(model, mode="auto")  # an Attachment
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> attachment.close()
        >>> dist.destroy_process_group()
    """
    hook = _hook_of(model)
    attachment: Attachment | optireduce.Attachment
    if algorithm == "optireduce":
        require_any_bits(of_mode.get("bits"))
        bits_log = log_by_environment(model, "any", contributions)
        store, rank, size = _store_rank_size(model.process_group)
        engine = OptiReduceEngine(store, rank, size, options=options, timeout_s=timeout_s)
        watch_by_environment(engine.source)
        attachment = optireduce.Attachment(engine, model, optimizer)
        attachment.bits_log = bits_log
    else:
        chosen = choose(schedule, mode, **of_mode)
        device = next(model.parameters()).device
        bits = _bits_of(chosen)
        _require_sense(bits, contributions)
        bits_log = log_by_environment(model, bits, contributions)
        attachment = _attachment(model.process_group, device, chosen, timeout_s, observer)
        attachment.bits_log = bits_log
        if bits == "same":
            gradients = Gradients(
                model,
                contributions or model.process_group.size(),
                by_microbatch=contributions is not None,
            )
            attachment.sum_the_same_bits(gradients)
    hook.attached = attachment
    return attachment


def _bits_of(chosen: Scheduled | Chosen) -> Bits:
    return chosen.options.bits if isinstance(chosen, Chosen) else chosen.bits


def _require_sense(bits: Bits, contributions: int | None) -> None:
    """ArgumentError for what does not go together with the same bits."""
    if bits == "any" and contributions is not None:
        requirement = "is for bits='same' only"
        raise ArgumentError("contributions", contributions, requirement, "Set bits='same'")
    if contributions is not None:
        require_contributions(contributions)


def _hook_of(model: DistributedDataParallel) -> _GradientHook:
    """The hook of ``model``, to which nothing is attached; ArgumentError if there can't be one."""
    if not isinstance(model, DistributedDataParallel):
        kind = type(model).__name__
        remedy = (
            "Use ddp.attach(DistributedDataParallel(model), ...); under FSDP the backend: "
            'init_process_group("latecomer")'
        )
        raise ArgumentError("model", kind, "must be wrapped in DistributedDataParallel", remedy)

    hook = _hooks.get(model)
    if hook is None:
        if hooks_of(model):
            text = "has a communication hook of its own already, and DDP takes only one"
            raise ArgumentError(
                "model", type(model).__name__, text, "Register none, or attach none"
            )
        hook = _GradientHook(model.process_group)
        model.register_comm_hook(hook, _average)
        _hooks[model] = hook
    if not hook.is_free():
        text = "has something attached already"
        remedy = "Call close() of that attachment first, or set its mode"
        raise ArgumentError("model", type(model).__name__, text, remedy)
    return hook


def _attachment(
    process_group: Any,
    device: torch.device,
    chosen: Scheduled | Chosen,
    timeout_s: float,
    observer: Observer | None,
) -> Attachment:
    """What a schedule or a mode attaches (collective); it must not keep the model alive."""

    def make_reducer(options: modes.Options, profile: Profile | None) -> ModeEngine:
        store, rank, size = _store_rank_size(process_group)
        reducer = make_engine(
            store,
            rank,
            size,
            options=options,
            device=device,
            timeout_s=timeout_s,
            profile=profile,
        )
        watch_by_environment(reducer.source)
        return reducer

    group = StoreExchange(*_store_rank_size(process_group), timeout_s)
    if isinstance(chosen, Chosen):
        options = chosen.options
        reducer = make_reducer(options, chosen.profile)
        return Attachment(
            reducer,
            group,
            lambda mode, profile: make_reducer(modes.in_mode(options, mode), profile),
        )

    store, rank, size = _store_rank_size(process_group)
    executor = make_executor(
        chosen.verified,
        store,
        rank,
        size,
        device=device,
        timeout_s=timeout_s,
        late=chosen.late,
        by=chosen.device,
        observer=observer,
    )
    return Attachment(executor, group, lambda mode, profile: executor)


def _store_rank_size(process_group: Any) -> tuple[Store, int, int]:
    """For what runs the model's all-reduces: a store of its own, the rank, the number of ranks."""
    store = PrefixStore(f"latecomer/ddp/{next(_numbers)}", store_of(process_group))
    return store, process_group.rank(), process_group.size()


def _average(hook: _GradientHook, bucket: GradBucket) -> Future[torch.Tensor]:
    return hook.average(bucket)
