"""The options of ``synth pipeline``, and which of them can't be combined."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from latecomer.synth.commands.options import refuse, refuse_json_if_quiet, require_writable
from latecomer.synth.pipeline.plan import METHODS
from latecomer.synth.pipeline.portfolio import QUICK
from latecomer.synth.pipeline.problem import Placement
from latecomer.synth.pipeline.robust import Objective
from latecomer.verify.errors import ArgumentError
from latecomer.verify.replacing import CERTIFICATE, DRAWING, PYTORCH_CSV, TIMELINE

CsvForm = Literal["compute_only", "compute_comms", "compute_comms_waits"]

WITHOUT_SOLVER = ("heuristic", *QUICK)
"""The methods that ask no solver."""

DURATIONS = "Stages"
LINKS = "Links"
SEARCH = "Search"
MORE = "More to write"

StagesOption = Annotated[int, typer.Option(help="Stages of the pipeline.")]
MicrobatchesOption = Annotated[int, typer.Option(help="Microbatches of a step.")]
ForwardOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME[,TIME...]",
        rich_help_panel=DURATIONS,
        help="Duration of F, one for all stages or one each, in any unit. Give all three "
        "durations, or none: then each is 1.",
    ),
]
BackwardOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME[,TIME...]", rich_help_panel=DURATIONS, help="Of I, input gradients."
    ),
]
WeightOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME[,TIME...]", rich_help_panel=DURATIONS, help="Of W, weight gradients."
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="K[,K...]",
        rich_help_panel=DURATIONS,
        help="Activations that a rank can hold, one limit for all or one each: F takes 1, I "
        "and W give 1/2 back each (default: no limit).",
    ),
]
VirtualOption = Annotated[int, typer.Option(rich_help_panel=DURATIONS, help="Stages on each rank.")]
PlacementOption = Annotated[
    Placement,
    typer.Option(
        rich_help_panel=DURATIONS,
        help="With --virtual: round robin (loop), or there and back (vee).",
    ),
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LINK:LATENCY[:OCCUPANCY[:half]]",
        rich_help_panel=LINKS,
        help="Links that take time: two ranks as 6-7, or all. A message holds the link for "
        "the occupancy (of its direction, or with half of both) and is there a latency later. "
        "Several with commas. A latency may be a range, 0..30: then as for --scenario.",
    ),
]
ScenarioOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LINKS[@WEIGHT]",
        rich_help_panel=LINKS,
        help="Delays that may be met, instead of those of --slow on the same links (none: no "
        "others). Given several times, one order is made for all.",
    ),
]
RobustOption = Annotated[
    Objective,
    typer.Option(
        rich_help_panel=LINKS,
        help="With --scenario: least makespan in the worst of them, or on average.",
    ),
]
MethodOption = Annotated[
    str,
    typer.Option(
        rich_help_panel=SEARCH,
        help="best: all quick methods, then CP-SAT if there is a gap to the lower bound; "
        f"or one of {', '.join(METHODS[1:])}.",
    ),
]
TimeLimitOption = Annotated[
    float, typer.Option(metavar="SECONDS", rich_help_panel=SEARCH, help="For the search.")
]
SeedOption = Annotated[int, typer.Option(rich_help_panel=SEARCH, help="Of the search.")]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=SEARCH, help="Threads of the solver (default: one per core, at most 8)."
    ),
]
CompareOption = Annotated[
    bool,
    typer.Option(
        "--compare",
        rich_help_panel=MORE,
        help="Write no schedule, but print all methods while the delays of --slow grow; "
        "--picture draws it.",
    ),
]
FactorsOption = Annotated[
    str,
    typer.Option(
        metavar="X[,X...]",
        rich_help_panel=MORE,
        help="With --compare: so many times the delays.",
    ),
]
CsvOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=MORE, help="Also write PyTorch's CSV."),
]
CsvFormOption = Annotated[
    CsvForm,
    typer.Option(
        rich_help_panel=MORE,
        help="With --csv: computation alone; or every SEND and RECV, too; or these, and the waits "
        "for them, without which PyTorch 2.15 and later don't take them.",
    ),
]
PictureOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=MORE,
        help="Also draw it (.svg), or write a trace for Perfetto (.trace.json).",
    ),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=MORE,
        help="Also write a refutation of every shorter schedule, which the checker that is "
        "proved in Coq accepts.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """All options as they were typed, or their defaults."""

    stages: int
    microbatches: int
    forward: str | None
    backward: str | None
    weight: str | None
    memory: str | None
    virtual: int
    placement: Placement
    slow: list[str]
    scenario: list[str]
    robust: Objective
    method: str
    time_limit_s: float
    seed: int
    workers: int | None
    compare: bool
    factors: str
    csv: Path | None
    csv_form: CsvForm
    picture: Path | None
    certificate: Path | None
    output: Path
    force: bool
    json: bool
    quiet: bool


def refuse_unused(context: typer.Context, options: PipelineOptions) -> None:
    """ArgumentError for an option that was typed and would have no effect beside the others."""
    refuse_json_if_quiet(context, quiet=options.quiet)

    if options.compare:
        requirement = "has no use with --compare: no schedule is written"
        refuse(context, ["output"], requirement, "Use --picture to draw it")
    else:
        refuse(context, ["factors"], "is used only with --compare", "Add --compare")

    if options.csv is None:
        refuse(context, ["csv_form"], "is used only with --csv", "Add --csv FILE")

    asks_no_solver = options.method in WITHOUT_SOLVER
    if options.compare or options.scenario or asks_no_solver:
        refuse(context, ["certificate"], "is for one schedule of --method best or cp-sat", "")

    if options.virtual == 1 and options.placement == "loop":
        refuse(context, ["placement"], "has no use with one stage per rank", "Add --virtual 2")

    if asks_no_solver:
        requirement = f"has no use with --method {options.method}: no solver is asked"
        refuse(context, ["time_limit", "seed", "workers"], requirement, "Use --method best")

    has_range = any(".." in links for links in options.slow)
    if not options.scenario and not has_range:
        refuse(context, ["robust"], "is used only with --scenario", "Add --scenario LINKS")

    if options.compare and options.csv is not None:
        raise ArgumentError("--csv", str(options.csv), "is not for --compare: nothing is planned")


def refuse_with_ranges(options: PipelineOptions) -> None:
    """ArgumentError for what can't be asked where a latency of ``--slow`` is a range."""
    if options.scenario or options.compare:
        beside = "--scenario" if options.scenario else "--compare"
        raise ArgumentError("--slow", ",".join(options.slow), f"can't have a range with {beside}")

    if options.robust == "mean":
        raise ArgumentError("--robust", "mean", "needs --scenario: a range has no weights")


