"""The command ``latecomer whatif``: what a job that runs elsewhere would gain."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latecomer.verify.errors import ArgumentError

if TYPE_CHECKING:
    from latecomer.runtime.whatif.report import Case

EXAMPLES = (("512MiB", "400Gbit/s"), ("2GiB", "100Gbit/s"), ("2GiB", "25Gbit/s"))
"""Sizes and links of which is told where neither is given."""


def whatif(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Traces of torch's profiler, one of each rank; or dumps of Flight Recorders; or "
            "the directory of latecomer.watch; or a file of arrivals.",
        ),
    ],
    size: Annotated[
        str | None, typer.Option("--bytes", help="Of the buffer. Default: as recorded.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Of each rank's link, each way. Default: several.")
    ] = None,
    latency: Annotated[str, typer.Option(help="Of a message.")] = "20us",
    overlap: Annotated[
        str | None,
        typer.Option(
            help="The last rank's gradients become ready over so long. Default: all but one bucket "
            "have been reduced when it is there."
        ),
    ] = None,
    bucket: Annotated[str, typer.Option(help="Of DDP.")] = "25MiB",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what late ranks cost a job, what would help most, and what an all-reduce could gain.

    Nothing is extrapolated: the figures are of the recorded operations, with the buffer and the
    link that are asked for.

    \b
    Examples:
      latecomer whatif arrivals.json
      latecomer whatif arrivals.json --bytes 2GiB --bandwidth 100Gbit/s
      latecomer whatif traces/ --bytes 25MiB --bandwidth 25Gbit/s
      latecomer whatif watched/ --json
    """
    from latecomer.runtime.whatif.inputs import read_recording
    from latecomer.runtime.whatif.report import answer, as_text

    recording = read_recording(paths)
    is_sized = all(operation.nbytes for operation in recording.operations)
    cases = _cases(size, bandwidth, latency, overlap, bucket, is_sized=is_sized)
    said = answer(recording, cases)
    print(json_text.dumps(said.as_json()) if json else as_text(said))


def _cases(
    size: str | None,
    bandwidth: str | None,
    latency: str,
    overlap: str | None,
    bucket: str,
    *,
    is_sized: bool,
) -> list[Case]:
    from latecomer.runtime.whatif.gains import Link
    from latecomer.runtime.whatif.report import Case
    from latecomer.synth.units import parse_bandwidth, parse_bytes, parse_seconds

    if size is None and not is_sized and bandwidth is not None:
        raise ArgumentError("--bytes", None, "is needed: the recording has no sizes")
    asked: list[tuple[str | None, str]] = list(EXAMPLES)
    if bandwidth is not None:
        asked = [(size, bandwidth)]
    elif size is not None or is_sized:
        asked = [(size, link) for link in dict.fromkeys(link for _, link in EXAMPLES)]
    return [
        Case(
            link=Link(
                latency_s=parse_seconds("--latency", latency),
                bandwidth=parse_bandwidth("--bandwidth", link),
            ),
            nbytes=None if text is None else parse_bytes("--bytes", text),
            bucket=parse_bytes("--bucket", bucket),
            overlap_s=None if overlap is None else parse_seconds("--overlap", overlap),
        )
        for text, link in asked
    ]
