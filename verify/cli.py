"""The command ``verify``: verdicts for people, JSON for machines, exit codes for scripts."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Literal

import typer

from latecomer.verify import families
from latecomer.verify.additions import Output, output_of
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from latecomer.verify.options import Options
from latecomer.verify.output import EXACT_JSON, print_now
from latecomer.verify.replacing import Force
from latecomer.verify.running import EXIT, MALFORMED, Version, run

WORST_FIRST = (MALFORMED, EXIT[Verdict.REFUTED], EXIT[Verdict.UNKNOWN], EXIT[Verdict.PROVED])

app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

PROOFS = "Further proofs"
LOOK = "What to look at"
SIZES = "Programs of thread blocks"
OUTPUT = "Files and output"

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="SCHEDULE...",
        help="Schedule files (.json[.gz|.zst]), PyTorch's CSV of a pipeline (.csv), or "
        "algorithms as MSCCL XML and plans of MSCCL++.",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="One JSON object per file.")
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", rich_help_panel=OUTPUT, help="Print nothing; the exit code tells."
    ),
]
Z3 = Annotated[
    bool,
    typer.Option("--z3", rich_help_panel=PROOFS, help="Add the second, independent proof by Z3."),
]
Timeout = Annotated[
    float,
    typer.Option(
        rich_help_panel=PROOFS,
        help="Seconds for --z3, and for --loss; no answer by then is unknown.",
    ),
]
Question = Annotated[
    Path | None,
    typer.Option(
        "--smt2",
        metavar="FILE",
        rich_help_panel=PROOFS,
        help="Also write Z3's question as SMT-LIB 2, for another solver (- is stdout, "
        "the report then goes to stderr; unsat means right).",
    ),
]
Losses = Annotated[
    int | None,
    typer.Option(
        metavar="F",
        rich_help_panel=LOOK,
        help="Also say what at most F lost transfers do to the result.",
    ),
]
Drawing = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.svg",
        rich_help_panel=LOOK,
        help="With --loss: draw what each lost transfer does.",
    ),
]
Kernel = Annotated[
    Literal["coq"] | None,
    typer.Option(
        "--kernel",
        rich_help_panel=PROOFS,
        help="Also ask the checker extracted from the proofs (make proofs).",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.v",
        rich_help_panel=PROOFS,
        help="Also write a file in which Coq's kernel proves this schedule right, and optimal "
        "where it is at the bound.",
    ),
]
Page = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.html", rich_help_panel=LOOK, help="Also write a page to look at, in one file."
    ),
]
PagePart = Annotated[
    str | None,
    typer.Option(
        metavar="FROM-TO",
        rich_help_panel=LOOK,
        help="With --html: these chunks of a collective, or ranks of others.",
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        rich_help_panel=SIZES,
        help="MSCCL: look at buffers up to this size (64MiB).",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=SIZES, help="MSCCL: messages that a FIFO holds, in place of the protocol's."
    ),
]
Device = Annotated[
    int | None,
    typer.Option(
        metavar="SETS", rich_help_panel=PROOFS, help="Also prove one kernel per rank (runs: 2)."
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        metavar="M",
        rich_help_panel=PROOFS,
        help="With --device: kernels inside M nodes of equally many ranks, transfers between them.",
    ),
]


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def verify(
    files: Files,
    json: Json = False,
    quiet: Quiet = False,
    z3: Z3 = False,
    timeout: Timeout = 60.0,
    smt2_file: Question = None,
    loss: Losses = None,
    draw: Drawing = None,
    use_kernel: Kernel = None,
    certify: Certificate = None,
    html: Page = None,
    html_part: PagePart = None,
    max_bytes: MaxBytes = None,
    slots: Slots = None,
    device: Device = None,
    nodes: Nodes = None,
    force: Force = False,
    show_version: Version = False,
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
      verify stages.json --device 2 --nodes 2
      verify schedule.json --kernel coq
      verify schedule.json --certify proof.v && coqc -Q proofs/coq Latecomer proof.v
      verify -q *.json || echo "not all proved"
    """
    options = Options(
        json=json,
        quiet=quiet,
        z3=z3,
        timeout_s=timeout,
        smt2=smt2_file,
        loss=loss,
        draw=draw,
        kernel=use_kernel is not None,
        certify=certify,
        html=html,
        html_part=html_part,
        max_bytes=max_bytes,
        slots=slots,
        device=device,
        nodes=nodes,
        force=force,
    )
    options.require_usable(files)

    codes = set()
    for path in files:
        codes |= _verify_file(path, options)
    raise typer.Exit(next(code for code in WORST_FIRST if code in codes))


def _verify_file(path: Path, options: Options) -> set[int]:
    """Print what is said of one file; the exit codes that this asks for."""
    try:
        parsed = families.read(path, options)
        report = families.check(parsed, options)
    except FormatError as error:
        _print_malformed(path, error, options)
        return {MALFORMED}

    output = output_of(parsed, report, options)
    _print_output(path, output, options)
    return {EXIT[verdict] for verdict in output.verdicts}


def _print_malformed(path: Path, error: FormatError, options: Options) -> None:
    if options.quiet:
        return
    if options.json:
        _print_json(path, {"verdict": "malformed", "error": str(error)})
    else:
        print_now(f"{path}: MALFORMED\n  {error}", sys.stderr)


def _print_output(path: Path, output: Output, options: Options) -> None:
    if options.quiet:
        return
    if options.json:
        _print_json(path, output.json)
    elif options.question_on_stdout:
        print_now(output.text, sys.stderr)
    else:
        print_now(output.text, sys.stdout)


def _print_json(path: Path, value: dict[str, object]) -> None:
    name = os.fsencode(path).decode(errors="backslashreplace")
    print_now(EXACT_JSON.encode({"file": name, **value}).decode(), sys.stdout)


def main() -> None:
    """Entry point of the console command; a crash is no verdict, so it exits as unknown."""
    try:
        run(app)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT[Verdict.UNKNOWN])