def refuse_method(options: PipelineOptions, *, several_scenarios: bool) -> None:
    """ArgumentError for a method that there is not, or that can't plan what is asked."""
    if several_scenarios and options.method != "best":
        raise ArgumentError("--method", options.method, "must be best for several scenarios")

    if options.method not in METHODS:
        raise ArgumentError("--method", options.method, f"must be one of {', '.join(METHODS)}")

    if options.compare and options.scenario:
        raise ArgumentError("--scenario", options.scenario, "is not for --compare")


def require_targets(options: PipelineOptions) -> None:
    """ArgumentError for a file that can't be written, or a picture of an unknown kind."""
    if not options.compare:
        require_writable(options.output, force=options.force)

    is_drawn = options.picture is not None and options.picture.suffix == ".svg"
    also_written = (
        ("--csv", options.csv, PYTORCH_CSV),
        ("--picture", options.picture, DRAWING if is_drawn else TIMELINE),
        ("--certificate", options.certificate, CERTIFICATE),
    )
    for option, path, kind in also_written:
        if path is not None:
            require_writable(path, option, kind=kind, force=options.force)

    kinds = [".svg"] if options.compare else [".svg", ".json"]
    if options.picture is not None and options.picture.suffix not in kinds:
        raise ArgumentError("--picture", str(options.picture), f"must end in {' or '.join(kinds)}")
