"""A running job at a glance: what is shown of the files that a :class:`Follower` reads."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from latecomer.runtime.telemetry.follower import Follower
from latecomer.runtime.telemetry.gain import Gain
from latecomer.runtime.telemetry.lateness import Line
from latecomer.runtime.telemetry.summary import summarize

MOST_ROWS = 24  # ranks in the terminal
SHOWN = 5  # ways, reasons and losses in the terminal
SILENT_S = 10.0  # a rank that says nothing for so long is marked


@dataclass(frozen=True)
class RankOverview:
    """One rank; seconds, and None where nothing is known yet."""

    rank: int
    host: str
    process: int
    entered: int | None  # operations
    done: int | None
    seen_s_ago: float | None  # its last sign of life, by the clocks of its host and of this one
    is_over: bool  # it has left the block
    error: str  # by this exception
    late_p50_s: float | None  # after the median arrival, in the last operations
    late_p99_s: float | None
    last: float | None  # share of the last operations in which it came last
    wait_s: float | None  # mean time from its arrival to the last one's, in the last operations
    wasted_s: float | None  # as in the summary, in the last operations
    waited_s: dict[int, float]  # since the watch began, by the rank that came last


@dataclass(frozen=True)
class Overview:
    """All ranks, and what ran."""

    job: str
    watch: str
    began: str  # date and time in UTC, ISO 8601
    version: str
    world_size: int
    hosts: tuple[str, ...]
    missing: tuple[int, ...]  # ranks that have no files here
    operations: int  # since the watch began, that all ranks here have told of
    last_operations: int  # so many the figures of the last operations are about
    ranks: tuple[RankOverview, ...]  # the one that wastes most first
    ways: dict[str, int]  # since the watch began
    reasons: dict[str, int]  # of the last operations
    completion_s: float | None  # median from the last arrival to the last result
    gain: Gain  # of the last operations
    unreadable: int  # lines
    losses: str  # of OptiReduce, as a table

    def as_json(self) -> dict[str, object]:
        """The same in plain types."""
        return asdict(self)


def overview(follower: Follower, operations: int, now_unix_s: float) -> Overview:
    """What a follower has read so far, with figures on the last so many operations."""
    ranks = follower.last_ranks(operations)
    summary = summarize(ranks, follower.world_size)
    by_wasted = [_rank_overview(line, follower, now_unix_s) for line in summary.lines]
    origins = [story.origin for _, story in sorted(follower.stories.items())]
    return Overview(
        job=origins[0].job,
        watch=follower.watch,
        began=min(origin.began for origin in origins),
        version=origins[0].version,
        world_size=follower.world_size,
        hosts=tuple(dict.fromkeys(origin.host for origin in origins)),
        missing=summary.missing,
        operations=follower.totals.operations,
        last_operations=summary.lines[0].operations,
        ranks=tuple(by_wasted),
        ways=dict(follower.totals.ways.most_common()),
        reasons=summary.reasons,
        completion_s=_known(summary.completion_s),
        gain=summary.gain,
        unreadable=follower.unreadable,
        losses=str(summary.losses) if summary.losses.ranks else "",
    )


def _rank_overview(line: Line, follower: Follower, now_unix_s: float) -> RankOverview:
    story = follower.stories[line.rank]
    state = story.state
    return RankOverview(
        rank=line.rank,
        host=story.origin.host,
        process=story.origin.process,
        entered=None if state is None else state.entered,
        done=None if state is None else state.done,
        seen_s_ago=None if state is None else max(0.0, now_unix_s - state.unix_s),
        is_over=state is not None and state.over,
        error="" if state is None else state.error,
        late_p50_s=_known(line.lateness_p50_s),
        late_p99_s=_known(line.lateness_p99_s),
        last=_known(line.last),
        wait_s=_known(line.wait_s),
        wasted_s=_known(line.wasted_s),
        waited_s=dict(follower.totals.waited_s.get(line.rank, {})),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def shown(of: Overview) -> RenderableType:
    """For a terminal."""
    head = Text(f"{of.job or 'a job without a name'}, {of.world_size} ranks on {_hosts(of)}")
    head.append(f"\nwatched since {of.began}, latecomer {of.version}")
    head.append(f"\n{of.operations:,} operations since then; late, last, wait and wasted: ")
    head.append(f"of the last {of.last_operations:,}")

    parts: list[RenderableType] = [head, _table(of)]
    if len(of.ranks) > MOST_ROWS:
        parts.append(Text(f"and {len(of.ranks) - MOST_ROWS} more ranks, which waste less"))
    for rank in of.ranks:
        if rank.error:
            parts.append(Text(f"rank {rank.rank} left the block: {rank.error}", style="red"))
    for way, count in list(of.ways.items())[:SHOWN]:
        parts.append(Text(f"{count:>8,} operations ran: {way}"))
    by_count = sorted(of.reasons.items(), key=lambda item: -item[1])
    for reason, count in by_count[:SHOWN]:
        parts.append(Text(f"{count:>8,} of the last because: {reason}"))
    if of.completion_s is not None:
        parts.append(Text(f"done {of.completion_s * 1e3:.2f} ms after the last arrival (median)"))
    for line in str(of.gain).splitlines():
        parts.append(Text(f"of the last: {line}"))
    if of.losses:
        parts.append(Text(of.losses))
    if of.missing:
        names = ", ".join(map(str, of.missing))
        parts.append(Text(f"no files here of rank(s) {names}"))
    if of.unreadable:
        parts.append(Text(f"{of.unreadable} lines could not be read"))
    return Group(*parts)


def _table(of: Overview) -> Table:
    """As narrow as 80 columns: units are in the head, and one host needs no column."""
    has_hosts = len(of.hosts) > 1
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("rank", justify="right", no_wrap=True)
    if has_hosts:
        table.add_column("host", no_wrap=True)
    for name in ("seen\nago", "done of\nentered", "late p50\nms", "late p99\nms", "was\nlast"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("wait\nms", "wasted\ns", "waited in all,\nmostly for rank"):
        table.add_column(name, justify="right", no_wrap=True)

    for rank in of.ranks[:MOST_ROWS]:
        cells = [Text(str(rank.rank))]
        if has_hosts:
            cells.append(Text(rank.host))
        cells += [
            _sign_of_life(rank),
            Text(_progress(rank)),
            Text(_milliseconds(rank.late_p50_s)),
            Text(_milliseconds(rank.late_p99_s)),
            Text("-" if rank.last is None else f"{rank.last:.0%}"),
            Text(_milliseconds(rank.wait_s)),
            Text("-" if rank.wasted_s is None else f"{rank.wasted_s:.2f}"),
            Text(_waited(rank)),
        ]
        table.add_row(*cells)
    return table


def _hosts(of: Overview) -> str:
    first = ", ".join(of.hosts[:3])
    return first if len(of.hosts) <= 3 else f"{first} and {len(of.hosts) - 3} more hosts"


def _sign_of_life(rank: RankOverview) -> Text:
    if rank.error:
        return Text("failed", style="red")
    if rank.is_over:
        return Text("over")
    if rank.seen_s_ago is None:
        return Text("-")
    style = "red" if rank.seen_s_ago > SILENT_S else ""
    return Text(f"{rank.seen_s_ago:.0f} s", style=style)


def _progress(rank: RankOverview) -> str:
    if rank.entered is None or rank.done is None:
        return "-"
    return f"{rank.done}" if rank.done == rank.entered else f"{rank.done} of {rank.entered}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _waited(rank: RankOverview) -> str:
    total_s = sum(rank.waited_s.values())
    if total_s <= 0:
        return "0.0 s"
    longest = max(rank.waited_s, key=lambda late: (rank.waited_s[late], -late))
    return f"{total_s:.1f} s, {longest}: {rank.waited_s[longest] / total_s:.0%}"
