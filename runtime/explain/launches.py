"""What follows from reports of NCCL's RAS: who is gone, who did something else, who is behind.

RAS counts what each rank has launched, and neither whether it has ended nor sends and receives. So
ranks with other counts are behind, and where one is behind in one communicator because it is held
up in another, it is not blamed: waits lead from those that are ahead to those that are behind, and
to those that are gone, over all communicators, and where they end are the culprits.

One report is one moment: ranks of a job that runs are seldom at the same place. Two reports tell a
job that stands still from one in which somebody is slow.

Of two ranks of a communicator, one has launched what the other has and perhaps more. If it has
launched more of one kind and less of another, they have done different things, running or not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import networkx as nx

from latecomer.runtime.explain.ras import Communicator, Lost, Member, Report
from latecomer.runtime.explain.verdicts import Kind, Verdict
from latecomer.runtime.telemetry.rank_names import names

LOST: tuple[tuple[Lost, Kind, str], ...] = (
    ("dead", "absent", "its process is gone: nobody has reached it for a minute"),
    ("unresponsive", "nodump", "its process has not answered RAS for seconds"),
    ("missing", "nodump", "RAS has nothing from it"),
)
PARTIAL = "the text does not tell who has launched what in all communicators; ncclras -f json does"
ONCE = "seen once: if the job goes on they are only late, which a second report would tell"
Rank = tuple[object, ...]
"""What a rank of the job is known by: its place, or its number in one communicator."""
Launched = tuple[tuple[str, int], ...]


def verdicts_of_reports(reports: Sequence[Report]) -> list[Verdict]:
    """What the newest of a job's reports tells, and the oldest beside it; at least one.

    They are of different moments, the oldest first.
    """
    return _Reading(reports[0] if len(reports) > 1 else None, reports[-1]).verdicts()


class _Reading:
    def __init__(self, before: Report | None, now: Report) -> None:
        self.before = before
        self.now = now
        communicators = sorted(now.communicators.values(), key=lambda each: -each.size)
        self.members: dict[Rank, list[tuple[Communicator, Member]]] = defaultdict(list)
        for communicator in communicators:
            for member in communicator.members.values():
                self.members[_place(communicator, member)].append((communicator, member))

    def verdicts(self) -> list[Verdict]:
        found = [verdict for each in self._communicators() for verdict in self._mismatch(each)]
        found += self._errors()
        found += self._lost()
        if not found:
            found += self._behind()
        return found or [self._nothing()]

    def _communicators(self) -> Iterator[Communicator]:
        yield from self.now.communicators.values()

    def _mismatch(self, communicator: Communicator) -> Iterator[Verdict]:
        launched = _comparable(communicator)
        usual = Counter(launched.values()).most_common()
        contradict = [
            (one, other)
            for at, (one, _) in enumerate(usual)
            for other, _ in usual[at + 1 :]
            if not _is_part(one, other) and not _is_part(other, one)
        ]
        if not contradict:
            return
        one, other = contradict[0]
        first = {rank for rank, counts in launched.items() if counts == one}
        second = {rank for rank, counts in launched.items() if counts == other}
        culprits = second if len(second) < len(first) else first | second
        places = [_place(communicator, communicator.members[rank]) for rank in culprits]
        where = f"communicator {communicator.name}"
        lines = [
            f"{where}, {names(first)}: {_said(one)}",
            f"{where}, {names(second)}: {_said(other)}",
        ]
        yield from self._verdicts("mismatch", places, lines)

    def _errors(self) -> Iterator[Verdict]:
        """Ranks that report errors of their own; those of others only if there are no such."""
        own: dict[Rank, str] = {}
        of_others: dict[Rank, str] = {}
        for place, here in self.members.items():
            for _, member in here:
                if member.error:
                    line = f"{self._called(place)} reports {member.error}"
                    reported = own if member.is_own_error else of_others
                    reported[place] = line
        if own:
            yield from self._verdicts("stuck", list(own), list(own.values()))
        elif of_others:
            lines = [*of_others.values(), "nobody reports an error of its own"]
            yield Verdict("nodump", (), witness=tuple(lines))

    def _lost(self) -> Iterator[Verdict]:
        """Ranks that do not answer RAS."""
        for lost, kind, text in LOST:
            gone = [
                place
                for place, here in self.members.items()
                if any(member.lost == lost for _, member in here)
            ]
            if gone:
                lines = [f"{self._called(place)}: {text}" for place in gone]
                yield from self._verdicts(kind, gone, lines)

    def _behind(self) -> Iterator[Verdict]:
        graph = self._waits()
        condensed = nx.condensation(graph)
        ends: set[Rank] = set()
        circles: list[list[Rank]] = []
        for number, members in condensed.nodes(data="members"):
            if condensed.out_degree(number):
                continue
            if len(members) > 1:
                circles.append(sorted(members, key=self._number))
            else:
                ends |= members
        if not self._is_decidable():
            lines = [f"{self._called(place)} is behind" for place in sorted(ends, key=self._number)]
            yield Verdict("nodump", (), witness=(*lines, PARTIAL))
            return
        for circle in circles:
            yield from self._verdicts("cycle", circle, [self._step(graph, each) for each in circle])
        if not ends:
            return
        lines = [self._step(graph, place) for place in self._witnesses(graph, ends)]
        ordered = sorted(ends, key=self._number)
        if 2 * len(ends) > len(graph):
            lines.append("most are there: RAS does not tell who of them holds up the others")
            yield Verdict("hung", (), witness=tuple(lines))
        elif self._went_on(ends):
            lines.append(f"{self._ranks(ordered)} went on since the first report")
            yield from self._verdicts("slow", ordered, lines)
        else:
            lines.append(ONCE if self.before is None else "the first report has the same counts")
            waiting = set().union(*(nx.ancestors(graph, place) for place in ends))
            yield from self._verdicts("absent", ordered, lines, len(waiting))

    def _is_decidable(self) -> bool:
        """Whether who is behind is known of all, and in which communicators it is.

        The text does not tell where the many run: whether one of them is held up by another
        communicator, too, is not known then.
        """
        differ = [each for each in self._communicators() if len(set(_totals(each).values())) > 1]
        is_placed = all(
            member.place is not None for each in differ for member in each.members.values()
        )
        is_partial = any(each.is_partial for each in self._communicators())
        return not is_partial and (len(differ) < 2 or is_placed)

    def _waits(self) -> nx.DiGraph:
        """From ranks that have launched more to those that have launched less."""
        graph = nx.DiGraph()
        for communicator in self._communicators():
            levels: dict[int, list[Rank]] = defaultdict(list)
            for rank, total in _totals(communicator).items():
                levels[total].append(_place(communicator, communicator.members[rank]))
            if len(levels) < 2:
                continue
            for places in levels.values():
                graph.add_nodes_from(places)
            least, *more = sorted(levels)
            for level in more:
                graph.add_edges_from(
                    (ahead, behind) for ahead in levels[level] for behind in levels[least]
                )
        return graph

    def _witnesses(self, graph: nx.DiGraph, ends: set[Rank]) -> list[Rank]:
        """Of those that wait, one for each of the ends."""
        waiting = {min(graph.predecessors(end), key=self._number) for end in ends}
        return sorted(waiting, key=self._number)

    def _step(self, graph: nx.DiGraph, place: Rank) -> str:
        awaited = sorted(graph.successors(place), key=self._number)
        for communicator, member in self.members[place]:
            here = {_place(communicator, each): each for each in communicator.members.values()}
            places_behind = [each for each in awaited if each in here]
            behind = [here[each] for each in places_behind]
            if behind and member.launched is not None:
                ranks = names(each.rank for each in behind)
                ranks += self._elsewhere(communicator, places_behind)
                counts = behind[0].launched or {}
                more = {
                    kind: f"{kind} up to {count}, they up to {counts.get(kind, 0)}"
                    for kind, count in member.launched.items()
                    if count > counts.get(kind, 0)
                }
                if more:
                    return (
                        f"communicator {communicator.name}: rank {member.rank} has launched "
                        f"{', '.join(more.values())}: it waits for {ranks}"
                    )
        return f"{self._called(place)} waits for {self._ranks(awaited)}"

    def _elsewhere(self, communicator: Communicator, places: Sequence[Rank]) -> str:
        """What these are called in the communicator whose numbers the verdict has, if another."""
        largest = {self.members[place][0][0].name for place in places}
        if largest == {communicator.name} or len(largest) > 1:
            return ""
        return f" ({self._ranks(places)} of communicator {largest.pop()})"

    def _went_on(self, places: set[Rank]) -> bool:
        """Whether one of them has launched something since the first report."""
        if self.before is None:
            return False
        for place in places:
            for communicator, member in self.members[place]:
                earlier = self.before.communicators.get(communicator.name)
                if earlier is None or member.rank not in earlier.members:
                    continue
                if earlier.members[member.rank].launched != member.launched:
                    return True
        return False

    def _nothing(self) -> Verdict:
        every = set(self.members)
        said = "all ranks that RAS has counts of have launched the same"
        if self.before is not None and every and not self._went_on(every):
            return Verdict("hung", (), witness=(said, "and nothing since the first report"))
        more = "RAS does not tell whether it has ended: a hang in the network looks the same"
        return Verdict("ok", (), witness=(said, more))

    def _verdicts(
        self, kind: Kind, places: Sequence[Rank], lines: Sequence[str], waiting: int = 0
    ) -> Iterator[Verdict]:
        """One for each communicator in which culprits have their numbers: the largest of each."""
        by_communicator: dict[str, list[Rank]] = defaultdict(list)
        for place in places:
            by_communicator[self.members[place][0][0].name].append(place)
        for name, here in by_communicator.items():
            numbers = {self._number(place) for place in here}
            size = self.now.communicators[name].size
            of = f"ranks are those in communicator {name}, of {size}"
            yield Verdict(
                kind=kind,
                ranks=tuple(sorted(numbers)),
                group=name,
                waiting=waiting,
                witness=(*lines, of),
            )

    def _number(self, place: Rank) -> int:
        return self.members[place][0][1].rank

    def _ranks(self, places: Sequence[Rank]) -> str:
        return names(self._number(place) for place in places)

    def _called(self, place: Rank) -> str:
        _, member = self.members[place][0]
        where = member.place
        if where is None:
            return f"rank {member.rank}"
        return f"rank {member.rank} (process {where.process} on {where.host}, GPU {where.gpu})"


def _place(communicator: Communicator, member: Member) -> Rank:
    """By what a rank is known in all communicators; where RAS has lost that, in this one."""
    return member.place or (communicator.name, member.rank)


def _comparable(communicator: Communicator) -> dict[int, Launched]:
    """By rank, the counts of those kinds that are known of all whose counts are known."""
    known = {
        rank: member.launched
        for rank, member in communicator.members.items()
        if member.launched is not None
    }
    kinds = set.intersection(*map(set, known.values())) if known else set()
    return {
        rank: tuple((kind, counts[kind]) for kind in sorted(kinds))
        for rank, counts in known.items()
    }


def _totals(communicator: Communicator) -> dict[int, int]:
    """By rank, how many collectives it has launched, of those kinds."""
    return {
        rank: sum(count for _, count in counts)
        for rank, counts in _comparable(communicator).items()
    }


def _is_part(one: Launched, other: Launched) -> bool:
    """Whether who has launched ``other`` may have launched ``one`` before."""
    return all(count <= more for (_, count), (_, more) in zip(one, other, strict=True))


def _said(launched: Launched) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in launched if count)
