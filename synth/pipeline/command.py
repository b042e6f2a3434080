"""The command ``synth pipeline``.

Exit codes: 0 written (also where Ctrl-C ended the search: then the best so far), 1 no schedule was
made, 2 bad arguments, 130 interrupted before there was anything to write. Nothing is written unless
the exit code is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from synth.console import (
    Json,
    Quiet,
    encoded,
    nothing_written_if_interrupted,
    require_writable,
    searching,
)
from synth.limits import require_search
from synth.pipeline.options import links, one_or_each, parse_links
from synth.pipeline.plan import METHODS, Planned, Solver, plan
from synth.pipeline.problem import Placement, make, place
from synth.pipeline.show import as_json, text
from verify.errors import ArgumentError
from verify.format import write_atomically
from verify.pipeline import lowered, timeline, write, write_csv
from verify.pipeline.picture import Sheet, svg, trace
from verify.pipeline.schedule import Situation

CsvForm = Literal["compute_only", "compute_comms"]
DURATIONS, LINKS, SEARCH = "Stages", "Links", "Search"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(pipeline)


def pipeline(
    stages: Annotated[int, typer.Option(help="Stages of the pipeline.")],
    microbatches: Annotated[int, typer.Option(help="Microbatches of a step.")],
    forward: Annotated[
        str,
        typer.Option(
            metavar="TIME[,TIME...]",
            rich_help_panel=DURATIONS,
            help="Duration of F, one for all stages or one each, in any unit.",
        ),
    ] = "1",
    backward: Annotated[
        str,
        typer.Option(
            metavar="TIME[,TIME...]", rich_help_panel=DURATIONS, help="Of I, input gradients."
        ),
    ] = "1",
    weight: Annotated[
        str,
        typer.Option(
            metavar="TIME[,TIME...]", rich_help_panel=DURATIONS, help="Of W, weight gradients."
        ),
    ] = "1",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="K[,K...]",
            rich_help_panel=DURATIONS,
            help="Activations that a rank can hold, one limit for all or one each: F takes 1, I "
            "and W give 1/2 back each (default: no limit).",
        ),
    ] = None,
    virtual: Annotated[
        int, typer.Option(rich_help_panel=DURATIONS, help="Stages on each rank.")
    ] = 1,
    placement: Annotated[
        Placement,
        typer.Option(
            rich_help_panel=DURATIONS,
            help="With --virtual: round robin (loop), or there and back (vee).",
        ),
    ] = "loop",
    slow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINK:LATENCY[:OCCUPANCY[:half]]",
            rich_help_panel=LINKS,
            help="Links that take time: two ranks as 6-7, or all. A message holds the link for "
            "the occupancy (of its direction, or with half of both) and is there a latency later. "
            "Several with commas.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            rich_help_panel=SEARCH,
            help="best: all quick methods, then CP-SAT if there is a gap to the lower bound; "
            f"or one of {', '.join(METHODS[1:])}.",
        ),
    ] = "best",
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", rich_help_panel=SEARCH, help="For the solver.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(rich_help_panel=SEARCH, help="Of the solver.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=SEARCH, help="Threads of the solver (default: one per core, at most 8)."
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Where to write (.json[.gz|.zst])."),
    ] = Path("pipeline.json"),
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write it as PyTorch's CSV."),
    ] = None,
    csv_form: Annotated[
        CsvForm,
        typer.Option(help="With --csv: computation alone, or every SEND and RECV, too."),
    ] = "compute_only",
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also draw it (.svg), or write a trace for Perfetto (.trace.json).",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the pipeline schedule with the shortest step for given durations, delays and memory.

    \b
    Examples:
      synth pipeline --stages 8 --microbatches 24 --forward 8 --backward 10 --weight 5 \\
        --slow 6-7:30
      synth pipeline --stages 8 --microbatches 24 --slow 6-7:3,2-3:1.2 --memory 8 -o p.json
      synth pipeline --stages 4 --microbatches 12 --forward 8,8,9,10 --slow all:0:4:half
      synth pipeline --stages 8 --virtual 2 --microbatches 8 --method interleaved-1f1b
      synth pipeline --stages 4 --microbatches 8 --csv p.csv --picture p.svg
    """
    outputs = [("--output", output), ("--csv", csv), ("--picture", picture)]
    for option, path in outputs:
        if path is not None:
            require_writable(path, option)
    _require_picture(picture)
    solver = _solver(time_limit, seed, workers)
    rank_of = place(stages, virtual, placement)
    delays = parse_links("--slow", slow or [], rank_of)
    ranks = stages // virtual
    situation = Situation(
        forward=one_or_each("--forward", forward, stages, "stage"),
        backward=one_or_each("--backward", backward, stages, "stage"),
        weight=one_or_each("--weight", weight, stages, "stage"),
        links=links(delays),
        memory=None if memory is None else one_or_each("--memory", memory, ranks, "rank"),
    )
    problem = make(microbatches, situation, rank_of)
    with nothing_written_if_interrupted(), searching(quiet) as progress:
        planned = plan(problem, method, solver=solver, progress=progress)
    written = _write(planned, output, csv, csv_form, picture)
    if json and not quiet:
        print(encoded(as_json(planned, written)))
    elif not quiet:
        print(text(planned, written))


def _solver(time_limit_s: float, seed: int, workers: int | None) -> Solver:
    require_search(seed, time_limit_s, "cp-sat")
    if workers is None:
        return Solver(time_limit_s, seed)
    if not 1 <= workers <= 256:
        raise ArgumentError("--workers", workers, "must be in 1..256")
    return Solver(time_limit_s, seed, workers)


def _require_picture(path: Path | None) -> None:
    if path is not None and path.suffix not in (".svg", ".json"):
        raise ArgumentError("--picture", str(path), "must end in .svg or .trace.json")


def _write(
    planned: Planned, output: Path, csv: Path | None, csv_form: CsvForm, picture: Path | None
) -> list[str]:
    """Write everything asked for; the names of the files."""
    schedule, problem = planned.schedule, planned.problem
    written = [str(output)]
    write(schedule, output)
    if csv is not None:
        complete = csv_form == "compute_comms" or schedule.has_messages
        if complete:
            write_csv(lowered(schedule, problem.costs), csv, "compute_comms")
        else:
            write_csv(schedule, csv, "compute_only")
        written.append(f"{csv} ({'compute_comms' if complete else 'compute_only'})")
    if picture is not None:
        sheet = Sheet(
            f"{planned.method}: makespan {planned.measures.makespan:g}", timeline(schedule)
        )
        drawn = svg([sheet]) if picture.suffix == ".svg" else trace([sheet])
        write_atomically(picture, drawn.encode())
        written.append(str(picture))
    return written
