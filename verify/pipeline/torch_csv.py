"""PyTorch's CSV of a pipeline schedule: one row per rank, one action per cell.

``compute_only`` holds F, I, W, B and empty cells (bubbles, which mean nothing); the runtime adds
the messages itself. ``compute_comms`` is run as it stands: with every SEND, RECV and REDUCE_GRAD,
and, for PyTorch 2.15 and later, a wait for each (:mod:`latecomer.verify.pipeline.waits`).
Both are read by one function; a CSV says nothing about durations, so an instance goes with it.
``(0F1;3B0)OVERLAP_F_B`` is read as its parts one after the other, which is how the runtime of
``torch.distributed.pipelining`` runs it. Where the runtime adds the messages, it has all that come
before the first part, and all that go after the last one; so parts that need each other by way of
other ranks are refused, as they are there. So are empty cells between messages, and UNSHARD or
RESHARD where ranks have no messages.
"""

from __future__ import annotations

import csv
import io
import os
from itertools import islice
from pathlib import Path
from typing import Literal

from latecomer.verify.core.format import read_bounded
from latecomer.verify.errors import ArgumentError, FormatError
from latecomer.verify.output import write_atomically
from latecomer.verify.pipeline.costs import fault
from latecomer.verify.pipeline.format import parse_programs, require_sizes
from latecomer.verify.pipeline.schedule import (
    COMPUTE,
    RECEIVES,
    SENDS,
    Action,
    Instance,
    PipelineSchedule,
    Program,
    uniform,
)

CsvFormat = Literal["compute_only", "compute_comms"]
OVERLAP = ")OVERLAP_F_B"


def read_csv(path: str | os.PathLike[str], instance: Instance | None = None) -> PipelineSchedule:
    r"""Read a CSV of either format; FormatError also if the file can't be opened.

    Arguments and errors are those of ``decode_csv``.

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, read_csv, write_csv
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
        >>> from latecomer.verify.pipeline import decode_csv, uniform
        >>> schedule = decode_csv(b"0F0,0B0\n1F0,1B0\n", instance=uniform(2, forward=3))
        >>> schedule.stages, schedule.microbatches, schedule.instance.forward
        (2, 1, (3, 3))
        >>> decode_csv(b"0F0,0X0", "mine.csv")
        Traceback (most recent call last):
        latecomer.verify.core.errors.FormatError: mine.csv: programs[0][1]: '0X0' is no action, as
        for example 0F3 or 2SEND_B1
    """
    try:
        rows = list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
    except UnicodeDecodeError as error:
        raise FormatError(name, f"not UTF-8: {error.reason} at byte {error.start}") from None
    except csv.Error as error:
        raise FormatError(name, f"not CSV: {error}") from None
    cells = [[_actions(cell) for cell in row] for row in rows]
    programs = parse_programs(
        tuple(tuple(text for cell in row for text in cell) for row in cells), name
    )
    _require_runnable(cells, programs, name)
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


def _require_runnable(
    cells: list[list[list[str]]], programs: tuple[Program, ...], name: str
) -> None:
    """Refuse what the runtime refuses to load in either format."""
    kinds = {action.kind for program in programs for action in program}
    if not kinds.isdisjoint(SENDS + RECEIVES):
        if any(not cell for row in cells for cell in row):
            raise FormatError(name, "an empty cell in a file with messages")
        return
    sharding = kinds & {"UNSHARD", "RESHARD"}
    if sharding and len(programs) > 1:
        added = f"{min(sharding)} in a file without messages; the runtime adds both"
        raise FormatError(name, added)
    _require_overlaps(cells, programs, name)


def _require_overlaps(
    cells: list[list[list[str]]], programs: tuple[Program, ...], name: str
) -> None:
    """Refuse parts of an OVERLAP_F_B of which one needs what another one sends."""
    if all(len(cell) <= 1 for row in cells for cell in row):
        return
    together: list[list[tuple[Action, ...]]] = []
    for row, program in zip(cells, programs, strict=True):
        actions = iter(program)
        together.append([tuple(islice(actions, len(cell))) for cell in row if cell])
    apart: list[list[tuple[Action, ...]]] = [
        [(action,) for action in program] for program in programs
    ]
    # What does not end one by one either is a deadlock, and so refuted: a verdict, no malformed
    # file.
    if _ends(apart) and not _ends(together):
        raise FormatError(name, "the parts of an OVERLAP_F_B need each other")


def _ends(programs: list[list[tuple[Action, ...]]]) -> bool:
    """Whether all actions can be run, those of a tuple only when what all of them need is there."""
    last = max((a.stage for of in programs for actions in of for a in actions), default=0)
    done: set[Action] = set()
    waiting: dict[Action, list[int]] = {}
    at = [0] * len(programs)
    ready = list(range(len(programs)))
    while ready:
        rank = ready.pop()
        while at[rank] < len(programs[rank]):
            actions = programs[rank][at[rank]]
            lacking = _lacking(actions, done, last)
            if lacking:
                for action in lacking:
                    waiting.setdefault(action, []).append(rank)
                break
            at[rank] += 1
            done.update(actions)
            ready += [other for action in actions for other in waiting.pop(action, ())]
    return all(place == len(program) for place, program in zip(at, programs, strict=True))


def _lacking(actions: tuple[Action, ...], done: set[Action], last: int) -> list[Action]:
    """Of the first action that can't run yet, what it needs of another stage; any one will do."""
    for action in actions:
        needed: list[Action] = []
        if action.kind == "F" and action.stage > 0:
            needed = [Action(action.stage - 1, "F", action.microbatch)]
        elif action.kind in {"I", "B"} and action.stage < last:
            needed = [Action(action.stage + 1, kind, action.microbatch) for kind in ("I", "B")]
        if needed and done.isdisjoint(needed):
            return needed
    return []


def encode_csv(schedule: PipelineSchedule, form: CsvFormat) -> bytes:
    r"""The programs as a CSV that ``_PipelineScheduleRuntime._load_csv`` reads.

    Args:
        schedule: for ``compute_comms`` one with its messages, as
            ``latecomer.verify.pipeline.lowered`` gives, and for PyTorch 2.15 and later
            ``latecomer.verify.pipeline.with_waits``.
        form: ``compute_only`` leaves out all but F, I, W and B; ``compute_comms`` is the whole.

    Raises:
        ArgumentError: messages are to be written and there are none.

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, encode_csv
        >>> encode_csv(decode_csv(b"0F0,,0B0\n,1F0,1B0\n"), "compute_only")
        b'0F0,0B0\r\n1F0,1B0\r\n'
    """
    if form == "compute_comms" and not schedule.has_messages and schedule.ranks > 1:
        raise ArgumentError("form", form, "needs messages", "See latecomer.verify.pipeline.lowered")
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
        >>> from latecomer.verify.pipeline import decode_csv, write_csv
        >>> write_csv(decode_csv(b"0F0,0B0\n1F0,1B0\n"), "pipeline.csv", "compute_only")
    """
    write_atomically(Path(path), encode_csv(schedule, form))


def _actions(cell: str) -> list[str]:
    """The texts of the actions in a cell."""
    text = cell.strip()
    if text.startswith("(") and text.endswith(OVERLAP):
        return [part.strip() for part in text[1 : -len(OVERLAP)].split(";")]
    return [text] if text else []
