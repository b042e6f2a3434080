"""``synth program``: one rank's own part of the closed form. Exit codes: 0, 2 bad arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from latecomer.synth import show
from latecomer.synth.commands.late_ranks import LINK
from latecomer.synth.commands.options import (
    Buffer,
    Json,
    Ranks,
    bandwidth_each_way,
    encoded,
    latency,
    parse_setting,
    refuse,
)
from latecomer.synth.cost import best_chunks
from latecomer.synth.straggler.program import OwnRound, OwnTransfer, Program
from latecomer.synth.straggler.program import program as make_program
from latecomer.verify.errors import MissingArgument


def program(
    context: typer.Context,
    n: Ranks,
    rank: Annotated[int, typer.Option(help="Whose program.")],
    late: Annotated[int | None, typer.Option(help="The late rank (default: the last).")] = None,
    chunks: Annotated[int | None, typer.Option(help="Chunks of the whole buffer.")] = None,
    buffer: Buffer = None,
    alpha: Annotated[str | None, latency(LINK[0])] = None,
    bandwidth: Annotated[str | None, bandwidth_each_way(LINK[1])] = None,
    json: Json = False,
) -> None:
    """Print what one rank does in the closed form for one late rank; no file of all ranks is made.

    \b
    Examples:
      synth program --n 8 --rank 3 --chunks 4
      synth program --n 1000000 --rank 5 --bytes 1GiB --json
    """
    setting = parse_setting(context, buffer, alpha, bandwidth, LINK)
    if chunks is not None:
        refuse(context, ["buffer"], "has no use with --chunks", "Leave one of them out")
    elif setting is None:
        raise MissingArgument("--chunks", "the number of chunks", "Or give --bytes")
    else:
        chunks = best_chunks(n, setting.buffer_bytes, setting.link)
    made = make_program(n, rank, chunks=chunks, late=late)
    print(encoded(made) if json else "\n".join(_text(made)))


def _text(made: Program) -> Iterator[str]:
    yield (
        f"rank {made.rank} of {made.ranks} in {show.chunks(made.chunks)}, rank {made.late} late: "
        f"{len(made.waiting)} reduce_scatter + {len(made.completion)} completion rounds, "
        "optimal (theorem: ClosedForm.optimal, ClosedForm.own_program); verify proves files only"
    )
    for name, rounds in (("reduce_scatter", made.waiting), ("completion", made.completion)):
        for number, own in enumerate(rounds):
            if own != OwnRound(None, None):
                yield f"  {name} {number}: {', '.join(_steps(own))}"


def _steps(own: OwnRound) -> Iterator[str]:
    def step(verb: str, way: str, one: OwnTransfer) -> str:
        return f"{verb} chunk {one.chunk} {way} rank {one.peer} ({one.op})"

    if own.send is not None:
        yield step("send", "to", own.send)
    if own.receive is not None:
        yield step("receive", "from", own.receive)
