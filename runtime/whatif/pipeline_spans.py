"""What was recorded of a pipeline: when each stage computed each microbatch.

Either a file of spans (``docs/howto/whatif.md`` has the format), or traces of torch's profiler in
which ``torch.distributed.pipelining`` has named its actions: ``PP:2F1`` is forward of microbatch 1
on stage 2. On a GPU those count that Kineto has put on the device's time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from latecomer.runtime.explain.dumps import read_bytes
from latecomer.verify.errors import ArgumentError, FormatError

FORMAT = "latecomer-pipeline-spans"
FIRST_KEY = b'"latecomer-pipeline-spans"'
ACTION = re.compile(r"PP:(\d+)([FBIW])(\d+)")
ON_DEVICE = "gpu_user_annotation"
ON_HOST = "user_annotation"
Kind = Literal["F", "B", "I", "W"]


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One action: forward, backward, or its half for the input or the weights."""

    stage: int
    kind: Kind
    microbatch: int
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        """When it was over."""
        return self.start_s + self.duration_s


class PipelineStep(msgspec.Struct, frozen=True):
    """One step of one pipeline, on one clock."""

    spans: tuple[Span, ...]

    @property
    def lasted_s(self) -> float:
        """From the first forward's begin to the last backward's end."""
        return max(span.end_s for span in self.spans) - min(span.start_s for span in self.spans)


class PipelineSpans(msgspec.Struct, frozen=True):
    """All steps that were recorded.

    Attributes:
        source: where they are from.
        rank_of: per stage its rank in the pipeline.
        has_links: whether ranks' times are on one clock, so that messages can be seen.
    """

    format: str
    version: int
    source: str
    license: str
    rank_of: tuple[int, ...]
    microbatches: int
    unit: str
    steps: tuple[PipelineStep, ...]
    has_links: bool = True

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.rank_of)


def is_spans(start: bytes) -> bool:
    """Whether a file that begins so has spans of a pipeline."""
    return FIRST_KEY in start


def read_spans(path: Path) -> PipelineSpans:
    """Those in a file; FormatError if it is none, or not whole."""
    try:
        found = msgspec.json.decode(read_bytes(path), type=PipelineSpans)
    except msgspec.DecodeError as error:
        raise FormatError(str(path), f"has no spans of a pipeline: {error}") from None
    if (found.format, found.version, found.unit) != (FORMAT, 1, "s"):
        kind = f"{found.format} {found.version} in {found.unit}"
        raise FormatError(str(path), f"must be {FORMAT} 1 in s, not {kind}")
    if not found.steps:
        raise FormatError(str(path), "has no step")
    for number, step in enumerate(found.steps):
        if problem := _problem(step.spans, found.stages, found.microbatches):
            raise FormatError(str(path), f"step {number}: {problem}")
    return found


class Event(NamedTuple):
    """What a trace says that its rank did, in seconds."""

    category: str
    name: str
    start_s: float
    duration_s: float


def spans_of_events(
    events_by_rank: Mapping[int, Sequence[Event]], source: str, *, has_links: bool
) -> PipelineSpans | None:
    """The pipeline in traces of torch's profiler, if there is one; all times on one clock.

    Args:
        events_by_rank: of each rank what it did, in the order of begins.
        has_links: whether the clock is good enough to see messages.

    Raises:
        ArgumentError: there is one, and ranks have recorded other actions of it than it has.
    """
    by_action: dict[tuple[int, str, int], list[Span]] = defaultdict(list)
    rank_of: dict[int, int] = {}
    for rank, events in events_by_rank.items():
        actions = [(event, ACTION.fullmatch(event.name)) for event in events]
        on_device = any(match and event.category == ON_DEVICE for event, match in actions)
        category = ON_DEVICE if on_device else ON_HOST
        for event, match in actions:
            if match is None or event.category != category:
                continue
            span = msgspec.convert(
                (int(match[1]), match[2], int(match[3]), event.start_s, event.duration_s), Span
            )
            rank_of[span.stage] = rank
            by_action[span.stage, span.kind, span.microbatch].append(span)
    if not by_action:
        return None

    ranks = sorted(set(rank_of.values()))
    microbatches = 1 + max(microbatch for _, _, microbatch in by_action)
    whole = min(len(spans) for spans in by_action.values())
    steps = tuple(
        PipelineStep(tuple(spans[number] for spans in by_action.values()))
        for number in range(whole)
    )
    found = PipelineSpans(
        format=FORMAT,
        version=1,
        source=source,
        license="",
        rank_of=tuple(ranks.index(rank_of[stage]) for stage in sorted(rank_of)),
        microbatches=microbatches,
        unit="s",
        steps=steps,
        has_links=has_links,
    )
    if problem := _problem(steps[0].spans, found.stages, microbatches):
        raise ArgumentError("FILE", source, f"have a pipeline that is not whole: {problem}")
    return found


def _problem(spans: Sequence[Span], stages: int, microbatches: int) -> str:
    """What is missing in a step, or twice."""
    done = {(span.stage, span.kind, span.microbatch) for span in spans}
    if len(done) < len(spans):
        return "an action is there twice"
    for stage in range(stages):
        for microbatch in range(microbatches):
            kinds = {kind for kind in "FBIW" if (stage, kind, microbatch) in done}
            if kinds not in ({"F", "B"}, {"F", "I", "W"}):
                named = "".join(sorted(kinds)) or "nothing"
                return f"stage {stage} has {named} of microbatch {microbatch}, must be FB or FIW"
    if any(span.stage >= stages for span in spans):
        return f"has a stage beyond {stages}"
    return ""
