"""A pipeline in training: a proved schedule on PyTorch's own pipeline runtime, over our links.

PyTorch's ``_PipelineScheduleRuntime`` loads the schedule as a compute_comms CSV and runs it; ours
are the way messages travel, the deadlines on every wait, the timing, and the change of schedule.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import host
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.pipeline.agent import Adaptation, AdaptationAgent, Event
from latecomer.runtime.pipeline.load import (
    Modules,
    VerifiedPipeline,
    load,
    own_modules,
    require_ranks,
    require_same_shape,
    senders,
)
from latecomer.runtime.pipeline.messages import Mailbox
from latecomer.runtime.pipeline.stage import DelegatedStage, Gradients
from latecomer.runtime.pipeline.staging import staging_for
from latecomer.runtime.pipeline.timing import StepRecorder
from latecomer.runtime.pipeline.transport import Faults, Transport
from latecomer.runtime.torch_versions import (
    PipelineScheduleRuntime,
    PrefixStore,
    Store,
    connect_nothing,
    store_of,
)
from latecomer.verify.errors import ArgumentError, LatecomerError, RankFailure, ScheduleRefused
from latecomer.verify.pipeline import PipelineSchedule

CLOSE_S = 10.0  # how long closing waits for the other ranks, and for what is to be sent
POLL_S = 0.002  # between two looks whether they are done
_numbers = itertools.count()  # all ranks count alike: it names the connections


class Pipeline:
    """This rank's part of a pipeline. Collective: all ranks of ``group`` make one, and step it.

    Args:
        modules: the module of this rank's stage; for several stages, stage -> module. Plain
            modules, on their device: not wrapped for data parallelism.
        schedule: a schedule file, PyTorch's CSV, or an object; it is proved here.
        loss_fn: (output, target of one microbatch) -> loss, on every rank; a mean.
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

    Examples:
        On every rank of ``torchrun``, here two; a batch is cut into four microbatches:

        >>> import torch, torch.distributed as dist
        >>> from latecomer.runtime.pipeline import Adaptation, Pipeline
        >>> from latecomer.synth.pipeline import make, plan
        >>> from latecomer.verify.pipeline import uniform
        >>> dist.init_process_group("gloo")
        >>> schedule = plan(make(4, uniform(2), (0, 1))).schedule  # or "pipeline.json"
        >>> stage, loss_fn = torch.nn.Linear(8, 8), torch.nn.functional.mse_loss
        >>> pipeline = Pipeline(stage, schedule, loss_fn, adaptation=Adaptation())
        >>> losses = []
        >>> if dist.get_rank() == 0:
        ...     pipeline.step(torch.ones(4, 8))
        ... else:
        ...     outputs = pipeline.step(target=torch.zeros(4, 8), losses=losses)
        >>> stage.weight.grad.shape
        torch.Size([8, 8])
        >>> record = pipeline.record  # a StepRecord: a Span per pass, a Transit per message
        >>> len(record.spans), len(record.transits), pipeline.events  # each an Event
        (12, 4, [])
        >>> pipeline.close()
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        modules: Modules,
        schedule: str | os.PathLike[str] | PipelineSchedule | VerifiedPipeline,
        loss_fn: Callable[..., torch.Tensor],
        *,
        group: dist.ProcessGroup | None = None,
        store: Store | None = None,
        timeout_s: float = 300.0,
        replicas: Executor | None = None,
        adaptation: Adaptation | None = None,
        faults: Faults | None = None,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ArgumentError("timeout_s", timeout_s, "must be positive")
        self.verified = load(schedule)
        self._closed = False
        self._leaves_at_once = False
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        require_ranks(self.verified, self.size)
        stage_modules, device = own_modules(modules, self.verified.stages_of(self.rank))
        if store is None:
            store = PrefixStore(f"latecomer/pipeline/{next(_numbers)}", store_of(group))
        ranks = self._ranks = StoreExchange(store, self.rank, self.size, timeout_s)
        plan = self.verified.schedule
        staging = staging_for(device)
        mailbox = self._mailbox = Mailbox(senders(plan, self.rank), plan.microbatches)
        self._recorder = StepRecorder(device)
        self.steps = 0
        self.record = self._recorder.record
        self._agent: AdaptationAgent | None = None
        with contextlib.ExitStack() as opened:
            channel = ControlChannel(ranks.under("datagrams"))
            opened.callback(channel.close)
            self._require_same_schedule()
            watchdog = self._watchdog = Watchdog(channel, timeout_s)
            opened.callback(watchdog.close)
            watchdog.add(mailbox)
            watchdog.on_failure(mailbox.fail)
            transport = self._transport = Transport(
                ranks.under("links"), channel, plan, mailbox, staging, faults or Faults(), watchdog
            )
            opened.callback(transport.close, CLOSE_S)
            watchdog.on_failure(lambda _: transport.abort())
            about = (plan.stages, device, group, dw_builder)
            stages = [self._stage(stage, module, *about) for stage, module in stage_modules.items()]
            timed = self._recorder.with_loss(loss_fn)
            self._runtime = PipelineScheduleRuntime(stages, plan.microbatches, loss_fn=timed)  # type: ignore[no-untyped-call]
            connect_nothing(self._runtime)
            self._gradients = Gradients(stage_modules, replicas, self._runtime)
            self._run(self.verified)
            opened.callback(self._leave_together)
            if adaptation is not None:
                keys = ranks.under("adapt")
                self._agent = AdaptationAgent(adaptation, keys, channel, self.verified, watchdog)
                opened.callback(self._agent.close)
            self._opened = opened.pop_all()
        close_at_exit(self)

    def _stage(self, stage: int, module: torch.nn.Module, *about: Any) -> DelegatedStage:
        """A stage of PyTorch's over our transport; ``about``: what PyTorch's takes besides."""
        return DelegatedStage(self._transport, self._recorder, module, stage, *about)

    @property
    def events(self) -> list[Event]:
        """What the adaptation noticed, decided and did, with reasons; most of it on rank 0."""
        return list(self._agent.events) if self._agent is not None else []

    @property
    def failure(self) -> LatecomerError | None:
        """Why this pipeline has failed, if it has."""
        return self._watchdog.failure

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One training step: forward and backward of all microbatches; gradients accumulate.

        The arguments are those of ``torch.distributed.pipelining`` schedules: whole batches, the
        inputs on the rank of the first stage, ``target`` and ``losses`` on that of the last.
        Returns the outputs there (with ``return_outputs=False``: nowhere), None on others.

        Raises RankFailure if a rank is dead or silent, as does every later step; and what a module
        or ``loss_fn`` raises, on that rank.
        """
        if self._closed:
            raise ArgumentError("pipeline", "closed", "a step needs an open pipeline")
        if self.failure is not None:
            raise self.failure
        self._change_over()
        step = self.steps
        self.steps = self.steps + 1
        self._recorder.begin(step, self.verified.digest)
        self._mailbox.begin(step)
        self._watchdog.enter(step)
        try:
            output = self._runtime.step(*args, **kwargs)
            self._gradients.wait()
            self.record = self._recorder.end()
        except BaseException as error:  # whatever it is, no rank may be left waiting
            if error is not self.failure:
                self._watchdog.broke(error)
            raise
        if self._agent is not None:
            self._agent.after(self.record)
        return output

    def switch(self, schedule: PipelineSchedule | VerifiedPipeline) -> None:
        """Run another schedule from the next step on; all ranks must do so before the same step.

        ScheduleRefused if it is not proved, or of another shape; ArgumentError if this one adapts.
        """
        if self._agent is not None:
            raise ArgumentError("switch", "adaptation", "a pipeline that adapts does so by itself")
        verified = load(schedule)
        require_same_shape(verified, self.verified)
        self._run(verified)

    def close(self, *, at_once: bool = False) -> None:
        """Wait until all ranks are done (unless one has failed, or ``at_once``) and disconnect."""
        has_closed(self)
        self._closed = True
        self._leaves_at_once = at_once
        if at_once:
            self._transport.abort()
        self._opened.close()

    def _require_same_schedule(self) -> None:
        own = self.verified.digest
        differing = self._ranks.differing("schedule", own)
        if differing:
            ranks = ", ".join(map(str, differing))
            ours = f"rank {self.rank} has {self.verified.name} ({own[:12]})"
            raise ScheduleRefused(f"{ours}, rank(s) {ranks} another schedule")

    def _change_over(self) -> None:
        """To the schedule on which all ranks have agreed, if there is one for the next step."""
        try:
            if self._agent is not None and (verified := self._agent.before(self.steps)):
                self._run(verified)
        except LatecomerError as error:
            self._watchdog.fail(str(error))
            assert self.failure is not None
            raise self.failure from None

    def _run(self, verified: VerifiedPipeline) -> None:
        """Hand a schedule to PyTorch's runtime, which reads it from a file."""
        self.verified = verified
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            path.write_bytes(verified.csv)
            self._runtime._load_csv(str(path), format="compute_comms")

    def _leave_together(self) -> None:
        """A rank that is gone looks dead to those that are not done."""
        if self._leaves_at_once:
            return
        limit_s = min(CLOSE_S, self._ranks.timeout_s)
        deadline = host.monotonic() + limit_s
        leaving = replace(self._ranks, timeout_s=limit_s).under("done")
        keys = {rank: str(rank) for rank in range(self.size)}
        # The store has gone before us; or, at the end of a program, there are no threads any more.
        with contextlib.suppress(RankFailure, RuntimeError):
            if self.failure is None:
                leaving.send(str(self.rank))
            while host.monotonic() < deadline and self.failure is None:
                if len(leaving.peek(keys)) == self.size:
                    return
                host.sleep(POLL_S)
