"""``synth export``: a schedule as a program for another executor, or as traces for a simulator.

A program is proved again, by its own reader and in its executor's semantics, before it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from synth.commands.options import (
    Buffer,
    Json,
    Quiet,
    encoded,
    refuse,
    refuse_json_if_quiet,
    require_writable,
)
from synth.export import chakra, msccl_xml, mscclpp
from synth.export.ends import with_chunks
from synth.units import parse_bytes
from verify.asynchronous.msccl import verify_xml
from verify.asynchronous.mscclpp import verify_plan
from verify.core.check import check
from verify.core.format import read
from verify.core.verdict import Verdict
from verify.errors import ArgumentError, ScheduleRefused, SynthesisError
from verify.output import write_atomically

Target = Literal["msccl-xml", "mscclpp", "chakra"]
ENDINGS = {"msccl-xml": ".xml", "mscclpp": ".json"}


def export(
    context: typer.Context,
    schedule: Annotated[Path, typer.Argument(metavar="SCHEDULE", help="Of an AllReduce.")],
    to: Annotated[Target, typer.Option("--to", help="Whose executor is to run it.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Where to write; for chakra FILE.<rank>.et."
        ),
    ],
    chunks: Annotated[
        int | None,
        typer.Option(
            help="Chunks of the written program, at least the schedule's (default: as many). "
            "Executors use it only where these divide the buffer's count."
        ),
    ] = None,
    protocol: Annotated[
        msccl_xml.Protocol, typer.Option(help="MSCCL's protocol (msccl-xml).")
    ] = "Simple",
    buffer: Buffer = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a proved schedule as a program for MSCCL or MSCCL++, or as Chakra traces.

    \b
    Examples:
      synth export schedule.json --to msccl-xml -o allreduce.xml
      synth export schedule.json --to msccl-xml --protocol LL --chunks 16 -o allreduce.xml
      synth export schedule.json --to mscclpp -o plan.json
      synth export schedule.json --to chakra --bytes 1GiB -o trace
    """
    require_writable(output)
    refuse_json_if_quiet(context, quiet=quiet)
    if to != "msccl-xml":
        refuse(context, ["protocol"], "is used only with --to msccl-xml", "Leave it out")
    if to != "chakra":
        refuse(context, ["buffer"], "is used only with --to chakra", "Leave it out")
    made = read(schedule)
    if chunks is not None:
        made = with_chunks(made, chunks)
    if check(made).verdict is not Verdict.PROVED:
        raise ScheduleRefused(f"{schedule}: is not proved. See verify {schedule}")
    facts: dict[str, object] = {"to": to, "ranks": made.ranks, "chunks": made.chunks}
    if to == "chakra":
        traces = chakra.encode(made, None if buffer is None else parse_bytes("--bytes", buffer))
        files = [output.with_name(f"{output.name}.{rank}.et") for rank in range(made.ranks)]
        for file, trace in zip(files, traces, strict=True):
            write_atomically(file, trace)
    else:
        if output.suffix != ENDINGS[to]:
            raise ArgumentError("--output", str(output), f"must end in {ENDINGS[to]} for {to}")
        if to == "msccl-xml":
            text = msccl_xml.encode(made, protocol)
            again = verify_xml(text, str(output))
        else:
            text = mscclpp.encode(made)
            again = verify_plan(text, str(output))
        if again.verdict is not Verdict.PROVED:
            raise SynthesisError(f"what would be written is not proved: {again.counterexample}")
        write_atomically(output, text)
        files = [output]
    facts["files"] = [str(file) for file in files]
    if not quiet:
        print(encoded(facts) if json else _text(facts, files))


def _text(facts: dict[str, object], files: list[Path]) -> str:
    names = f"{files[0]} .. {files[-1]}" if len(files) > 1 else str(files[0])
    used = {
        "msccl-xml": f"used for buffers whose count {facts['chunks']} divides",
        "mscclpp": f"for buffers of whole 16-byte words whose number {facts['chunks']} divides",
        "chakra": "one trace per rank",
    }[str(facts["to"])]
    return f"{names}: {facts['ranks']} ranks, {facts['chunks']} chunks, {used}"
