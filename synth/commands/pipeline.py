"""``synth pipeline``.

Exit codes: 0 written (also where Ctrl-C ended the search: then the best so far), 1 no schedule was
made, 2 bad arguments, 130 interrupted before there was anything to write. Nothing is written unless
the exit code is 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from synth.commands.options import Json, Output, Quiet, refuse, refuse_json_if_quiet
from synth.pipeline.plan import METHODS
from synth.pipeline.portfolio import QUICK
from synth.pipeline.problem import Placement
from synth.pipeline.robust import Objective
from synth.pipeline.work import CsvForm, Request, Targets, carry_out

PICTURE = "Use --picture to draw it"
DURATIONS = "Stages"
LINKS = "Links"
SEARCH = "Search"
MORE = "More to write"


def pipeline(
    context: typer.Context,
    stages: Annotated[int, typer.Option(help="Stages of the pipeline.")],
    microbatches: Annotated[int, typer.Option(help="Microbatches of a step.")],
    forward: Annotated[
        str | None,
        typer.Option(
            metavar="TIME[,TIME...]",
            rich_help_panel=DURATIONS,
            help="Duration of F, one for all stages or one each, in any unit. Give all three "
            "durations, or none: then each is 1.",
        ),
    ] = None,
    backward: Annotated[
        str | None,
        typer.Option(
            metavar="TIME[,TIME...]", rich_help_panel=DURATIONS, help="Of I, input gradients."
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            metavar="TIME[,TIME...]", rich_help_panel=DURATIONS, help="Of W, weight gradients."
        ),
    ] = None,
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
            "Several with commas. A latency may be a range, 0..30: then as for --scenario.",
        ),
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINKS[@WEIGHT]",
            rich_help_panel=LINKS,
            help="Delays that may be met, instead of those of --slow on the same links (none: no "
            "others). Given several times, one order is made for all.",
        ),
    ] = None,
    robust: Annotated[
        Objective,
        typer.Option(
            rich_help_panel=LINKS,
            help="With --scenario: least makespan in the worst of them, or on average.",
        ),
    ] = "worst",
    method: Annotated[
        str,
        typer.Option(
            rich_help_panel=SEARCH,
            help="best: all quick methods, then CP-SAT if there is a gap to the lower bound; "
            f"or one of {', '.join(METHODS[1:])}.",
        ),
    ] = "best",
    time_limit: Annotated[
        float, typer.Option(metavar="SECONDS", rich_help_panel=SEARCH, help="For the search.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(rich_help_panel=SEARCH, help="Of the search.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=SEARCH, help="Threads of the solver (default: one per core, at most 8)."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            rich_help_panel=MORE,
            help="Write no schedule, but print all methods while the delays of --slow grow; "
            "--picture draws it.",
        ),
    ] = False,
    factors: Annotated[
        str,
        typer.Option(
            metavar="X[,X...]",
            rich_help_panel=MORE,
            help="With --compare: so many times the delays.",
        ),
    ] = "0,0.25,0.5,0.75,1",
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=MORE, help="Also write PyTorch's CSV."),
    ] = None,
    csv_form: Annotated[
        CsvForm,
        typer.Option(
            rich_help_panel=MORE, help="With --csv: computation alone, or every SEND and RECV, too."
        ),
    ] = "compute_only",
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=MORE,
            help="Also draw it (.svg), or write a trace for Perfetto (.trace.json).",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=MORE,
            help="Also write a refutation of every shorter schedule, which the checker that is "
            "proved in Coq accepts.",
        ),
    ] = None,
    output: Output = Path("pipeline.json"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make the pipeline schedule with the shortest step for given durations, delays and memory.

    \b
    Examples:
      synth pipeline --stages 8 --microbatches 24 --forward 8 --backward 10 --weight 5 --slow 6-7:30
      synth pipeline --stages 8 --microbatches 24 --slow 6-7:3,2-3:1.2 --memory 8 -o p.json
      synth pipeline --stages 4 --microbatches 12 --slow all:0:0.5:half
      synth pipeline --stages 8 --virtual 2 --microbatches 8 --method interleaved-1f1b
      synth pipeline --stages 4 --microbatches 8 --csv p.csv --picture p.svg
      synth pipeline --stages 4 --microbatches 12 --scenario none@3 --scenario 0-1:3 --robust mean
      synth pipeline --stages 8 --microbatches 24 --slow 6-7:3 --compare --picture delay.svg
    """
    refuse_json_if_quiet(context, quiet=quiet)
    if compare:
        refuse(context, ["output"], "has no use with --compare: no schedule is written", PICTURE)
    else:
        refuse(context, ["factors"], "is used only with --compare", "Add --compare")
    if csv is None:
        refuse(context, ["csv_form"], "is used only with --csv", "Add --csv FILE")
    if compare or scenario or method in ("heuristic", *QUICK):
        refuse(context, ["certificate"], "is for one schedule of --method best or cp-sat", "")
    if virtual == 1 and placement == "loop":
        refuse(context, ["placement"], "has no use with one stage per rank", "Add --virtual 2")
    if method in ("heuristic", *QUICK):
        unasked = f"has no use with --method {method}: no solver is asked"
        refuse(context, ["time_limit", "seed", "workers"], unasked, "Use --method best")
    if not scenario and not any(".." in links for links in slow or []):
        refuse(context, ["robust"], "is used only with --scenario", "Add --scenario LINKS")
    request = Request(
        stages=stages,
        microbatches=microbatches,
        durations={"--forward": forward, "--backward": backward, "--weight": weight},
        memory=memory,
        virtual=virtual,
        placement=placement,
        slow=slow or [],
        scenario=scenario or [],
        robust=robust,
        method=method,
        time_limit_s=time_limit,
        seed=seed,
        workers=workers,
        factors=factors if compare else None,
    )
    carry_out(request, Targets(output, csv, csv_form, picture, certificate, json, quiet))
