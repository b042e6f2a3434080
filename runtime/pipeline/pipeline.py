"""A pipeline in training: a proved schedule on PyTorch's own pipeline runtime, over our links.

PyTorch's ``_PipelineScheduleRuntime`` loads the schedule as a compute_comms CSV and runs it; what
is ours is the way messages travel (``runtime.pipeline.transport``), the deadlines on every wait
(``runtime.pipeline.liveness``), the timing, and the change of schedule between two steps.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runtime.executor.executor import Executor
from runtime.network.control_channel import ControlChannel
from runtime.network.store_exchange import StoreExchange, require_all, tell, tell_all, within
from runtime.pipeline.adaptation import Adaptation, Event
from runtime.pipeline.controller import Adapter
from runtime.pipeline.faults import Faults
from runtime.pipeline.gradients import Gradients
from runtime.pipeline.liveness import Liveness
from runtime.pipeline.load import VerifiedPipeline, load, require_ranks, require_same_shape
from runtime.pipeline.mailbox import Mailbox
from runtime.pipeline.placement import Modules, device_of, neighbours, own_modules
from runtime.pipeline.recorder import Recorder, StepRecord
from runtime.pipeline.stage import DelegatedStage, StageContext
from runtime.pipeline.staging import staging_for
from runtime.pipeline.transport import Links
from runtime.torch_versions import PipelineScheduleRuntime, PrefixStore, Store, store_of
from verify.errors import ArgumentError, LatecomerError, RankFailure, ScheduleRefused
from verify.pipeline import PipelineSchedule

CLOSE_S = 10.0
POLL_S = 0.002

_opened = 0

Loss = Callable[..., torch.Tensor]


class Pipeline:
    """This rank's part of a pipeline. Collective: all ranks of ``group`` make one, and step it.

    Args:
        modules: the module of this rank's stage; for several stages, stage -> module. Plain
            modules, on their device: not wrapped for data parallelism.
        schedule: a schedule file, PyTorch's CSV, or an object; it is proved here.
        loss_fn: (output, target of one microbatch) -> loss, on every rank (the last stage uses
            it); a mean over the microbatch.
        group: whose ranks are those of the schedule, in order (default: all).
        store: for meeting (default: the group's).
        timeout_s: a rank that keeps others waiting this long is given up by all.
        replicas: averages gradients over this rank's replicas in other pipelines.
        adaptation: watch the links and change the schedule with them; the same on all ranks.
        faults: delays to inject, for tests; the same on all ranks.
        dw_builder: as for ``torch.distributed.pipelining.PipelineStage``.

    Attributes:
        verified: the schedule that runs now.
        record: times of the last step.
        steps: how many steps have begun.

    Raises:
        FormatError: the schedule file is malformed.
        ScheduleRefused: not proved, for another number of ranks, or not the same on all ranks.
        ArgumentError: modules that don't fit the schedule, or a bad time-out.
        RankFailure: ranks that did not join within ``timeout_s``.
    """

    def __init__(
        self,
        modules: Modules,
        schedule: str | os.PathLike[str] | PipelineSchedule | VerifiedPipeline,
        loss_fn: Loss,
        *,
        group: dist.ProcessGroup | None = None,
        store: Store | None = None,
        timeout_s: float = 300.0,
        replicas: Executor | None = None,
        adaptation: Adaptation | None = None,
        faults: Faults | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
    ) -> None:
        global _opened  # noqa: PLW0603  (all ranks count alike: it names the connections)
        if not timeout_s > 0:
            raise ArgumentError("timeout_s", timeout_s, "must be positive")
        self.verified = load(schedule)
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        require_ranks(self.verified, self.size)
        own = own_modules(modules, self.verified.stages_of(self.rank))
        self.device = device_of(own)
        if store is None:
            store = PrefixStore(f"latecomer/pipeline/{_opened}", store_of(group))
            _opened += 1
        self.store, self.steps = store, 0
        self._timeout_s, self._closed = timeout_s, False
        self._recorder = Recorder(self.device)
        plan = self.verified.schedule
        to, sources = neighbours(plan, self.rank)
        self._mailbox = Mailbox(sources, plan.microbatches)
        staging = staging_for(self.device)
        around = StageContext(dict(plan.rank_of), staging, self._mailbox, self._recorder)
        self._around = around
        self._datagrams = ControlChannel(
            StoreExchange(PrefixStore("datagrams", store), self.rank, self.size, timeout_s)
        )
        try:
            self._agree()
            around.liveness = Liveness(self._datagrams, timeout_s, self._stop)
            around.links = Links(
                PrefixStore("links", store),
                self._datagrams,
                to=to,
                origin=sources.values(),
                staging=staging,
                mailbox=self._mailbox,
                lost=around.liveness.fail,
                broken=around.liveness.broke,
                faults=faults or Faults(),
                timeout_s=timeout_s,
            )
        except BaseException:
            if hasattr(around, "liveness"):
                around.liveness.end()
            self._datagrams.close()
            raise
        self.record = around.record = StepRecord(-1, self.verified.digest, 0.0)
        self._gradients = Gradients(own, replicas)
        self._runtime = PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
            [
                DelegatedStage(module, stage, plan.stages, around, self.device, group, dw_builder)
                for stage, module in own.items()
            ],
            plan.microbatches,
            loss_fn=self._timed(loss_fn),
        )
        self._gradients.register(self._runtime)
        self._load()
        self._adapter = (
            Adapter(
                adaptation,
                PrefixStore("adapt", store),
                self.rank,
                self.size,
                self.verified,
                lambda: self.failure,
                timeout_s,
            )
            if adaptation is not None
            else None
        )

    @property
    def events(self) -> list[Event]:
        """What the adaptation noticed, decided and did, with reasons; most of it on rank 0."""
        return list(self._adapter.events) if self._adapter is not None else []

    @property
    def failure(self) -> LatecomerError | None:
        """Why this pipeline has failed, if it has."""
        return self._around.liveness.failure

    def step(
        self,
        *args: Any,
        target: torch.Tensor | None = None,
        losses: list[torch.Tensor] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """One training step: forward and backward of all microbatches; gradients accumulate.

        The arguments are those of ``torch.distributed.pipelining`` schedules: whole batches, the
        inputs on the rank of the first stage, ``target`` and ``losses`` on that of the last.
        Returns the outputs on the rank of the last stage, None on others.

        Raises:
            RankFailure: a rank is dead or silent; so does every later step.
            Exception: what a module or ``loss_fn`` raises, on that rank.
        """
        if self._closed:
            raise ArgumentError("pipeline", "closed", "a step needs an open pipeline")
        if self.failure is not None:
            raise self.failure
        step = self.steps
        if self._adapter is not None:
            self._adapt(self._adapter, step)
        self.steps += 1
        self._around.record = record = StepRecord(step, self.verified.digest, time.monotonic())
        self._mailbox.begin(step)
        self._around.liveness.enter(step)
        try:
            output = self._runtime.step(
                *args, target=target, losses=losses, return_outputs=return_outputs, **kwargs
            )
            self._gradients.wait()
            record.spans = self._recorder.collect()
        except BaseException as error:  # whatever it is, nobody may be left waiting
            if error is not self.failure:
                self._around.liveness.broke(error)
            raise
        record.ended_s = time.monotonic()
        self.record = record
        if self._adapter is not None:
            self._adapter.after(record)
        return output

    def switch(self, schedule: PipelineSchedule | VerifiedPipeline) -> None:
        """Run another schedule from the next step on; all ranks must do so before the same step.

        Raises:
            ScheduleRefused: not proved, or of another shape.
        ArgumentError: the pipeline adapts, and so changes it by itself.
        """
        if self._adapter is not None:
            raise ArgumentError("switch", "adaptation", "a pipeline that adapts does so by itself")
        verified = load(schedule)
        require_same_shape(verified, self.verified)
        self.verified = verified
        self._load()

    def close(self) -> None:
        """Wait until all ranks are done (unless one has failed) and disconnect."""
        if self._closed:
            return
        self._closed = True
        if self._adapter is not None:
            self._adapter.close()
        if self.failure is None:
            self._leave_together()
        self._around.links.close(CLOSE_S)
        self._around.liveness.end()
        self._datagrams.close()

    def _adapt(self, adapter: Adapter, step: int) -> None:
        try:
            verified = adapter.boundary(step)
        except (TimeoutError, LatecomerError) as error:
            self._around.liveness.fail(str(error))
            assert self.failure is not None
            raise self.failure from None
        if verified is not None:
            self.verified = verified
            self._load()

    def _load(self) -> None:
        """Hand the schedule to PyTorch's runtime, which reads it from a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            path.write_bytes(self.verified.csv())
            self._runtime._load_csv(str(path), format="compute_comms")

    def _timed(self, loss_fn: Loss) -> Loss:
        def timed(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = loss_fn(*args, **kwargs)
            self._recorder.extend()
            return loss

        return timed

    def _agree(self) -> None:
        """All ranks must start with the same schedule."""
        own = self.verified.digest
        told = tell_all(self.store, "schedule", self.rank, self.size, own, self._timeout_s)
        require_all(told, range(self.size), self._timeout_s)
        differing = ", ".join(str(r) for r in told if told[r] != own)
        if differing:
            raise ScheduleRefused(
                f"rank {self.rank} has {self.verified.name} ({own[:12]}), rank(s) {differing} "
                "another schedule"
            )

    def _stop(self, failure: RankFailure) -> None:
        """The pipeline has failed: nobody may wait any longer."""
        self._mailbox.fail(failure)
        if hasattr(self._around, "links"):  # or they are still being made, with a deadline
            self._around.links.abort()

    def _leave_together(self) -> None:
        """A rank that is gone looks dead to those that are not done."""
        deadline = time.monotonic() + min(CLOSE_S, self._timeout_s)
        keys = [f"done/{rank}" for rank in range(self.size)]
        with contextlib.suppress(RankFailure):  # the store has gone before us
            tell(self.store, keys[self.rank], "", min(CLOSE_S, self._timeout_s))
            while time.monotonic() < deadline and self.failure is None:
                left_s = max(POLL_S, deadline - time.monotonic())
                if within(left_s, lambda: self.store.check(keys)):
                    return
                time.sleep(POLL_S)
