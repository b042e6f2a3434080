"""PyTorch's CSV of a pipeline schedule: one row per rank, one action per cell.

``compute_only`` holds F, I, W, B and empty cells (bubbles, which mean nothing); the runtime adds
the messages itself. ``compute_comms`` is run as it stands: with every SEND, RECV and REDUCE_GRAD.
Both are read by one function; a CSV says nothing about durations, so an instance goes with it.
``(0F1;3B0)OVERLAP_F_B`` is read as its parts one after the other, which is how the runtime of
``torch.distributed.pipelining`` runs it.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Literal

from verify.core.format import read_bounded
from verify.errors import ArgumentError, FormatError
from verify.output import write_atomically
from verify.pipeline.costs import fault
from verify.pipeline.format import parse_programs, require_sizes
from verify.pipeline.schedule import COMPUTE, Instance, PipelineSchedule, uniform

CsvFormat = Literal["compute_only", "compute_comms"]
OVERLAP = ")OVERLAP_F_B"


def read_csv(path: str | os.PathLike[str], instance: Instance | None = None) -> PipelineSchedule:
    r"""Read a CSV of either format; FormatError also if the file can't be opened.

    Arguments and errors are those of ``decode_csv``.

    Examples:
        >>> from verify.pipeline import decode_csv, read_csv, write_csv
        >>> write_csv(decode_csv(b"0F0,0B0\n1F0,1B0\n"), "pipeline.csv", "compute_only")
        >>> read_csv("pipeline.csv").ranks
        2
    """
    name = os.fspath(path)
    return decode_csv(read_bounded(name), name, instance)


def decode_csv(
    data: bytes, name: str = "<bytes>", instance: Instance | None = None
) -> PipelineSchedule:
    r"""Parse a CSV of either format; as many ranks as it has rows.

    Args:
        data: the text.
        name: for error messages.
        instance: what the actions take (default: every F, I and W one unit, no delays).

    Raises:
        FormatError: not text, a cell that is no action, no action at all, or an instance for
            another number of stages or ranks.

    Examples:
        >>> from verify.pipeline import decode_csv, uniform
        >>> schedule = decode_csv(b"0F0,0B0\n1F0,1B0\n", instance=uniform(2, forward=3))
        >>> schedule.stages, schedule.microbatches, schedule.instance.forward
        (2, 1, (3, 3))
        >>> decode_csv(b"0F0,0X0", "mine.csv")
        Traceback (most recent call last):
        verify.core.errors.FormatError: mine.csv: programs[0][1]: '0X0' is no action, as for
        example 0F3 or 2SEND_B1
    """
    try:
        rows = list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
    except UnicodeDecodeError as error:
        raise FormatError(name, f"not UTF-8: {error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise FormatError(name, f"not CSV: {error}") from None
    programs = parse_programs(
        tuple(tuple(text for cell in row for text in _actions(cell)) for row in rows), name
    )
    actions = [action for program in programs for action in program]
    if not actions:
        raise FormatError(name, "there is no action in it")
    stages = 1 + max(action.stage for action in actions)
    microbatches = 1 + max(action.microbatch or 0 for action in actions)
    require_sizes(name, stages, microbatches, programs)
    if instance is None:
        instance = uniform(stages)
    problem = fault(instance, stages, len(programs))
    if problem is not None:
        raise FormatError(name, f"the instance does not fit it: {problem}")
    return PipelineSchedule(
        stages=stages, microbatches=microbatches, instance=instance, programs=programs
    )


def encode_csv(schedule: PipelineSchedule, form: CsvFormat) -> bytes:
    r"""The programs as a CSV that ``_PipelineScheduleRuntime._load_csv`` reads.

    Args:
        schedule: for ``compute_comms`` one with its messages, as ``verify.pipeline.lowered`` gives.
        form: ``compute_only`` leaves out all but F, I, W and B; ``compute_comms`` is the whole.

    Raises:
        ArgumentError: messages are to be written and there are none.

    Examples:
        >>> from verify.pipeline import decode_csv, encode_csv
        >>> encode_csv(decode_csv(b"0F0,,0B0\n,1F0,1B0\n"), "compute_only")
        b'0F0,0B0\r\n1F0,1B0\r\n'
    """
    if form == "compute_comms" and not schedule.has_messages and schedule.ranks > 1:
        raise ArgumentError("form", form, "needs messages", "See verify.pipeline.lowered")
    writer = csv.writer(out := io.StringIO(newline=""), lineterminator="\r\n")
    for program in schedule.programs:
        writer.writerow(
            str(action) for action in program if form == "compute_comms" or action.kind in COMPUTE
        )
    return out.getvalue().encode()


def write_csv(schedule: PipelineSchedule, path: str | os.PathLike[str], form: CsvFormat) -> None:
    r"""Write a CSV atomically; ArgumentError also if the path can't be written.

    Arguments and errors are those of ``encode_csv``.

    Examples:
        >>> from verify.pipeline import decode_csv, write_csv
        >>> write_csv(decode_csv(b"0F0,0B0\n1F0,1B0\n"), "pipeline.csv", "compute_only")
    """
    write_atomically(Path(path), encode_csv(schedule, form))


def _actions(cell: str) -> list[str]:
    """The texts of the actions in a cell."""
    text = cell.strip()
    if text.startswith("(") and text.endswith(OVERLAP):
        return [part.strip() for part in text[1 : -len(OVERLAP)].split(";")]
    return [text] if text else []
