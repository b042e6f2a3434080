"""PipeMorph's simulated timelines (``simu.txt``): one pass a line, ``stage, F|B|W, start, end``.

The order in which a stage begins its passes is its program, the k-th pass of a kind is that of
microbatch k. B is the backward for the input where the file has any W, else the whole backward.
Durations are those of each stage's first pass of a kind; links take no time here, since the file
does not say what they take. Of github.com/wutianyuan1/PipeMorph, ``auto_schedule.py``.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from latecomer.verify.errors import FormatError
from latecomer.verify.pipeline.format import require_sizes
from latecomer.verify.pipeline.schedule import Action, Instance, Kind, PipelineSchedule

_LINE = re.compile(r"\s*(\d{1,9})\s*,\s*([FBW])\s*,\s*(\d+(?:\.\d+)?)\s*,\s*(\d+(?:\.\d+)?)\s*")


KINDS: dict[tuple[str, bool], Kind] = {
    ("F", True): "F",
    ("F", False): "F",
    ("B", True): "I",
    ("B", False): "B",
    ("W", True): "W",
}
"""Of a letter, and whether the file has any W."""


class Pass(NamedTuple):
    """A line of the file."""

    start: float
    end: float
    stage: int
    kind: str


def decode_timeline(data: bytes, name: str = "<bytes>") -> PipelineSchedule:
    """The schedule that a timeline shows.

    Raises:
        FormatError: not such a timeline, or a stage does two things at once.
    """
    passes = []
    for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise FormatError(name, f"line {number} is not 'stage, F|B|W, start, end': {line!r}")
        stage, letter, start, end = match.groups()
        passes.append(Pass(float(start), float(end), int(stage), letter))
    if not passes:
        raise FormatError(name, "there is no pass in it")
    stages = 1 + max(p.stage for p in passes)
    split = any(p.kind == "W" for p in passes)
    programs: list[list[Action]] = [[] for _ in range(stages)]
    durations: dict[tuple[str, int], float] = {}
    counts: Counter[tuple[int, str]] = Counter()
    busy = [0.0] * stages
    # By their starts, so in the order in which each stage begins them.
    for p in sorted(passes):
        if p.start < busy[p.stage] or p.end < p.start:
            raise FormatError(name, f"stage {p.stage} does two things at {p.start:g}")
        busy[p.stage] = p.end
        kind = KINDS[p.kind, split]
        programs[p.stage].append(Action(p.stage, kind, counts[p.stage, kind]))
        counts[p.stage, kind] += 1
        durations.setdefault((kind, p.stage), p.end - p.start)
    tuples = tuple(map(tuple, programs))
    microbatches = max(counts.values())
    require_sizes(name, stages, microbatches, tuples)

    def of(kind: str) -> tuple[float, ...]:
        return tuple(durations.get((kind, stage), 0) for stage in range(stages))

    whole = of("B")
    instance = Instance(
        forward=of("F"),
        backward=of("I"),
        weight=of("W"),
        fused=None if split else whole,
    )
    return PipelineSchedule(
        stages=stages, microbatches=microbatches, instance=instance, programs=tuples
    )
