"""The command ``synth pipeline``: what is typed, and what is done with it."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from latecomer.synth.commands.options import (
    INTERRUPTED,
    Json,
    Output,
    Quiet,
    nothing_written_if_interrupted,
    searching,
)
from latecomer.synth.commands.pipeline import options as typed
from latecomer.synth.commands.pipeline.options import PipelineOptions
from latecomer.synth.commands.pipeline.output import print_result, show_comparison, write_files
from latecomer.synth.commands.pipeline.request import Request, read_request
from latecomer.synth.commands.pipeline.search import search, search_comparison
from latecomer.verify.replacing import Force


def pipeline(
    context: typer.Context,
    stages: typed.StagesOption,
    microbatches: typed.MicrobatchesOption,
    forward: typed.ForwardOption = None,
    backward: typed.BackwardOption = None,
    weight: typed.WeightOption = None,
    memory: typed.MemoryOption = None,
    virtual: typed.VirtualOption = 1,
    placement: typed.PlacementOption = "loop",
    slow: typed.SlowOption = None,
    scenario: typed.ScenarioOption = None,
    robust: typed.RobustOption = "worst",
    method: typed.MethodOption = "best",
    time_limit: typed.TimeLimitOption = 60.0,
    seed: typed.SeedOption = 0,
    workers: typed.WorkersOption = None,
    compare: typed.CompareOption = False,
    factors: typed.FactorsOption = "0,0.25,0.5,0.75,1",
    csv: typed.CsvOption = None,
    csv_form: typed.CsvFormOption = "compute_only",
    picture: typed.PictureOption = None,
    certificate: typed.CertificateOption = None,
    output: Output = Path("pipeline.json"),
    force: Force = False,
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
    options = PipelineOptions(
        stages=stages,
        microbatches=microbatches,
        forward=forward,
        backward=backward,
        weight=weight,
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
        compare=compare,
        factors=factors,
        csv=csv,
        csv_form=csv_form,
        picture=picture,
        certificate=certificate,
        output=output,
        force=force,
        json=json,
        quiet=quiet,
    )
    run_pipeline(context, options)


def run_pipeline(context: typer.Context, options: PipelineOptions) -> None:
    """Do what is asked; ArgumentError before anything is searched or written."""
    typed.refuse_unused(context, options)
    typed.require_targets(options)
    request = read_request(options)

    if options.compare:
        _compare(request, options)
    else:
        _make(request, options)


def _make(request: Request, options: PipelineOptions) -> None:
    """Search one schedule, write it, print what it is worth."""
    with nothing_written_if_interrupted(), searching(options.quiet) as progress:
        with_certificate = options.certificate is not None
        result = search(request, progress, with_certificate=with_certificate)

    written = write_files(result.planned, options)
    if result.planned.interrupted:
        print("interrupted: this is the best so far", file=sys.stderr)
    if not options.quiet:
        print_result(result, written, json=options.json)


def _compare(request: Request, options: PipelineOptions) -> None:
    """Print all methods while the delays grow."""
    with searching(options.quiet) as progress:
        result = search_comparison(request, progress)

    if result.comparison is not None:
        show_comparison(result.comparison, options)
    if result.interrupted:
        print("interrupted: the rows above are what was done", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
