"""Which family a file is of, by its name and its content, and what is read from it."""

from __future__ import annotations

import os
from pathlib import Path

from verify.asynchronous.command import report_on
from verify.asynchronous.mscclpp import verify_plan
from verify.asynchronous.mscclpp_plan import is_plan
from verify.asynchronous.teccl import FlowReport, is_solution, verify_flows
from verify.asynchronous.verdict import AsynchronousReport
from verify.core.format import PIPELINE, decode, kind_of
from verify.core.schedule import Schedule
from verify.pipeline.format import decode as decode_pipeline
from verify.pipeline.schedule import PipelineSchedule
from verify.pipeline.simu_txt import decode_timeline
from verify.pipeline.torch_csv import decode_csv

Others = AsynchronousReport | FlowReport
"""Reports on others' programs, which their readers make."""

TEXTS = {".csv": decode_csv, ".txt": decode_timeline}
"""Pipeline schedules that are no JSON: PyTorch's, and timelines of PipeMorph."""


def decode_any(
    path: Path, data: bytes, max_bytes: int | None = None, slots: int | None = None
) -> Schedule | PipelineSchedule | Others:
    """A schedule of whichever family the file says; on others' programs the report at once.

    Args:
        path: whose ending counts for texts that are no JSON; ``data``: what is in the file.
        max_bytes, slots: options for programs of thread blocks (``verify_xml``).

    Raises:
        FormatError: the file is malformed.
        ArgumentError: such an option, for something else.
    """
    name = os.fspath(path)
    if (program := report_on(data, name, max_bytes, slots)) is not None:
        return program
    if path.suffix in TEXTS:
        return TEXTS[path.suffix](data, name)
    if is_plan(data):
        return verify_plan(data, name)
    if is_solution(data):
        return verify_flows(data, name)
    if kind_of(data) == PIPELINE:
        return decode_pipeline(data, name)
    return decode(data, name)
