"""What the commands share: options, what is refused before long work, progress, output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from latecomer.synth.cost import Setting
from latecomer.synth.show import Collective
from latecomer.synth.solvers.choice import SolverName
from latecomer.synth.straggler.search import Progress
from latecomer.synth.units import parse_bandwidth, parse_bytes, parse_seconds
from latecomer.verify.core.format import decode, read_bounded
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError, FormatError
from latecomer.verify.output import EXACT_JSON, encode, store
from latecomer.verify.replacing import SCHEDULE, FileKind, require_replaceable

# Exit codes (docs/reference/commands.md); 130 is what shells report for SIGINT.
NOTHING_FOUND = 3
INTERRUPTED = 130

JSON_ENDINGS = (".json", ".json.gz", ".json.zst")

SEARCH = "How it is searched"
PREDICTION = "Predicted times"
OUTPUT = "Files and output"
"""The groups of options in a command's help; all others are what is asked for."""

Ranks = Annotated[int, typer.Option("--n", "-n", "--ranks", help="Number of ranks.")]
Output = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        rich_help_panel=OUTPUT,
        help="Where to write (.json[.gz|.zst]).",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=OUTPUT, help="Print one JSON object.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=OUTPUT, help="Print nothing but errors.")
]
Buffer = Annotated[
    str | None,
    typer.Option(
        "--bytes",
        metavar="SIZE",
        rich_help_panel=PREDICTION,
        help="Size of the whole buffer, as 1GiB.",
    ),
]

Solver = Annotated[
    SolverName, typer.Option(rich_help_panel=SEARCH, help="The solver that searches.")
]
Seed = Annotated[int, typer.Option(rich_help_panel=SEARCH, help="Random seed.")]
Effort = Annotated[
    float,
    typer.Option(
        metavar="TIMES",
        rich_help_panel=SEARCH,
        help="Search so many times as long before giving way: counted in work, not in seconds, so "
        "that the same command writes the same file on any machine.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=SEARCH,
        help="Also stop by the clock (default: no clock). What is written then depends on how fast "
        "the machine is.",
    ),
]


def latency(default: str) -> Any:
    """The option ``--alpha``."""
    return typer.Option(
        metavar="TIME",
        rich_help_panel=PREDICTION,
        help=f"Latency of a message (default: {default}).",
    )


def bandwidth_each_way(default: str) -> Any:
    """The option ``--bandwidth``."""
    text = f"Bandwidth of a rank, each direction (default: {default})."
    return typer.Option(metavar="RATE", rich_help_panel=PREDICTION, help=text)


def refuse(context: typer.Context, names: Iterable[str], requirement: str, remedy: str) -> None:
    """Raise ArgumentError for the first of these parameters that was typed."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = next(p for p in context.command.params if p.name == name)
            flag = next(name for name in option.opts if name.startswith("--"))
            raise ArgumentError(flag, context.params[name], requirement, remedy)


def refuse_json_if_quiet(context: typer.Context, *, quiet: bool) -> None:
    """``--quiet`` prints nothing, so nothing can be JSON."""
    if quiet:
        refuse(context, ["json"], "has no use with --quiet", "Leave one of them out")


def parse_setting(
    context: typer.Context,
    buffer: str | None,
    alpha: str | None,
    bandwidth: str | None,
    default: tuple[str, str],
) -> Setting | None:
    """The numbers for the prediction; None without ``--bytes``, and then there is no use for them.

    Args:
        default: latency and bandwidth where none are given.
    """
    if buffer is None:
        refuse(context, ["alpha", "bandwidth"], "is used only with --bytes", "Add --bytes SIZE")
        return None
    return Setting(
        parse_bytes("--bytes", buffer),
        parse_seconds("--alpha", alpha or default[0]),
        parse_bandwidth("--bandwidth", bandwidth or default[1]),
    )


def write_and_show(
    family: ModuleType, output: Path, answer: Collective, *context: Any, json: bool, quiet: bool
) -> None:
    """Write the schedule, then show it as its family does with its ``text`` or ``facts``."""
    replaced = write_schedule(answer.schedule, output)
    if quiet:
        return
    if json:
        print(encoded({**family.facts(str(output), answer, *context), "replaced": replaced}))
    else:
        print(family.text(str(output), answer, *context) + replaced_line(replaced))


def write_schedule(schedule: Schedule, output: Path) -> str | None:
    """Write it; what it has replaced, in words, if that was another schedule."""
    data = encode(schedule)
    before = None
    if output.is_file():
        with suppress(FormatError):
            old_data = read_bounded(str(output))
            if old_data != data:
                before = decode(old_data, str(output))
    store(data, output)

    if before is None:
        return None
    text = f"{before.kind} of {before.ranks} ranks in {before.chunks} chunks"
    if before.late:
        text += f", late rank {', '.join(map(str, before.late))}"
    return text


def replaced_line(replaced: str | None) -> str:
    """The line that says what a file was before; empty if there is nothing to say."""
    return "" if replaced is None else f"\n  replaced    {replaced}"


def require_writable(
    path: Path,
    option: str = "--output",
    *,
    kind: FileKind = SCHEDULE,
    inputs: Iterable[Path] = (),
    force: bool,
) -> None:
    """Refuse a hopeless output path before a long search, not after it.

    Args:
        path: where the command writes; ``option``: by which it was named.
        kind: what it writes there.
        inputs: the files that it reads.
        force: whether a file may be replaced that no such command has written.

    Raises:
        ArgumentError: it can't be written, or something would be lost.
    """
    problem = ""
    if path.is_dir():
        problem = "is a directory"
    elif not path.parent.is_dir():
        problem = f"can't be written: there is no directory {path.parent}"
    elif kind is SCHEDULE and not path.name.endswith(JSON_ENDINGS) and _is_for_a_file(path):
        problem = f"is to hold JSON: it must end in {' or '.join(JSON_ENDINGS)}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "can't be written: permission denied"
    if problem:
        raise ArgumentError(option, str(path), problem)
    require_replaceable(option, path, kind, inputs=inputs, force=force)


def _is_for_a_file(path: Path) -> bool:
    """Not for a device, or a pipe, which has a name of its own."""
    return not path.is_relative_to("/dev") and (path.is_file() or not path.exists())


@contextmanager
def searching(quiet: bool) -> Iterator[Progress]:
    """A spinner on stderr that says what is being tried; nothing where nobody watches."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:
        yield lambda text: status.update(f"searching: {text}")


@contextmanager
def nothing_written_if_interrupted() -> Iterator[None]:
    """Turn Ctrl-C into one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def encoded(value: Any) -> str:
    """One line of JSON."""
    return EXACT_JSON.encode(value).decode()
