"""The files that ``synth pipeline`` writes, and what it prints."""

from __future__ import annotations

import sys

from latecomer.synth.commands.options import encoded
from latecomer.synth.commands.pipeline.options import PipelineOptions
from latecomer.synth.commands.pipeline.search import SearchResult
from latecomer.synth.pipeline import curves, show
from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.compare import DelayComparison
from latecomer.verify.output import store, write_atomically
from latecomer.verify.pipeline import lowered, timeline, with_waits, write, write_csv
from latecomer.verify.pipeline.picture import Sheet, svg, trace


def write_files(planned: PipelineAnswer, options: PipelineOptions) -> list[str]:
    """Write everything asked for; the names of the files, as they are printed."""
    write(planned.schedule, options.output)
    written = [str(options.output)]

    if options.csv is not None:
        written.append(_write_csv(planned, options))

    if options.certificate is not None:
        lines = "".join(f"{line}\n" for line in planned.certificate)
        store(lines.encode(), options.certificate)
        written.append(str(options.certificate))

    if options.picture is not None:
        title = f"{planned.method}, makespan {planned.measures.makespan:g}"
        sheets = [Sheet(title, timeline(planned.schedule))]
        drawn = svg(sheets) if options.picture.suffix == ".svg" else trace(sheets)
        write_atomically(options.picture, drawn.encode())
        written.append(str(options.picture))

    return written


def _write_csv(planned: PipelineAnswer, options: PipelineOptions) -> str:
    """Write PyTorch's CSV; its name and form, as they are printed.

    A schedule with messages of its own has only the form with messages, whatever was asked for.
    """
    assert options.csv is not None
    schedule = planned.schedule
    if options.csv_form == "compute_only" and not schedule.has_messages:
        write_csv(schedule, options.csv, "compute_only")
        return f"{options.csv} (compute_only)"

    complete = lowered(schedule, planned.problem.costs)
    if options.csv_form == "compute_comms_waits":
        complete = with_waits(complete)
    write_csv(complete, options.csv, "compute_comms")
    return f"{options.csv} (compute_comms{', with waits' if complete.has_waits else ''})"


def print_result(result: SearchResult, written: list[str], *, json: bool) -> None:
    """Print what was found; ``written`` are the names of the files."""
    if result.robust is not None:
        as_json = show.robust_json(result.robust, written)
        as_text = show.robust_text(result.robust, written)
    else:
        as_json = show.as_json(result.planned, written)
        as_text = show.text(result.planned, written)
    print(encoded(as_json) if json else as_text)


def show_comparison(comparison: DelayComparison, options: PipelineOptions) -> None:
    """Draw the comparison where that is asked for, and print it."""
    if options.picture is not None:
        drawn = curves.svg(comparison, show.comparison_title(comparison))
        write_atomically(options.picture, drawn.encode())

    if options.quiet:
        return
    if options.json:
        print(encoded(show.comparison_json(comparison)))
    else:
        _print_comparison(comparison, options)


def _print_comparison(comparison: DelayComparison, options: PipelineOptions) -> None:
    from rich.console import Console

    # in a file or pipe rich would wrap the table at 80 columns
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(show.comparison_table(comparison))
    print(f"kept: what {comparison.method} makes for the first row, run in all of them")
    for why in comparison.unsuited.values():
        print(f"not there: {why}")
    if options.picture is not None:
        print(f"drawn: {options.picture}")
