"""Traces of torch's profiler (Kineto), one of each rank: the collectives in them.

NCCL's kernels carry the collective, its size and its group. A kernel begins when its rank's stream
has come to it, and waits on the device for the others: that is the arrival. Gloo's operations carry
nothing but their kind, and begin on a thread of Gloo's; so they can be told apart only where all
ranks have recorded the same ones in the same order, and are taken for those of one group.

Source: ``torch/csrc/distributed/c10d/ParamCommsUtils.hpp`` and Kineto's chrome trace output.
"""

from __future__ import annotations

import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from latecomer.runtime.explain.dumps import ranks_of, read_bytes
from latecomer.runtime.explain.sources import RANK
from latecomer.runtime.whatif.clocks import Clocks, align
from latecomer.runtime.whatif.operations import BYTES_OF, Operation, Recording, kind_of
from latecomer.runtime.whatif.pipeline_spans import (
    ACTION,
    Event,
    PipelineSpans,
    spans_of_events,
)
from latecomer.verify.errors import ArgumentError, FormatError

MOST_BYTES = 2**31  # of a trace, packed or not
PACKED = b"\x1f\x8b"  # how a file of gzip begins
STEP = re.compile(r"ProfilerStep#(\d+)")
KERNEL = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
GLOO = re.compile(r"gloo:(\w+)")
SYNCHRONOUS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.I)
"""Collectives that no rank leaves before all have come."""
FINE_S = 1e-3  # clocks that are aligned so well show messages
NCCL_EVENT = "start of NCCL's kernel on the device"
GLOO_EVENT = "start of the operation on Gloo's thread"


class _Arguments(msgspec.Struct):
    collective: str = msgspec.field(name="Collective name", default="")
    elements_in: int = msgspec.field(name="In msg nelems", default=0)
    elements_out: int = msgspec.field(name="Out msg nelems", default=0)
    dtype: str = ""
    group: str = msgspec.field(name="Process Group Name", default="")
    ranks: str = msgspec.field(name="Process Group Ranks", default="")


class _Event(msgspec.Struct):
    name: Any = ""
    cat: str = ""
    ph: str = ""
    ts: float = 0.0  # microseconds
    dur: float = 0.0
    args: Any = None


class _Group(msgspec.Struct):
    pg_name: str = ""
    ranks: Any = None


class _Distributed(msgspec.Struct):
    rank: int = -1
    world_size: int = 0
    pg_config: list[_Group] = []


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    distributed: _Distributed | None = msgspec.field(name="distributedInfo", default=None)
    host_name: str = ""


class Span(NamedTuple):
    """A collective on one rank, in seconds of its clock."""

    start_s: float
    end_s: float
    kind: str  # as NCCL or Gloo calls it
    nbytes: int  # 0: not recorded
    group: str  # "": not recorded


@dataclass
class RankTrace:
    """What is kept of a rank's trace."""

    rank: int
    host: str
    spans: list[Span] = field(default_factory=list)  # in their order
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by group
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)  # by number
    actions: list[Event] = field(default_factory=list)  # of a pipeline
    is_nccl: bool = False


def is_trace(beginning: bytes) -> bool:
    """Whether a file is such a trace, by its first bytes (unpacked, where it is packed)."""
    return b'"schemaVersion"' in beginning or b'"traceEvents"' in beginning


def read_traces(paths: Sequence[Path]) -> list[RankTrace]:
    """The traces of a job's ranks.

    Raises:
        FormatError: a file is no trace, or two are of one rank.
        ArgumentError: there is one alone.
    """
    traces: dict[int, RankTrace] = {}
    for path in paths:
        trace = read_trace(path)
        if trace.rank in traces:
            raise FormatError(str(path), f"is a second trace of rank {trace.rank}")
        traces[trace.rank] = trace
    if len(traces) < 2:
        raise ArgumentError("FILE", len(traces), "must be the traces of two ranks or more")
    return list(traces.values())


