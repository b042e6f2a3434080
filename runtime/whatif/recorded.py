"""What jobs record without a profiler: the files of ``latecomer.watch``, Flight Recorders' dumps.

A watch has arrivals on one clock. A dump has when each rank began an operation, by its own clock;
with NCCL that is when it was enqueued, which the device comes to later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from latecomer.runtime.explain import job as explained
from latecomer.runtime.explain.sources import read_sources
from latecomer.runtime.telemetry.follower import Follower, kept_operations
from latecomer.runtime.telemetry.records import Record
from latecomer.runtime.whatif.operations import BYTES_OF, Operation, Recording, kind_of
from latecomer.verify.errors import ArgumentError

ENTERED = "a rank has entered the operation"
ENQUEUED = "a rank has enqueued the operation; its device comes to it later"


def read_watched(directory: Path) -> Recording:
    """The newest watch in a directory; FormatError or ArgumentError if there is nothing in it."""
    follower = Follower(directory)
    follower.read()
    by_operation: dict[int, dict[int, Record]] = defaultdict(dict)
    for rank in follower.last_ranks(kept_operations(follower.world_size)):
        for record in rank.records:
            by_operation[record.operation][rank.rank] = record
    whole = [
        records for records in by_operation.values() if len(records) == follower.world_size > 1
    ]
    if not whole:
        requirement = "has no operation of which all ranks have told"
        raise ArgumentError("FILE", str(directory), requirement)
    uncertainty_s = max(record.uncertainty_s for records in whole for record in records.values())
    return _recording(
        source=f"watched in {directory}",
        event=ENTERED,
        operations=[_watched(records) for records in whole],
        clocks=f"rank 0's, within {uncertainty_s * 1e3:.2g} ms",
    )


def read_dumps(paths: Sequence[Path]) -> Recording:
    """The collectives of which all ranks of a group have a dump; ArgumentError if there is none."""
    job = explained.job_of(read_sources(paths).records)
    together: dict[tuple[explained.Group, int], dict[int, explained.Operation]] = defaultdict(dict)
    for rank, operations in job.operations.items():
        for operation in operations:
            if operation.needs_all:
                together[operation.group, operation.sequence][rank] = operation
    whole = [
        by_rank
        for (group, _), by_rank in together.items()
        if len(group.ranks) > 1 and set(by_rank) == set(group.ranks)
    ]
    if not whole:
        requirement = "have no collective that all ranks of a group have recorded"
        raise ArgumentError("FILE", f"{len(job.operations)} dumps", requirement)
    return _recording(
        source=f"dumps of {len(job.operations)} ranks",
        event=ENTERED if job.on_gloo else ENQUEUED,
        operations=[_dumped(by_rank) for by_rank in whole],
        clocks="as they were: nothing is known of their differences",
    )


def _watched(records: dict[int, Record]) -> Operation:
    ranks = tuple(sorted(records))
    arrived_s = [records[rank].arrived_s for rank in ranks]
    done_s = max(records[rank].done_s for rank in ranks)
    return Operation(
        arrivals_s=tuple(each - min(arrived_s) for each in arrived_s),
        kind=kind_of(records[ranks[0]].collective),
        nbytes=records[ranks[0]].bytes,
        took_s=0.0 if math.isnan(done_s) else max(0.0, done_s - max(arrived_s)),
        ranks=ranks,
        first_s=min(arrived_s),
    )


def _dumped(by_rank: dict[int, explained.Operation]) -> Operation:
    ranks = tuple(sorted(by_rank))
    one = by_rank[ranks[0]]
    created_s = [by_rank[rank].created_ns / 1e9 for rank in ranks]
    dtype = str(one.signature[1]) if len(one.signature) > 1 else ""
    elements = [each for each in one.signature[2:] if isinstance(each, int)]
    return Operation(
        arrivals_s=tuple(each - min(created_s) for each in created_s),
        kind=kind_of(one.kind),
        nbytes=max(elements, default=0) * BYTES_OF.get(dtype, 0),
        ranks=ranks,
        first_s=min(created_s),
    )


def _recording(source: str, event: str, operations: list[Operation], clocks: str) -> Recording:
    """Steps are not recorded, so each operation counts as one."""
    operations.sort(key=lambda operation: operation.first_s)
    last_s = max(operation.ended_s for operation in operations)
    return Recording(
        source=source,
        event=event,
        operations=tuple(operations),
        steps=len(operations),
        lasted_s=last_s - operations[0].first_s,
        clocks=clocks,
        unit="operation",
    )
