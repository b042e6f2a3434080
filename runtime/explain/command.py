"""``latecomer explain``: which rank holds up a job, and why, from what its ranks have left."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from latecomer.runtime.explain.sources import read_sources

if TYPE_CHECKING:
    from latecomer.runtime.explain.verdicts import Verdict

SENTENCES = {
    "mismatch": "did something else than the others of the group",
    "absent": "never entered what others wait in",
    "stuck": "cannot get out of what all others have completed: look at this device",
    "cycle": "wait for each other, in groups that they use in different orders",
    "p2p": "send and receive past each other",
    "slow": "are behind the others, and go on",
    "hung": "and all others are in it, and none gets out: look at the network",
    "nodump": "left nothing to read, and what decides would be in there",
}
NOTHING = "ok: no operation is open, and all ranks did the same"


def explain(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE...",
            help="Dumps of torch's Flight Recorder, the rank's number in each name; reports of "
            "NCCL's RAS (ncclras, as text or JSON; two of them tell more than one).",
        ),
    ],
    world_size: Annotated[
        int | None,
        typer.Option(help="How many ranks the job has, where dumps of some may be missing.", min=1),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which rank holds up a job that hangs, and how that follows from its ranks' dumps.

    Exit code 0: nothing does; 1: something does; 2: there is nothing to read.

    \b
    Examples:
      latecomer explain dumps/
      latecomer explain dumps/nccl_trace_rank_* --world-size 16
      latecomer explain dumps/ --json
    """
    from latecomer.runtime.explain.findings import findings  # loads networkx

    sources = read_sources(paths, processes=os.cpu_count() or 1)
    for notice in sources.notices:
        print(notice, file=sys.stderr)
    found = findings(sources, world_size)
    if as_json:
        print(msgspec.json.encode({"verdicts": found}).decode())
    else:
        print("\n\n".join(as_text(verdict) for verdict in found))
    sys.exit(int(any(verdict.kind != "ok" for verdict in found)))


def as_text(verdict: Verdict) -> str:
    """A verdict for people: who, in what, and the way there."""
    from latecomer.runtime.explain.verdicts import names

    if verdict.ranks:
        lines = [f"{verdict.kind}: {names(verdict.ranks)} {SENTENCES[verdict.kind]}"]
    else:
        lines = [NOTHING if verdict.kind == "ok" else f"{verdict.kind}: nobody can be named"]
    if verdict.operation:
        lines.append(f"  in {verdict.operation}")
    if verdict.waiting:
        lines.append(f"  {verdict.waiting} other(s) wait for that")
    return "\n".join([*lines, *(f"    {line}" for line in verdict.witness)])
