"""``synth export``: a schedule as a program for another executor, or as traces for a simulator.

A program is proved again, by its own reader and in its executor's semantics, before it is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from latecomer.synth.commands.options import (
    Buffer,
    Json,
    Quiet,
    encoded,
    refuse,
    refuse_json_if_quiet,
    require_writable,
)
from latecomer.synth.export import chakra, msccl_xml, mscclpp
from latecomer.synth.export.ends import with_chunks
from latecomer.synth.units import parse_bytes
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.mscclpp import verify_plan
from latecomer.verify.core.check import check
from latecomer.verify.core.format import read
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ArgumentError, ScheduleRefused, SynthesisError
from latecomer.verify.output import write_atomically
from latecomer.verify.replacing import CHAKRA, MSCCL_XML, MSCCLPP_PLAN, Force

ProgramTarget = Literal["msccl-xml", "mscclpp"]
Target = Literal[ProgramTarget, "chakra"]
ENDINGS: dict[ProgramTarget, str] = {"msccl-xml": ".xml", "mscclpp": ".json"}


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
    force: Force = False,
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
    kinds = {"msccl-xml": MSCCL_XML, "mscclpp": MSCCLPP_PLAN, "chakra": CHAKRA}
    require_writable(output, kind=kinds[to], inputs=[schedule], force=force)
    refuse_json_if_quiet(context, quiet=quiet)
    if to != "msccl-xml":
        refuse(context, ["protocol"], "is used only with --to msccl-xml", "Leave it out")
    if to != "chakra":
        refuse(context, ["buffer"], "is used only with --to chakra", "Leave it out")

    exported = _read_proved(schedule, chunks)
    if to == "chakra":
        files = _write_traces(exported, output, buffer, force=force)
    else:
        files = [output]
        _write_program(exported, output, to, protocol)

    facts: dict[str, object] = {
        "to": to,
        "ranks": exported.ranks,
        "chunks": exported.chunks,
        "files": [str(file) for file in files],
    }
    if not quiet:
        print(encoded(facts) if json else _text(facts, files))


def _read_proved(path: Path, chunks: int | None) -> Schedule:
    """The schedule of a file, cut into so many chunks where a number is given.

    Raises:
        ScheduleRefused: it is not proved.
    """
    schedule = read(path)
    if chunks is not None:
        schedule = with_chunks(schedule, chunks)
    if check(schedule).verdict is not Verdict.PROVED:
        raise ScheduleRefused(f"{path}: is not proved. See verify {path}")
    return schedule


def _write_traces(
    schedule: Schedule, output: Path, buffer: str | None, *, force: bool
) -> list[Path]:
    """Write one trace per rank for Chakra; their files."""
    buffer_bytes = None if buffer is None else parse_bytes("--bytes", buffer)
    traces = chakra.encode(schedule, buffer_bytes)
    files = [output.with_name(f"{output.name}.{rank}.et") for rank in range(schedule.ranks)]
    for file in files:
        require_writable(file, kind=CHAKRA, force=force)
    for file, trace in zip(files, traces, strict=True):
        write_atomically(file, trace)
    return files


def _write_program(
    schedule: Schedule, output: Path, to: ProgramTarget, protocol: msccl_xml.Protocol
) -> None:
    """Write a program for MSCCL or MSCCL++, once its own reader has proved it again.

    Raises:
        ArgumentError: the file does not end as such programs have to.
        SynthesisError: the program is not proved, which is a fault of this package.
    """
    if output.suffix != ENDINGS[to]:
        raise ArgumentError("--output", str(output), f"must end in {ENDINGS[to]} for {to}")

    if to == "msccl-xml":
        text = msccl_xml.encode(schedule, protocol)
        report = verify_xml(text, str(output))
    else:
        text = mscclpp.encode(schedule)
        report = verify_plan(text, str(output))

    if report.verdict is not Verdict.PROVED:
        raise SynthesisError(f"what would be written is not proved: {report.counterexample}")
    write_atomically(output, text)


def _text(facts: dict[str, object], files: list[Path]) -> str:
    names = f"{files[0]} .. {files[-1]}" if len(files) > 1 else str(files[0])
    used = {
        "msccl-xml": f"used for buffers whose count {facts['chunks']} divides",
        "mscclpp": f"for buffers of whole 16-byte words whose number {facts['chunks']} divides",
        "chakra": "one trace per rank",
    }[str(facts["to"])]
    return f"{names}: {facts['ranks']} ranks, {facts['chunks']} chunks, {used}"
