"""Only proved pipeline schedules run; and what one requires of a rank: modules, and senders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from latecomer.runtime.torch_versions import wants_waits
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ArgumentError, ScheduleRefused
from latecomer.verify.pipeline import (
    PipelineReport,
    PipelineSchedule,
    check,
    decode_csv,
    encode,
    encode_csv,
    lowered,
    read,
    read_csv,
    with_waits,
    without_waits,
)
from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.render import render

Modules = torch.nn.Module | Mapping[int, torch.nn.Module]


@dataclass(frozen=True)
class VerifiedPipeline:
    """A pipeline schedule with the report that proves it; made by ``load`` and nothing else."""

    schedule: PipelineSchedule
    report: PipelineReport
    name: str  # where it came from, for messages

    @property
    def digest(self) -> str:
        """A fingerprint of what the schedule does; ``meta`` does not enter."""
        bare = msgspec.structs.replace(self.schedule, meta={})
        return hashlib.sha256(encode(bare)).hexdigest()

    @cached_property
    def complete(self) -> PipelineSchedule:
        """The schedule with every SEND, RECV and REDUCE_GRAD; the same on all ranks.

        It has waits for them where the torch that is installed wants them. This is what runs, so it
        is proved, too: ScheduleRefused if it is not.
        """
        complete = lowered(self.schedule, Costs.of(self.schedule.instance))
        complete = with_waits(complete) if wants_waits() else without_waits(complete)
        return complete if complete is self.schedule else load(complete).schedule

    @cached_property
    def csv(self) -> bytes:
        """What PyTorch's runtime is given: the programs of :attr:`complete`, and no others."""
        text = encode_csv(self.complete, "compute_comms")
        if decode_csv(text).programs != self.complete.programs:
            raise ScheduleRefused(f"{self.name}: as CSV it is not what is proved, so it is not run")
        return text

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a rank holds, in order."""
        return sorted(s for s, r in self.schedule.rank_of.items() if r == rank)


def load(source: str | os.PathLike[str] | PipelineSchedule | VerifiedPipeline) -> VerifiedPipeline:
    """Read (where it is a path: a schedule file, or PyTorch's CSV) and prove a schedule.

    FormatError if the file is malformed; ScheduleRefused, with the report, if it is not proved.

    Examples:
        >>> from latecomer.runtime.pipeline import load
        >>> from latecomer.verify.pipeline import decode_csv
        >>> verified = load(decode_csv(b"0F0,0B0\\n1F0,1B0\\n"))  # a VerifiedPipeline
        >>> verified.stages_of(1), verified.report.measures.makespan
        ([1], 6)
    """
    if isinstance(source, VerifiedPipeline):
        return source
    if isinstance(source, PipelineSchedule):
        schedule = source
        name = "pipeline schedule"
    else:
        name = os.fspath(source)
        schedule = read_csv(name) if name.endswith(".csv") else read(name)
    report = check(schedule)
    if report.verdict is not Verdict.PROVED:
        problem = "a schedule that is not proved is never run"
        raise ScheduleRefused(f"{problem}\n{render(name, schedule, report)}")
    return VerifiedPipeline(schedule, report, name)


def require_ranks(verified: VerifiedPipeline, ranks: int) -> None:
    """Refuse (ScheduleRefused) a schedule for another number of ranks than the group's."""
    if verified.schedule.ranks != ranks:
        text = f"{verified.name} is a pipeline schedule for {verified.schedule.ranks} ranks"
        remedy = f"make one with: synth pipeline --stages {ranks} ..."
        raise ScheduleRefused(f"{text}, the group has {ranks}; {remedy}")


def require_same_shape(new: VerifiedPipeline, old: VerifiedPipeline) -> None:
    """Refuse (ScheduleRefused) a schedule that can't take the place of one that runs."""
    ours = old.schedule
    theirs = new.schedule
    if (ours.microbatches, ours.rank_of) != (theirs.microbatches, theirs.rank_of):
        raise ScheduleRefused(
            f"{new.name} has {theirs.microbatches} microbatches and stages on ranks "
            f"{dict(sorted(theirs.rank_of.items()))}; the pipeline runs {ours.microbatches} on "
            f"{dict(sorted(ours.rank_of.items()))}, and neither can change between steps"
        )


def own_modules(
    modules: Modules, stages: list[int]
) -> tuple[dict[int, torch.nn.Module], torch.device]:
    """(stage -> module, the device of all their parameters), checked."""
    if isinstance(modules, torch.nn.Module):
        modules = {stages[0]: modules}
    if sorted(modules) != stages:
        requirement = f"must be the modules of stages {stages}, as scheduled"
        raise ArgumentError("modules", sorted(modules), requirement)
    for stage, module in modules.items():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            requirement = "must be a plain module: its gradients would silently not be reduced"
            remedy = "Pass the module itself, and replicas="
            kind = "DistributedDataParallel"
            raise ArgumentError(f"modules[{stage}]", kind, requirement, remedy)
    devices = {parameter.device for m in modules.values() for parameter in m.parameters()}
    if len(devices) > 1:
        raise ArgumentError("modules", sorted(map(str, devices)), "must be on one device per rank")
    own = {stage: modules[stage] for stage in stages}
    return own, devices.pop() if devices else torch.device("cpu")


def senders(plan: PipelineSchedule, rank: int) -> dict[tuple[int, str], int]:
    """(stage, RECV kind) -> the rank from which ``rank`` receives it, and to which it sends."""
    rank_of = plan.rank_of
    last = plan.stages - 1
    gradients = {(s, "RECV_B"): rank_of[s + 1] for s in range(last) if rank_of[s] == rank}
    activations = {(s + 1, "RECV_F"): rank_of[s] for s in range(last) if rank_of[s + 1] == rank}
    peers = gradients | activations
    return {key: peer for key, peer in peers.items() if peer != rank}
