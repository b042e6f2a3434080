"""``latecomer pipeline``: a link turns slow in mid-run, and the pipeline adapts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latecomer.verify.errors import ArgumentError

if TYPE_CHECKING:
    from latecomer.verify.pipeline import PipelineSchedule

LINK = re.compile(r"(\d{1,4})-(\d{1,4}):(\d{1,6}(?:\.\d{1,3})?)", re.ASCII)
STEPS = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)


def pipeline(
    stages: Annotated[int, typer.Option(help="Processes, each a stage.")] = 4,
    microbatches: Annotated[int, typer.Option(help="Per step.")] = 12,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 24,
    slow: Annotated[str, typer.Option(help="The link and its delay in ms, as 1-2:30.")] = "1-2:30",
    during: Annotated[str, typer.Option(help="Steps in which it is slow.")] = "6-17",
    schedule: Annotated[Path | None, typer.Option(help="A file; default: zero-bubble.")] = None,
    adapt: Annotated[bool, typer.Option(help="Whether the pipeline adapts.")] = True,
    out: Annotated[Path | None, typer.Option(help="For timeline.svg and trace.json.")] = None,
) -> None:
    """Train a small transformer over pipeline processes while a link turns slow and recovers.

    \b
    Every step is printed with its time, what the adaptation noticed and did, and whether the
    gradients are bit for bit those of a sequential run. The delay is injected on purpose.

    \b
    Examples:
      latecomer pipeline
      latecomer pipeline --slow 0-1:50 --during 5-20 --out out/
      latecomer pipeline --no-adapt
    """
    if out is not None and out.exists() and not out.is_dir():
        raise ArgumentError("--out", str(out), "must be a folder")
    if steps < 1:
        raise ArgumentError("--steps", steps, "must be at least 1")
    link = LINK.fullmatch(slow)
    span = STEPS.fullmatch(during)
    if link is None:
        raise ArgumentError("--slow", slow, "must be a link and a delay in ms, as 1-2:30")
    if span is None or int(span[1]) > int(span[2]):
        raise ArgumentError("--during", during, "must be first and last step, as 6-17")
    from latecomer.runtime.pipeline.agent import Adaptation
    from latecomer.runtime.pipeline.demo import Setting, show
    from latecomer.runtime.pipeline.transport import Faults, both_ways

    chosen = _schedule(schedule, stages, microbatches)
    low = int(link[1])
    high = int(link[2])
    delay_ms = float(link[3])
    if abs(low - high) != 1 or max(low, high) >= chosen.stages:
        raise ArgumentError("--slow", slow, f"must join neighbours of 0..{chosen.stages - 1}")
    first = int(span[1])
    last = int(span[2])
    faults = both_ways(low, high, latency_s=delay_ms / 1e3, first_step=first, last_step=last)
    setting = Setting(chosen, steps, Faults(faults), Adaptation() if adapt else None)
    raise typer.Exit(0 if show(setting, out) else 1)


def _schedule(path: Path | None, stages: int, microbatches: int) -> PipelineSchedule:
    from latecomer.runtime.pipeline.load import load, require_ranks
    from latecomer.synth.pipeline.plan import plan
    from latecomer.synth.pipeline.problem import make
    from latecomer.verify.pipeline import uniform

    if path is not None:
        verified = load(path)
        require_ranks(verified, verified.schedule.stages)
        return verified.schedule
    if stages < 2:
        raise ArgumentError("--stages", stages, "must be at least 2")
    return plan(make(microbatches, uniform(stages), range(stages)), "zero-bubble").schedule
