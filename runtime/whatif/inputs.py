"""Which reader a file is for: all that ``latecomer whatif`` can read."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from latecomer.runtime.explain.dumps import is_dump
from latecomer.runtime.explain.sources import LOOKED_AT, beginning
from latecomer.runtime.simulation import arrivals
from latecomer.runtime.telemetry.files import files_in
from latecomer.runtime.whatif import kineto, recorded
from latecomer.runtime.whatif.kineto import PACKED
from latecomer.runtime.whatif.operations import Recording, of_arrivals
from latecomer.runtime.whatif.pipeline_spans import PipelineSpans, is_spans, read_spans
from latecomer.verify.errors import ArgumentError, FormatError


class Recorded(NamedTuple):
    """What was recorded of a job: its collectives, its pipeline, or both."""

    collectives: Recording | None
    pipeline: PipelineSpans | None = None


def read_recorded(paths: Sequence[Path]) -> Recorded:
    """What the files have; a LatecomerError if they have nothing."""
    if len(paths) == 1 and paths[0].is_dir() and files_in(paths[0]):
        return Recorded(recorded.read_watched(paths[0]))
    files = [each for path in paths for each in _files(path)]
    beginnings = {path: _beginning(path) for path in files}
    traces = [path for path, start in beginnings.items() if kineto.is_trace(start)]
    if traces:
        return _traced(kineto.read_traces(traces if paths[0].is_dir() else files))
    dumps = [path for path, start in beginnings.items() if is_dump(start)]
    if dumps:
        return Recorded(recorded.read_dumps(dumps if paths[0].is_dir() else files))
    if len(files) != 1:
        requirement = "must be one file of arrivals, or traces, dumps or a watch of several ranks"
        raise ArgumentError("FILE", f"{len(files)} files", requirement)
    if is_spans(beginnings[files[0]]):
        return Recorded(None, read_spans(files[0]))
    return Recorded(of_arrivals(arrivals.read(files[0])))


def _traced(traces: Sequence[kineto.RankTrace]) -> Recorded:
    """Of traces with a pipeline, collectives only where ranks have some that can be matched."""
    pipeline = kineto.pipeline_of(traces)
    if pipeline is None:
        return Recorded(kineto.recording_of(traces))
    try:
        return Recorded(kineto.recording_of(traces), pipeline)
    except ArgumentError:
        return Recorded(None, pipeline)


def _files(path: Path) -> list[Path]:
    """The file itself, or those in a directory."""
    if not path.is_dir():
        return [path]
    return [each for each in sorted(path.iterdir()) if each.is_file()]


def _beginning(path: Path) -> bytes:
    """The first bytes of what is in a file, packed or not."""
    start = beginning(path)
    if not start.startswith(PACKED):
        return start
    try:
        with gzip.open(path) as packed:
            return packed.read(LOOKED_AT)
    except (OSError, EOFError) as error:
        raise FormatError(str(path), f"cannot be read: {error}") from None
