"""The command ``verify``: verdicts for people, JSON for machines, exit codes for scripts."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TextIO

import typer

from verify import kernel
from verify.asynchronous.command import require_options
from verify.asynchronous.render import render as render_asynchronous
from verify.asynchronous.teccl import FlowReport
from verify.asynchronous.verdict import AsynchronousReport
from verify.certify import certificate, require_target
from verify.core.check import check
from verify.core.format import read_bounded
from verify.core.schedule import Schedule
from verify.core.verdict import Report, Verdict
from verify.device import command as device_command
from verify.errors import ArgumentError, FormatError, InputError, LatecomerError, SearchTimeout
from verify.families import TEXTS, Others, decode_any
from verify.loss.command import addition, check_options
from verify.output import EXACT_JSON, write_atomically
from verify.pipeline.check import check as check_pipeline
from verify.pipeline.format import encode as encode_pipeline
from verify.pipeline.render import render as render_pipeline
from verify.pipeline.schedule import PipelineSchedule
from verify.pipeline.verdict import PipelineReport
from verify.report.render import render, to_json
from verify.symbolic import all_sums, require_few_unknowns, smt2
from verify.viewer.command import require_html, write_page

EXIT = {Verdict.PROVED: 0, Verdict.REFUTED: 1, Verdict.UNKNOWN: 3}
MALFORMED = 2
WORST_FIRST = (MALFORMED, EXIT[Verdict.REFUTED], EXIT[Verdict.UNKNOWN], EXIT[Verdict.PROVED])

MAX_TIMEOUT_S = 1e6

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def verify(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCHEDULE...",
            help="Schedule files (.json[.gz|.zst]), PyTorch's CSV of a pipeline (.csv), or "
            "algorithms as MSCCL XML and plans of MSCCL++.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="One JSON object per file.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing; the exit code tells.")
    ] = False,
    z3: Annotated[
        bool, typer.Option("--z3", help="Add the second, independent proof by Z3.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds for --z3, and for --loss; no answer by then is unknown."),
    ] = 60.0,
    smt2_file: Annotated[
        Path | None,
        typer.Option(
            "--smt2",
            metavar="FILE",
            help="Also write Z3's question as SMT-LIB 2, for another solver (- is stdout, "
            "the report then goes to stderr; unsat means right).",
        ),
    ] = None,
    loss: Annotated[
        int | None,
        typer.Option(metavar="F", help="Also say what at most F lost transfers do to the result."),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="With --loss: draw what each lost transfer does."),
    ] = None,
    use_kernel: Annotated[
        Literal["coq"] | None,
        typer.Option(
            "--kernel", help="Also ask the checker extracted from the proofs (make proofs)."
        ),
    ] = None,
    certify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.v",
            help="Also write a file in which Coq's kernel proves this schedule right, and optimal "
            "where it is at the bound.",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Also write a page to look at, in one file."),
    ] = None,
    html_part: Annotated[
        str | None,
        typer.Option(
            metavar="FROM-TO", help="With --html: these chunks of a collective, or ranks of others."
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="MSCCL: look at buffers up to this size (64MiB)."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="MSCCL: messages that a FIFO holds, in place of the protocol's."),
    ] = None,
    device: Annotated[
        int | None, typer.Option(metavar="SETS", help="Also prove one kernel per rank (runs: 2).")
    ] = None,
) -> None:
    """Prove or refute schedules.

    Exit code: 0 proved, 1 refuted, 2 malformed input or unusable option, 3 unknown; of several
    files the worst (malformed, then refuted, then unknown).

    \b
    Examples:
      verify schedule.json
      verify --z3 --json schedule.json
      verify pipeline.json pytorch_schedule.csv
      verify algorithm.xml --max-bytes 64MiB
      verify schedule.json --smt2 question.smt2 && cvc5 question.smt2
      verify schedule.json --html schedule.html
      verify schedule.json --loss 2 --draw loss.svg
      verify schedule.json --device 2
      verify schedule.json --kernel coq
      verify schedule.json --certify proof.v && coqc -Q proofs/coq Latecomer proof.v
      verify -q *.json || echo "not all proved"
    """
    _require_options(files, timeout, smt2_file, json, certify)
    require_html(html, html_part, len(files))
    check_options(loss, draw, len(files))
    device_command.require_sets(device)
    largest = require_options(max_bytes, slots)
    if use_kernel is not None:
        kernel.program()
    report_to = sys.stderr if str(smt2_file) == "-" else sys.stdout
    codes = []
    for path in files:
        try:
            data = read_bounded(os.fspath(path))
            schedule = decode_any(path, data, largest, slots)
        except FormatError as error:
            codes.append(MALFORMED)
            if json and not quiet:
                _print_json(path, {"verdict": "malformed", "error": str(error)})
            elif not quiet:
                _print(f"{path}: MALFORMED\n  {error}", sys.stderr)
            continue
        report: Report | PipelineReport | Others
        if isinstance(schedule, Schedule):
            report = check(
                schedule, {"symbolic_sum": partial(all_sums, timeout_s=timeout)} if z3 else {}
            )
            if use_kernel is not None:
                report.results["coq_kernel"] = kernel.opinion(data, report, timeout)
            if certify is not None:
                proof = certificate(schedule, report, hashlib.sha256(data).hexdigest(), certify)
                write_atomically(certify, proof.encode())
            text = render(str(path), schedule, report)
            facts = to_json(schedule, report)
            if smt2_file is not None and report.results["well_formed"].verdict is Verdict.PROVED:
                _write_question(schedule, smt2_file)
            if loss is not None:
                losses = addition(str(path), schedule, report, loss, timeout, draw)
                text = f"{text}\n{losses.text}"
                facts = {**facts, "loss": losses.json}
                codes.append(EXIT[losses.verdict])
            if device is not None:
                kernels = device_command.addition(
                    schedule, report, device, data, timeout if use_kernel else None
                )
                text = f"{text}\n{kernels.text}"
                facts = {**facts, "device": kernels.json}
                codes.append(EXIT[kernels.verdict])
        else:
            _refuse(
                {
                    "--z3": z3,
                    "--smt2": smt2_file,
                    "--loss": loss,
                    "--certify": certify,
                    "--device": device,
                },
                path,
                schedule,
            )
            report, text = _of_programs(path, data, schedule, use_kernel, timeout)
            facts = report.to_json()
        write_page(html, html_part, path, data, schedule, report)
        codes.append(EXIT[report.verdict])
        if json and not quiet:
            _print_json(path, facts)
        elif not quiet:
            _print(text, report_to)
    raise typer.Exit(next(code for code in WORST_FIRST if code in codes))


def _require_options(
    files: list[Path], timeout: float, smt2_file: Path | None, json: bool, certify: Path | None
) -> None:
    """Refuse options that can't be met, before any file is read."""
    if not 0 < timeout <= MAX_TIMEOUT_S:  # false for nan, too
        raise ArgumentError("--timeout", timeout, f"must be above 0, at most {MAX_TIMEOUT_S:g} s")
    for name, target in [("--smt2", smt2_file), ("--certify", certify)]:
        if target is not None and len(files) != 1:
            raise ArgumentError(name, str(target), "needs exactly one schedule file")
    if str(smt2_file) == "-" and json:
        raise ArgumentError(
            "--smt2", "-", "can't share stdout with --json", "Name a file for the question."
        )
    if certify is not None:
        require_target(certify)


