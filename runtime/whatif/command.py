"""The command ``latecomer whatif``: what a job that runs elsewhere would gain."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latecomer.verify.errors import ArgumentError
from latecomer.verify.replacing import SCHEDULE, Force, require_replaceable

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
            "the directory of latecomer.watch; or a file of arrivals, or of a pipeline's spans.",
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
    weight_share: Annotated[
        float | None,
        typer.Option(
            help="Of a pipeline's backward pass, what is for the weights. Default: as recorded, or "
            "half.",
            min=0.01,
            max=0.99,
        ),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write the pipeline's planned schedule, within the memory of the recorded one.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    force: Force = False,
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
      latecomer whatif spans.json --schedule planned.json
    """
    from latecomer.runtime.whatif import pipeline_plans
    from latecomer.runtime.whatif.inputs import read_recorded
    from latecomer.runtime.whatif.report import answer, as_text

    recorded = read_recorded(paths)
    if schedule is not None:
        if recorded.pipeline is None:
            raise ArgumentError("--schedule", str(schedule), "is for what a pipeline has recorded")
        require_replaceable("--schedule", schedule, SCHEDULE, inputs=paths, force=force)
    said: dict[str, object] = {}
    texts = []
    if recorded.pipeline is not None:
        advice = pipeline_plans.advise(
            recorded.pipeline, weight_share=weight_share, schedule=schedule
        )
        said["pipeline"] = advice.as_json()
        texts.append(pipeline_plans.as_text(advice))
        if schedule is not None:
            texts.append(f"written: {schedule}")
    if recorded.collectives is not None:
        is_sized = all(operation.nbytes for operation in recorded.collectives.operations)
        cases = _cases(size, bandwidth, latency, overlap, bucket, is_sized=is_sized)
        about_collectives = answer(recorded.collectives, cases)
        said |= about_collectives.as_json()
        texts.append(as_text(about_collectives))
    print(json_text.dumps(said) if json else "\n\n".join(texts))


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
