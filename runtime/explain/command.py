"""``latecomer explain``: which rank holds up a job, and why; ``latecomer dump``: for what to ask.

What reads, asks and decides is imported by the command that does so: all commands are known at the
start of every one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from latecomer.verify.output import write_atomically
from latecomer.verify.replacing import DRAWING, PAGE, Force, require_replaceable

if TYPE_CHECKING:
    from latecomer.runtime.explain.verdicts import Verdict

SENTENCES = {
    "mismatch": "did something else than the others of the group",
    "absent": "never entered what others wait in",
    "stuck": "cannot get out of what all others have completed: look at this device",
    "cycle": "wait for each other, in groups that they use in different orders",
    "p2p": "send and receive past each other",
    "slow": "kept the others waiting, and went on",
    "hung": "and all others are in it, and none gets out: look at the network",
    "nodump": "left nothing of that moment, and what decides would be in there",
}
NOTHING = "ok: no rank holds up the others"


def explain(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE...",
            help="Dumps of torch's Flight Recorder, the rank's number in each name; reports of "
            "NCCL's RAS (ncclras, as text or JSON; two of them tell more than one); the directory "
            "of latecomer.watch; what NCCL's Inspector wrote.",
        ),
    ],
    world_size: Annotated[
        int | None,
        typer.Option(help="How many ranks the job has, where dumps of some may be missing.", min=1),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw who waits for whom.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write all of it as a page.")
    ] = None,
    force: Force = False,
) -> None:
    """Say which rank holds up a job, and how that follows from what its ranks have left behind.

    Exit code 0: nothing does; 1: something does; 2: there is nothing to read.

    \b
    Examples:
      latecomer explain dumps/
      latecomer explain dumps/nccl_trace_rank_* --world-size 16
      latecomer explain watched/
      latecomer explain dumps/ --json
      latecomer explain dumps/ --html waits.html --picture waits.svg
    """
    from latecomer.runtime.explain.findings import findings, places
    from latecomer.runtime.explain.sources import read_sources

    if picture is not None:
        require_replaceable("--picture", picture, DRAWING, inputs=paths, force=force)
    if html is not None:
        require_replaceable("--html", html, PAGE, inputs=paths, force=force)

    sources = read_sources(paths, processes=os.cpu_count() or 1)
    for notice in sources.notices:
        print(notice, file=sys.stderr)
    found = findings(sources, world_size)
    texts = [as_text(verdict) for verdict in found]
    if as_json:
        print(msgspec.json.encode({"verdicts": found}).decode())
    else:
        print("\n\n".join(texts))
    if picture is not None or html is not None:
        from latecomer.runtime.explain.page import as_page
        from latecomer.runtime.explain.picture import as_picture

        title = texts[0].split("\n", 1)[0]
        standing = places(sources, found, world_size)
        if picture is not None:
            write_atomically(picture, as_picture(title, standing).encode())
        if html is not None:
            write_atomically(html, as_page(title, texts, standing).encode())
    sys.exit(int(any(verdict.kind != "ok" for verdict in found)))


def as_text(verdict: Verdict) -> str:
    """A verdict for people: who, in what, and the way there."""
    from latecomer.runtime.telemetry.rank_names import names

    if verdict.ranks:
        lines = [f"{verdict.kind}: {names(verdict.ranks)} {SENTENCES[verdict.kind]}"]
    else:
        lines = [NOTHING if verdict.kind == "ok" else f"{verdict.kind}: nobody can be named"]
    if verdict.operation:
        lines.append(f"  in {verdict.operation}")
    if verdict.waiting:
        lines.append(f"  {verdict.waiting} other(s) wait for that")
    return "\n".join([*lines, *(f"    {line}" for line in verdict.witness)])


def dump(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="That of latecomer.serve_dumps(DIR).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the dumps go.")] = Path(
        "dumps"
    ),
    timeout: Annotated[
        float, typer.Option(help="Seconds for each rank.", min=0.1, max=3600)
    ] = 10.0,
) -> None:
    """Ask all ranks of a running job for their Flight Recorders' dumps; it need not go on for that.

    Exit code 0: all have answered; 1: some have not, and are named; 2: there is nothing to ask.

    \b
    Examples:
      latecomer dump servers/
      latecomer dump servers/ -o dumps && latecomer explain dumps/
    """
    from latecomer.runtime.explain.fetching import ask_all, read_files

    served = list(read_files(directory))
    world_size = served[0].world_size
    answers = ask_all(served, timeout)
    output.mkdir(parents=True, exist_ok=True)
    for answer in answers:
        rank = answer.served.rank
        if answer.problem:
            where = f"process {answer.served.process} on {answer.served.host}"
            print(f"rank {rank} ({where}): {answer.problem}", file=sys.stderr)
        else:
            path = output / f"rank_{rank}.json"
            path.write_bytes(msgspec.json.encode(answer.dump))
    absent = set(range(world_size)) - {each.rank for each in served}
    for rank in sorted(absent):
        print(f"rank {rank}: has no file in {directory}", file=sys.stderr)
    answered = sum(not answer.problem for answer in answers)
    print(f"{answered} of {world_size} ranks answered: {output}")
    print(f"latecomer explain {output} --world-size {world_size}")
    sys.exit(int(answered < world_size))
