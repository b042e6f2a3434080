"""Only proved pipeline schedules run: the one door from a schedule to a :class:`Pipeline`."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property

import msgspec

from verify.core.verdict import Verdict
from verify.errors import ScheduleRefused
from verify.pipeline import (
    PipelineReport,
    PipelineSchedule,
    check,
    encode,
    encode_csv,
    lowered,
    read,
    read_csv,
)
from verify.pipeline.costs import Costs
from verify.pipeline.render import render


@dataclass(frozen=True)
class VerifiedPipeline:
    """A pipeline schedule with the report that proves it; made by :func:`load` and nothing else.

    Attributes:
        schedule: as it was given.
        report: all properties proved.
        name: where it came from, for messages.
    """

    schedule: PipelineSchedule
    report: PipelineReport
    name: str

    @property
    def digest(self) -> str:
        """A fingerprint of what the schedule does; ``meta`` does not enter."""
        bare = msgspec.structs.replace(self.schedule, meta={})
        return hashlib.sha256(encode(bare)).hexdigest()

    @cached_property
    def complete(self) -> PipelineSchedule:
        """The schedule with every SEND, RECV and REDUCE_GRAD; the same on all ranks."""
        return lowered(self.schedule, Costs.of(self.schedule.situation))

    def csv(self) -> bytes:
        """What PyTorch's runtime loads, format ``compute_comms``."""
        return encode_csv(self.complete, "compute_comms")

    def stages_of(self, rank: int) -> list[int]:
        """The stages that a rank holds, in order."""
        return sorted(s for s, r in self.schedule.rank_of.items() if r == rank)


def load(source: str | os.PathLike[str] | PipelineSchedule | VerifiedPipeline) -> VerifiedPipeline:
    """Read (where it is a path: a schedule file, or PyTorch's CSV) and prove a schedule.

    Raises:
        FormatError: the file is malformed.
        ScheduleRefused: a property is refuted or undecided; the message holds the report.
    """
    if isinstance(source, VerifiedPipeline):
        return source
    if isinstance(source, PipelineSchedule):
        schedule, name = source, "pipeline schedule"
    else:
        name = os.fspath(source)
        schedule = read_csv(name) if name.endswith(".csv") else read(name)
    report = check(schedule)
    if report.verdict is not Verdict.PROVED:
        raise ScheduleRefused(
            "a schedule that is not proved is never run\n" + render(name, schedule, report)
        )
    return VerifiedPipeline(schedule, report, name)


def require_ranks(verified: VerifiedPipeline, size: int) -> None:
    """Refuse a schedule for another number of ranks.

    Raises:
        ScheduleRefused: the group has ``size`` ranks and the schedule another number.
    """
    if verified.schedule.ranks != size:
        raise ScheduleRefused(
            f"{verified.name} is a pipeline schedule for {verified.schedule.ranks} ranks, the "
            f"group has {size}; make one with: synth pipeline --stages {size} ..."
        )


def require_same_shape(new: VerifiedPipeline, old: VerifiedPipeline) -> None:
    """Refuse a schedule that can't take the place of another one in a running pipeline.

    Raises:
        ScheduleRefused: another number of microbatches, or stages on other ranks.
    """
    ours, theirs = old.schedule, new.schedule
    if (ours.microbatches, ours.rank_of) != (theirs.microbatches, theirs.rank_of):
        raise ScheduleRefused(
            f"{new.name} has {theirs.microbatches} microbatches and stages on ranks "
            f"{dict(sorted(theirs.rank_of.items()))}; the pipeline runs {ours.microbatches} on "
            f"{dict(sorted(ours.rank_of.items()))}, and neither can change between steps"
        )
