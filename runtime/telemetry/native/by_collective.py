"""Who keeps whom waiting in the process groups of torch's own, by collective and group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from latecomer.runtime.telemetry.lateness import Line, lines_of
from latecomer.runtime.telemetry.records import Collective, Members, Rank

UNNAMED = ("", "undefined")  # descriptions of groups to which the program gave none
SHOWN = 12  # rows in the printed table
HEAD = (
    f"{'collective':<15} {'group':<16} {'ranks':>5} {'times':>6}  {'mostly last':<12} "
    f"{'late p50':>10} {'all waited for it':>18}"
)


@dataclass(frozen=True)
class CollectiveRow:
    """One kind of collective in one group; ``lines`` as in the table of ranks, worst first."""

    kind: str
    group: str  # its name in torch
    description: str
    ranks: tuple[int, ...]
    times: int
    bytes: int  # of all of them, on one rank
    lines: tuple[Line, ...]

    @property
    def wasted_s(self) -> float:
        """What the ranks have waited for the last one alone."""
        return sum(line.wasted_s for line in self.lines)

    def __str__(self) -> str:
        worst = self.lines[0]
        group = self.group if self.description in UNNAMED else self.description
        return (
            f"{self.kind:<15} {group[:16]:<16} {len(self.ranks):>5} {self.times:>6}  "
            f"{f'{worst.rank}: {worst.last:.0%}':<12} {worst.lateness_p50_s * 1e3:>7.1f} ms "
            f"{worst.wasted_s:>16.2f} s"
        )


class Joint(NamedTuple):
    """One collective that all members of its group have entered; ``arrivals``: by rank."""

    group: Members
    kind: str
    arrivals: dict[int, Collective]


def joint_collectives(ranks: Sequence[Rank]) -> Iterator[Joint]:
    """Those of which all members tell, and tell the same kind."""
    entered: dict[tuple[str, tuple[int, ...], int], dict[int, Collective]] = defaultdict(dict)
    groups: dict[tuple[str, tuple[int, ...]], Members] = {}
    for rank in ranks:
        own = {members.name: members for members in rank.groups}
        for collective in rank.collectives:
            if collective.is_between_two or collective.group not in own:
                continue
            members = own[collective.group]
            groups[members.name, members.ranks] = members
            entered[members.name, members.ranks, collective.number][rank.rank] = collective

    for (name, members_ranks, _), arrivals in entered.items():
        kinds = {collective.kind for collective in arrivals.values()}
        if len(arrivals) == len(members_ranks) > 1 and len(kinds) == 1:
            yield Joint(groups[name, members_ranks], kinds.pop(), arrivals)


def rows_of(ranks: Sequence[Rank]) -> tuple[CollectiveRow, ...]:
    """A row for each kind and group, what wastes most first; of what all members have entered."""
    by_row: dict[tuple[Members, str], list[dict[int, Collective]]] = defaultdict(list)
    for joint in joint_collectives(ranks):
        by_row[joint.group, joint.kind].append(joint.arrivals)

    rows = [
        CollectiveRow(
            kind=kind,
            group=group.name,
            description=group.description,
            ranks=group.ranks,
            times=len(operations),
            bytes=sum(arrivals[min(arrivals)].bytes for arrivals in operations),
            lines=tuple(lines_of(group.ranks, operations)),
        )
        for (group, kind), operations in by_row.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.wasted_s, row.kind, row.group)))


def as_table(rows: Sequence[CollectiveRow]) -> str:
    """For people."""
    lines = [HEAD, *map(str, rows[:SHOWN])]
    if len(rows) > SHOWN:
        lines.append(f"and {len(rows) - SHOWN} more")
    return "\n".join(lines)