def read_trace(path: Path) -> RankTrace:
    """The collectives in one rank's trace; FormatError if it is none."""
    data = read_bytes(path, MOST_BYTES)
    try:
        if data.startswith(PACKED):
            data = gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise FormatError(str(path), f"cannot be read: {error}") from None
    try:
        raw = msgspec.json.decode(data, type=_Trace, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(str(path), f"is no trace of torch's profiler: {error}") from None

    named = RANK.search(path.name)
    rank = raw.distributed.rank if raw.distributed is not None else -1
    if rank < 0 and named is not None:
        rank = int(named[1])
    if rank < 0:
        raise FormatError(str(path), "tells no rank, neither in it nor in its name")
    trace = RankTrace(rank, raw.host_name or f"host of rank {rank}")
    if raw.distributed is not None:
        for group in raw.distributed.pg_config:
            trace.members[group.pg_name] = ranks_of(group.ranks)
    for event in raw.events:
        _take(event, trace)
    trace.spans.sort()
    trace.actions.sort(key=lambda action: action.start_s)
    return trace


def _take(event: _Event, trace: RankTrace) -> None:
    if event.ph != "X" or not isinstance(event.name, str):
        return
    begin_s, end_s = event.ts / 1e6, (event.ts + event.dur) / 1e6
    if step := STEP.match(event.name):
        if event.cat == "user_annotation":
            trace.steps[int(step[1])] = begin_s, end_s
    elif ACTION.fullmatch(event.name):
        trace.actions.append(Event(event.cat, event.name, begin_s, end_s - begin_s))
    elif event.cat.lower() == "kernel" and (kernel := KERNEL.match(event.name)):
        given = _Arguments()
        if isinstance(event.args, dict):
            given = msgspec.convert(event.args, _Arguments, strict=False)
        trace.is_nccl = True
        elements = max(given.elements_in, given.elements_out)
        span = Span(
            start_s=begin_s,
            end_s=end_s,
            kind=given.collective or kernel[1],
            nbytes=elements * BYTES_OF.get(given.dtype, 0),
            group=given.group,
        )
        trace.spans.append(span)
        if given.group and not trace.members.get(given.group):
            trace.members[given.group] = ranks_of(given.ranks)
    elif gloo := GLOO.match(event.name):
        trace.spans.append(Span(begin_s, end_s, gloo[1], nbytes=0, group=""))


def recording_of(traces: Sequence[RankTrace]) -> Recording:
    """The collectives that all of a group's ranks have recorded, on one clock.

    ArgumentError is raised if there is none, or what ranks have can't be matched.
    """
    matched = _all_matched(traces)
    if not matched:
        requirement = "have no collective that all ranks of a group have recorded"
        raise ArgumentError("FILE", f"{len(traces)} traces", requirement)
    clocks = _clocks(traces, matched)
    operations = [_operation(each, clocks) for each in matched]
    operations.sort(key=lambda operation: operation.first_s)
    steps = _steps(traces, operations)
    is_nccl = any(trace.is_nccl for trace in traces)
    return Recording(
        source=f"traces of {len(traces)} ranks",
        event=NCCL_EVENT if is_nccl else GLOO_EVENT,
        operations=tuple(_with_ends(operations, steps)),
        steps=len(steps),
        lasted_s=sum(end_s - begin_s for begin_s, end_s in steps),
        clocks=clocks.text,
    )


def pipeline_of(traces: Sequence[RankTrace]) -> PipelineSpans | None:
    """The pipeline of which torch has named the actions, if there is one; ArgumentError as there.

    Ranks of several hosts have their clocks aligned by collectives, where there are any.
    """
    if not any(trace.actions for trace in traces):
        return None
    has_one_clock = len({trace.host for trace in traces}) == 1
    clocks = _clocks(traces, [] if has_one_clock else _all_matched(traces))
    events = {}
    for trace in traces:
        shift_s = clocks.shifts_s[trace.rank]
        events[trace.rank] = [
            action._replace(start_s=action.start_s + shift_s) for action in trace.actions
        ]
    source = f"traces of {len(traces)} ranks"
    return spans_of_events(events, source, has_links=clocks.uncertainty_s <= FINE_S)


def _all_matched(traces: Sequence[RankTrace]) -> list[dict[int, Span]]:
    return [each for group in _groups(traces) for each in _matched(*group)]


def _clocks(traces: Sequence[RankTrace], matched: Sequence[dict[int, Span]]) -> Clocks:
    synchronous = [
        {rank: (span.start_s, span.end_s) for rank, span in each.items()}
        for each in matched
        if all(SYNCHRONOUS.search(span.kind) for span in each.values())
    ]
    return align(synchronous, {trace.rank: trace.host for trace in traces})


def _groups(traces: Sequence[RankTrace]) -> Iterable[tuple[str, dict[int, list[Span]]]]:
    """By group, what each of its ranks did in it."""
    here: dict[tuple[str, tuple[int, ...]], dict[int, list[Span]]] = defaultdict(dict)
    everyone = tuple(sorted(trace.rank for trace in traces))
    for trace in traces:
        by_group: dict[str, list[Span]] = defaultdict(list)
        for span in trace.spans:
            if SYNCHRONOUS.search(span.kind):
                by_group[span.group].append(span)
        for group, spans in by_group.items():
            members = trace.members.get(group) or everyone
            here[group, members][trace.rank] = spans
    for (group, members), by_rank in here.items():
        if len(members) > 1 and set(by_rank) == set(members):
            yield group, by_rank


def _matched(group: str, by_rank: dict[int, list[Span]]) -> list[dict[int, Span]]:
    """The n-th of one rank with the n-th of the others.

    Raises:
        ArgumentError: they are not the same ones.
    """
    numbers = {len(spans) for spans in by_rank.values()}
    kinds = {tuple(span.kind for span in spans) for spans in by_rank.values()}
    if len(kinds) > 1:
        name = f"group {group}" if group else "operations without a group, as Gloo's are,"
        found = ", ".join(f"{number}" for number in sorted(numbers))
        requirement = f"of {name} must be the same on all ranks; they have {found}"
        remedy = "Record the same steps on all ranks; of Gloo, one group alone"
        raise ArgumentError("collectives", len(kinds), requirement, remedy)
    (number,) = numbers
    return [{rank: spans[at] for rank, spans in by_rank.items()} for at in range(number)]


def _operation(spans: dict[int, Span], clocks: Clocks) -> Operation:
    ranks = tuple(sorted(spans))
    starts_s = [spans[rank].start_s + clocks.shifts_s[rank] for rank in ranks]
    ends_s = [spans[rank].end_s + clocks.shifts_s[rank] for rank in ranks]
    kind = spans[ranks[0]].kind
    first_s = min(starts_s)
    return Operation(
        arrivals_s=tuple(start_s - first_s for start_s in starts_s),
        kind=kind_of(kind),
        nbytes=max(span.nbytes for span in spans.values()),
        took_s=max(0.0, max(ends_s) - max(starts_s)),
        ranks=ranks,
        first_s=first_s,
    )


def _steps(
    traces: Sequence[RankTrace], operations: Sequence[Operation]
) -> list[tuple[float, float]]:
    """When steps began and ended, on the lowest rank; the whole is one where none is marked."""
    steps = min(traces, key=lambda trace: trace.rank).steps
    if steps:
        return [steps[number] for number in sorted(steps)]
    return [(operations[0].first_s, max(each.ended_s for each in operations))]


def _with_ends(
    operations: Sequence[Operation], steps: Sequence[tuple[float, float]]
) -> Iterable[Operation]:
    """The operations, of which the one that ends last in each step is marked."""
    last: set[int] = set()
    for begin_s, end_s in steps:
        inside = [at for at, each in enumerate(operations) if begin_s <= each.first_s < end_s]
        if inside:
            last.add(max(inside, key=lambda at: operations[at].ended_s))
    for at, operation in enumerate(operations):
        yield replace(operation, ends_step=at in last)