def _of_programs(
    path: Path,
    data: bytes,
    schedule: PipelineSchedule | Others,
    use_kernel: str | None,
    timeout: float,
) -> tuple[PipelineReport | Others, str]:
    """The report, and its text, on what has a program for each rank and no rounds."""
    if isinstance(schedule, FlowReport):
        _refuse({"--kernel": use_kernel}, path, schedule)
        return schedule, schedule.text(str(path))
    if isinstance(schedule, AsynchronousReport):
        if use_kernel is not None:
            schedule.results["coq_kernel"] = kernel.opinion_on_programs(schedule, timeout)
        return schedule, render_asynchronous(str(path), schedule)
    report = check_pipeline(schedule)
    if use_kernel is not None:
        text_of_file = data if path.suffix not in TEXTS else encode_pipeline(schedule)
        report.results["coq_kernel"] = kernel.opinion(text_of_file, report, timeout)
    return report, render_pipeline(str(path), schedule, report)


def _refuse(given: Mapping[str, object], path: Path, what: PipelineSchedule | Others) -> None:
    """Refuse options that are for another family of schedules."""
    names = {PipelineSchedule: "pipeline schedules", AsynchronousReport: "MSCCL algorithms"}
    family = names.get(type(what), "flows of TE-CCL")
    for name, value in given.items():
        if value:
            raise ArgumentError(name, str(path), f"is not for {family}")


def _print_json(path: Path, value: dict[str, object]) -> None:
    name = os.fsencode(path).decode(errors="backslashreplace")
    _print(EXACT_JSON.encode({"file": name, **value}).decode(), sys.stdout)


def _print(text: str, stream: TextIO) -> None:
    """Print at once; a reader who has gone away does not change the verdict."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _write_question(schedule: Schedule, path: Path) -> None:
    require_few_unknowns(schedule, str(path))
    if str(path) == "-":
        _print(smt2(schedule), sys.stdout)
    else:
        write_atomically(path, smt2(schedule).encode())


def main() -> None:
    """Entry point of the console command; a crash is no verdict, so it exits as unknown."""
    try:
        run(app)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT[Verdict.UNKNOWN])


def run(application: typer.Typer) -> None:
    """Run a command line; errors are one line on stderr, no traceback.

    Exit code 2 for what the user can fix in the command or its files, 1 for other failures.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # odd file names can be printed
    try:
        application()
    except LatecomerError as error:
        print(f"error: {error}", file=sys.stderr)
        codes = {InputError: MALFORMED, SearchTimeout: EXIT[Verdict.UNKNOWN]}
        sys.exit(next((code for kind, code in codes.items() if isinstance(error, kind)), 1))
