"""The process group backend ``latecomer``: all_reduce by a mode or a schedule, the rest native.

    import latecomer.runtime
    latecomer.configure(mode="auto")              # or LATECOMER_MODE (_LATE, _PROFILE)
    latecomer.configure("schedule.json", late=7)  # or LATECOMER_SCHEDULE and LATECOMER_LATE
    latecomer.configure(algorithm="optireduce")   # or LATECOMER_ALGORITHM=optireduce
    dist.init_process_group(backend="latecomer")  # from torch 2.14 on without the import

Every other collective runs through Gloo (CPU) or NCCL (CUDA). An ``all_reduce`` goes by the mode or
schedule when the operation is SUM or AVG of one tensor of a dtype that can be carried, and the
group has as many ranks as the schedule (a mode makes its own); what goes elsewhere is counted in
``paths`` of the group and reported once per reason in the log ``latecomer``. In modes that find out
what is fastest reduce-scatters and all-gathers of one CPU tensor go by it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.config import Scheduled, configuration
from latecomer.runtime.device.choice import make_executor
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.load import Late
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.hadamard import FLOATS
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.policy.candidates import MOST_RANKS_SEARCHED
from latecomer.runtime.policy.cost_model import Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import LEARNING, Chosen
from latecomer.runtime.process_group import reductions
from latecomer.runtime.process_group.collectives import Collectives
from latecomer.runtime.process_group.forwarding import BACKEND, ForwardingGroup
from latecomer.runtime.process_group.starting import AllReduceEngine
from latecomer.runtime.samebits.engine import SameBitsEngine
from latecomer.runtime.samebits.repetition import connect_repetition
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.telemetry.session import watch_by_environment
from latecomer.runtime.torch_versions import (
    RECONFIGURES,
    PrefixStore,
    Store,
    Work,
    allow_monitored_barrier,
)
from latecomer.runtime.work import CollectiveWork, PendingWork
from latecomer.verify.errors import ArgumentError
from latecomer.verify.halves import Half

LEAST_OF_TWO = 2**21
"""Bytes of a reduce-scatter or all-gather between two ranks. Gloo has one round there, too, so that
only bytes can be saved."""

__all__ = ["BACKEND", "LatecomerGroup"]


class ModeCollectives(Collectives):
    """All-reduces in a mode."""

    chosen: Chosen

    def __init__(self, group: StoreExchange, chosen: Chosen) -> None:
        super().__init__(group, chosen)
        options = chosen.options
        self.path = f"mode {options.mode}"
        learns = options.mode in LEARNING and self.size <= MOST_RANKS_SEARCHED
        self._runs_halves = learns and options.bits != "same"

    def unfit(self, device: torch.device) -> str:
        """A mode takes late ranks that are in the group."""
        late = self.chosen.options.late
        is_here = all(rank < self.size for rank in late)
        return "" if is_here else f"{self.size} ranks, without {late}"

    def start(
        self, device: torch.device, group: StoreExchange
    ) -> AllReduceDispatcher | SameBitsEngine:
        """A dispatcher (collective)."""
        dispatcher = AllReduceDispatcher(
            group.store,
            group.rank,
            group.world_size,
            options=self.chosen.options,
            profile=self._profile(),
            device=device,
            timeout_s=group.timeout_s,
            native_waits=self.waits,
        )
        watch_by_environment(dispatcher.source)
        if self.chosen.options.bits == "same":
            return _same_bits(dispatcher, dispatcher.executor.watchdog, group, device)
        return dispatcher

    def half(self, half: Half, args: Sequence[Any], kwargs: dict[str, Any]) -> Work | None:
        """By what is fastest for ranks that are all on time."""
        if not self._runs_halves or len(args) < 2:
            return None
        tensor, given = args[:2]
        if not isinstance(tensor, torch.Tensor):
            self.count(half, "several tensors at once")
            return None
        operation = "SUM"
        if half == "reduce_scatter":
            operation = reductions.name(reductions.operation(args[2:], kwargs))
        reason = self._why_native(tensor, given, operation)
        self.count(half, reason)
        if reason:
            return None

        def submit(engine: AllReduceDispatcher) -> CollectiveWork:
            if half == "all_gather":
                return engine.all_gather(tensor, given)
            return engine.reduce_scatter(tensor, given, average=operation == "AVG")

        return PendingWork(self.starting(tensor.device).start(tensor, submit))

    def _why_native(self, tensor: torch.Tensor, given: torch.Tensor, operation: str) -> str:
        """Why it does not go our way; empty if it does."""
        if tensor.device.type != "cpu" or given.device.type != "cpu":
            return f"device {tensor.device.type}"
        small, large = sorted([tensor.numel(), given.numel()])
        if self.size == 2 and large * tensor.element_size() < LEAST_OF_TWO:
            return "small, of two ranks"
        if tensor.dtype != given.dtype or large != self.size * small:
            return "tensors that do not fit"  # torch raises for them
        return self.reason(tensor, operation) or self.reason(given, operation)

    def among(self, group: StoreExchange) -> ModeCollectives:
        """The profile that was measured is kept."""
        starting = self._engines.get("cpu")
        engine = None if starting is None else starting.ready
        profile = self.chosen.profile
        if isinstance(engine, AllReduceDispatcher):
            profile = engine.profile
        if profile is not None:
            profile = profile.for_some(group.world_size)
        return type(self)(group, self.chosen._replace(profile=profile))

    def _profile(self) -> Profile | None:
        """The job's profile, which counts for a group of some of its ranks, too.

        Alpha and beta are those of links. Measuring them anew for every group would take its time,
        and could decide differently in the next run.
        """
        profile = self.chosen.profile
        is_whole_job = not dist.is_initialized() or self.size == dist.get_world_size()
        if profile is None or is_whole_job:
            return profile
        return profile.for_some(self.size)


class ScheduleCollectives(Collectives):
    """All-reduces by a schedule; all groups split from one have the same, should it fit."""

    path = "schedule"
    chosen: Scheduled

    def unfit(self, device: torch.device) -> str:
        """A schedule is for a number of ranks."""
        ranks = self.chosen.verified.schedule.ranks
        return "" if ranks == self.size else f"{self.size} ranks, the schedule is for {ranks}"

    def start(self, device: torch.device, group: StoreExchange) -> Executor | SameBitsEngine:
        """An executor (collective)."""
        executor = make_executor(
            self.chosen.verified,
            group.store,
            group.rank,
            group.world_size,
            late=self.chosen.late,
            device=device,
            by=self.chosen.device,
            timeout_s=group.timeout_s,
            native_waits=self.waits,
        )
        if self.chosen.bits == "same":
            return _same_bits(executor, executor.watchdog, group, device)
        return executor

    def options(self) -> dict[str, Any]:
        """Who is late, as it is when the operation is submitted."""
        return {"late": self.chosen.late}

    def set_late(self, late: Late) -> None:
        """Name the late ranks from now on; between steps, the same on all ranks."""
        self.chosen = self.chosen._replace(late=self.chosen.verified.late_ranks(late))


class OptiReduceCollectives(Collectives):
    """All-reduces over UBT, of floating point tensors; each is a step of its own."""

    path = "optireduce"
    dtypes = FLOATS
    chosen: Options

    def unfit(self, device: torch.device) -> str:
        """OptiReduce takes CPU tensors."""
        return "" if device.type == "cpu" else f"device {device.type}"

    def start(self, device: torch.device, group: StoreExchange) -> OptiReduceEngine:
        """An engine (collective)."""
        engine = OptiReduceEngine(
            group.store,
            group.rank,
            group.world_size,
            options=self.chosen,
            timeout_s=group.timeout_s,
            native_waits=self.waits,
        )
        watch_by_environment(engine.source)
        return engine


def _same_bits(
    engine: AllReduceEngine, watchdog: Watchdog, group: StoreExchange, device: torch.device
) -> SameBitsEngine:
    """``engine`` with the same bits whoever is late (collective); closed if that can't start."""
    try:
        repetition = connect_repetition(group.under("repetition"), watchdog)
    except BaseException:
        engine.close(at_once=True)
        raise
    sums = SameBits(group.world_size, device, repetition, watchdog)
    return SameBitsEngine(engine, sums)


