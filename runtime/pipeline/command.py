"""``python -m runtime pipeline``: a link turns slow in mid-run, and the pipeline adapts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verify.errors import ArgumentError

if TYPE_CHECKING:
    from runtime.pipeline.demo import Line, Setting
    from verify.pipeline import PipelineSchedule

LINK = re.compile(r"(\d{1,4})-(\d{1,4}):(\d{1,6}(?:\.\d{1,3})?)", re.ASCII)
STEPS = re.compile(r"(\d{1,6})-(\d{1,6})", re.ASCII)
SCALE, COLUMNS = 30, 96


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
      python -m runtime pipeline
      python -m runtime pipeline --slow 0-1:50 --during 5-20 --out out/
      python -m runtime pipeline --no-adapt
    """
    if out is not None and out.exists() and not out.is_dir():
        raise ArgumentError("--out", str(out), "must be a folder")
    if steps < 1:
        raise ArgumentError("--steps", steps, "must be at least 1")
    link, span = LINK.fullmatch(slow), STEPS.fullmatch(during)
    if link is None:
        raise ArgumentError("--slow", slow, "must be a link and a delay in ms, as 1-2:30")
    if span is None or int(span[1]) > int(span[2]):
        raise ArgumentError("--during", during, "must be first and last step, as 6-17")
    from runtime.pipeline.agent import Adaptation
    from runtime.pipeline.demo import Setting
    from runtime.pipeline.faults import Faults, both_ways

    chosen = _schedule(schedule, stages, microbatches)
    low, high, delay_ms = int(link[1]), int(link[2]), float(link[3])
    if abs(low - high) != 1 or max(low, high) >= chosen.stages:
        raise ArgumentError("--slow", slow, f"must join neighbours of 0..{chosen.stages - 1}")
    first, last = int(span[1]), int(span[2])
    faults = both_ways(low, high, latency_s=delay_ms / 1e3, first_step=first, last_step=last)
    setting = Setting(chosen, steps, Faults(faults), Adaptation() if adapt else None)
    raise typer.Exit(0 if _run(setting, out) else 1)


def _schedule(path: Path | None, stages: int, microbatches: int) -> PipelineSchedule:
    """That of the file, or zero-bubble's."""
    from runtime.pipeline.load import load, require_ranks
    from synth.pipeline.plan import plan
    from synth.pipeline.problem import make
    from verify.pipeline import uniform

    if path is not None:
        verified = load(path)
        require_ranks(verified, verified.schedule.stages)
        return verified.schedule
    if stages < 2:
        raise ArgumentError("--stages", stages, "must be at least 2")
    return plan(make(microbatches, uniform(stages), range(stages)), "zero-bubble").schedule


def _run(setting: Setting, out: Path | None) -> bool:
    """Print the run; whether all gradients were right."""
    import torch

    from runtime.pipeline.demo import run, sequential

    torch.set_num_threads(1)
    plan = setting.schedule
    what = f"{plan.stages} stages, {plan.microbatches} microbatches, {setting.steps} steps"
    print(f"{what}, {os.cpu_count()} cores; the delay is injected", flush=True)
    right = []
    chosen: dict[tuple[bool, str], list[Line]] = {}  # one step of each circumstance
    for lines, (fingerprints, loss) in zip(run(setting), list(sequential(setting)), strict=True):
        first, step = lines[0], lines[0].record.step
        right.append([line.gradients for line in lines] == fingerprints and lines[-1].loss == loss)
        for event in first.events:
            print(f"         {event.kind}: {event.text}")
        slow = any(setting.faults.delay_s(r, r + 1, step)[0] for r in range(plan.stages - 1))
        seconds = max(line.record.ended_s - line.record.began_s for line in lines)
        link, found = "slow link" if slow else "", "equal the sequential run"
        print(
            f"step {step:3d} {link:9} {seconds * 1e3:7.1f} ms  schedule {first.record.digest[:6]}  "
            f"loss {loss:.4f}  gradients {found if right[-1] else 'ARE WRONG'}  "
            f"{'#' * round(seconds * SCALE)}",
            flush=True,
        )
        if step:
            chosen[slow, first.record.digest] = lines  # the last one of its kind
    _timelines(chosen, out)
    print(f"gradients of {sum(right)} of {len(right)} steps equal the sequential run bit for bit")
    return all(right)


def _timelines(chosen: dict[tuple[bool, str], list[Line]], out: Path | None) -> None:
    """The measured timelines of some steps, as text and as files."""
    from runtime.pipeline.picture import bars, makespan_ms, side_by_side, text
    from verify.pipeline.picture import svg, trace

    records = {key: {line.rank: line.record for line in of} for key, of in chosen.items()}
    drawn = {key: bars(of) for key, of in records.items()}
    end_ms = max(map(makespan_ms, drawn.values()), default=1.0)
    sheets = []
    for (slow, digest), of in drawn.items():
        first = chosen[slow, digest][0]
        title = f"step {first.record.step}, {'slow link' if slow else 'no delay'}"
        print(f"\n{title}, schedule {digest[:6]}: {makespan_ms(of):.1f} ms")
        for rank, row in enumerate(text(of, COLUMNS, end_ms)):
            print(f"  rank {rank} {row}")
        sheets += side_by_side(title, first.schedule, records[slow, digest])
    print()
    if out is not None and sheets:
        out.mkdir(parents=True, exist_ok=True)
        (out / "timeline.svg").write_text(svg(sheets, "ms"))
        (out / "trace.json").write_text(trace(sheets, microseconds=1e3))
        print(f"planned and measured: {out / 'timeline.svg'}, {out / 'trace.json'}")
