"""The model of a run's arrivals: by operation who came when, what was decided and why.

Times of an operation are seconds since its first arrival, by rank; null where a rank has no record
of it, or did not finish it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from latecomer.runtime.telemetry.records import NATIVE, Rank, Record
from latecomer.runtime.telemetry.summary import Summary, summarize
from latecomer.verify.errors import ArgumentError
from latecomer.verify.viewer.part import Part

MOST_ARRIVALS = 200_000
"""Operations times ranks of one page."""

HOSTS_NAMED = 8

MOST_SPANS = 40_000
"""Rounds and stages of one page."""


def model(
    title: str,
    blocks: Mapping[str, Sequence[Rank]],
    part: Part | None,
    reload_s: float | None = None,
) -> dict[str, Any]:
    """What the page shows.

    Args:
        title: of the page.
        blocks: what ranks remember of each stretch that was watched, by the name of its trace.
        part: the operations to show, counted over all blocks; None: as many as a page can.
        reload_s: how often the page loads itself again, in seconds; None: never.

    Raises:
        ArgumentError: no such operations, or more than a page can show.
    """
    ranks = sorted({rank.rank for block in blocks.values() for rank in block})
    operations = []
    for number, block in enumerate(blocks.values()):
        for records, spans in _by_operation(block):
            operations.append({"block": number, **_operation(ranks, records, spans)})

    total = len(operations)
    limit = max(1, MOST_ARRIVALS // len(ranks))
    low, high = part.within(total, "operations") if part else (0, min(total, limit))
    if high - low > limit:
        raise ArgumentError("--operations", part and part.text, f"are more than {limit:,}")
    shown = operations[low:high]

    spans_so_far = 0
    for operation in shown:
        spans_so_far += len(operation["spans"])
        if spans_so_far > MOST_SPANS:
            operation["spans"] = []

    cut = ""
    if (low, high) != (0, total):
        next_high = min(total, high % total + high - low)
        cut = (
            f"Shown are operations {low} to {high - 1} of {total}; the tables are on all of "
            f"them. Others: --operations FROM-TO, for example "
            f"--operations {high % total}-{next_high - 1}."
        )
    summaries = [summarize(block, max(ranks) + 1) for block in blocks.values()]
    return {
        "title": title,
        "family": "arrivals",
        "verdict": "",
        "headline": _headline(ranks, total, summaries),
        "properties": [],
        "facts": [],
        "faults": [],
        "cut": cut,
        "ranks": ranks,
        "native": NATIVE,
        "first": low,
        "blocks": list(blocks),
        "about": [about(name, block) for name, block in blocks.items()],
        "reload": reload_s,
        "tables": [_table(summary) for summary in summaries],
        "operations": shown,
    }


def about(name: str, block: Sequence[Rank]) -> str:
    """Which job a block is of, on which hosts, when and by which version, in a line."""
    origins = [rank.origin for rank in block if rank.origin is not None]
    if not origins:
        return f"{name}: date, hosts and job are not in it, as in traces of earlier versions"
    hosts = list(dict.fromkeys(origin.host for origin in origins))
    on = ", ".join(hosts[:HOSTS_NAMED])
    if len(hosts) > HOSTS_NAMED:
        on = f"{on} and {len(hosts) - HOSTS_NAMED} more hosts"
    first = min(origins, key=lambda origin: origin.began_unix_s)
    job = f"job {first.job}" if first.job else "a job without a name"
    began = datetime.fromtimestamp(first.began_unix_s, UTC)
    return (
        f"{name}: {job}, {first.ranks} ranks on {on}, watched since "
        f"{began:%Y-%m-%d %H:%M:%S} UTC, latecomer {first.version}"
    )


Span = list[object]
"""[rank, name, begin, end, kind]; 0 is a round, 1 a stage that lost nothing, 2 one that did."""


def _by_operation(block: Sequence[Rank]) -> list[tuple[dict[int, Record], list[Span]]]:
    """For each operation the record of each rank, and the rounds and stages (times as recorded)."""
    records: defaultdict[int, dict[int, Record]] = defaultdict(dict)
    spans: defaultdict[int, list[Span]] = defaultdict(list)
    for rank in block:
        for record in rank.records:
            records[record.operation][rank.rank] = record
        for ended in rank.rounds:
            name = f"{ended.phase} round {ended.round}"
            spans[ended.operation].append([rank.rank, name, ended.began_s, ended.ended_s, 0])
        for stage in rank.stages:
            name = f"stage {stage.stage}: {stage.end}, {stage.lost} of {stage.due} lost"
            kind = 2 if stage.lost > 0 else 1
            spans[stage.operation].append([rank.rank, name, stage.began_s, stage.ended_s, kind])
    return [(records[number], spans[number]) for number in sorted(records)]


def _operation(ranks: list[int], records: dict[int, Record], spans: list[Span]) -> dict[str, Any]:
    first = records[min(records)]
    start_s = min(record.arrived_s for record in records.values())
    row = {rank: i for i, rank in enumerate(ranks)}

    def since(time_s: float) -> float | None:
        return None if math.isnan(time_s) else round(time_s - start_s, 7)

    def column(name: str) -> list[float | None]:
        times: list[float | None] = []
        for rank in ranks:
            if rank in records:
                times.append(since(getattr(records[rank], name)))
            else:
                times.append(None)
        return times

    return {
        "number": first.operation,
        "start": round(start_s, 6),
        "bytes": first.bytes,
        "way": first.way,
        "late": list(first.late),
        "reason": first.reason,
        "uncertainty": max(record.uncertainty_s for record in records.values()),
        "arrived": column("arrived_s"),
        "decided": column("decided_s"),
        "done": column("done_s"),
        "spans": [[row[r], name, since(a), since(b), kind] for r, name, a, b, kind in spans],  # type: ignore[index,arg-type]
    }


def _headline(ranks: list[int], operations: int, summaries: Sequence[Summary]) -> str:
    """In a line: how much was watched, and who wasted most (see ``summary``)."""
    wasted_s: defaultdict[int, float] = defaultdict(float)
    for summary in summaries:
        for line in summary.lines:
            wasted_s[line.rank] += line.wasted_s
    text = f"{operations} operations of {len(ranks)} ranks"
    worst = max(wasted_s, key=lambda rank: (wasted_s[rank], -rank))
    if wasted_s[worst] <= 0:
        return f"{text}: no rank wasted anything"
    text = f"{text}: rank {worst} wasted most, {wasted_s[worst]:.2f} s"
    if any(summary.gain.compared for summary in summaries):
        saved_s = sum(summary.gain.saved_s for summary in summaries)
        return f"{text}; {'saved' if saved_s >= 0 else 'lost'} {abs(saved_s):.2f} s"

    reasons = [summary.gain.usual_reason for summary in summaries if summary.gain.usual_reason]
    if reasons:
        return f"{text}; saved nothing: all ran natively, mostly because: {reasons[0]}"
    return text


def _table(summary: Summary) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "lines": [
            [
                line.rank,
                number(line.wait_s),
                number(line.last),
                number(line.lateness_p50_s),
                number(line.lateness_p99_s),
                line.wasted_s,
            ]
            for line in summary.lines
        ],
        "ways": sorted(summary.ways.items(), key=lambda item: -item[1]),
        "reasons": sorted(summary.reasons.items(), key=lambda item: -item[1]),
        "completion": number(summary.completion_s),
    }