class LatecomerGroup(ForwardingGroup):
    """A process group whose all-reduce runs in a mode, by a verified schedule, or by OptiReduce."""

    @property
    def reducer(self) -> AllReduceDispatcher:
        """What decides, in a mode (else ArgumentError); started now if need be (collective)."""
        if not isinstance(self.collectives, ModeCollectives):
            raise ArgumentError("reducer", self.collectives.path, "is there in a mode only")
        engine = self.collectives.engine()
        if isinstance(engine, SameBitsEngine):
            engine = engine.engine
        dispatcher: AllReduceDispatcher = engine
        return dispatcher

    @property
    def engine(self) -> Any:
        """What all-reduces CPU tensors, of any of the three; started if need be (collective)."""
        return self.collectives.engine()

    @property
    def late(self) -> tuple[int, ...]:
        """The late ranks of a schedule in order of arrival; set them to the same everywhere."""
        return self._scheduled("late").chosen.late

    @late.setter
    def late(self, late: Late) -> None:
        self._scheduled(late).set_late(late)

    def _scheduled(self, late: object) -> ScheduleCollectives:
        if not isinstance(self.collectives, ScheduleCollectives):
            raise ArgumentError("late", late, "is there with a schedule only")
        return self.collectives


def create(store: Store, rank: int, size: int, timeout: timedelta) -> LatecomerGroup:
    """A process group that does what is configured; raises as there."""
    chosen = configuration()
    kinds: dict[type, type[Collectives]] = {Options: OptiReduceCollectives, Chosen: ModeCollectives}
    kind = kinds.get(type(chosen), ScheduleCollectives)
    return LatecomerGroup(kind(StoreExchange(store, rank, size, timeout.total_seconds()), chosen))


def create_by_options(options: Any, _: object) -> LatecomerGroup:
    """The same, as torch from 2.14 on calls it.

    One that is to be reconfigured begins as a group of one: whom it is to connect with is said
    then.
    """
    store, rank, size = options.store, options.group_rank, options.group_size
    if options.enable_reconfigure:
        return create(PrefixStore(f"alone/{rank}", store), 0, 1, options.timeout)
    return create(store, rank, size, options.timeout)


def register() -> None:
    """Make the backend known to torch, which calls it; importing this module does it, too."""
    creator = create_by_options if RECONFIGURES else create
    dist.Backend.register_backend(
        BACKEND, creator, extended_api=RECONFIGURES, devices=["cpu", "cuda"]
    )
    allow_monitored_barrier(LatecomerGroup)


register()  # up to torch 2.13 the import of this module is how torch learns of the backend
