"""What follows from the graph of waits: which ranks hold up the job, how, and the way to them.

Waits lead to their causes: to ranks that wait for nobody, or round a circle. What the rank at the
end has done is the kind:

    mismatch  it did something else than the others of its group, which come first in time
    absent    it never entered what others wait in
    stuck     it is in an operation that all others have completed: its own device
    cycle     ranks wait for each other, in groups that they use in different orders
    p2p       a send and a receive that do not meet
    slow      it goes on, behind the others, or comes late again and again (not from dumps)
    hung      all have entered it and none is through: the network, or the root of it
    nodump    there is no dump of it: what decides is in there
    ok        nothing is open, and all ranks did the same

Nobody is blamed without evidence: where it does not suffice, the verdict is ``nodump``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

import msgspec
import networkx as nx

from latecomer.runtime.explain.diverged import Divergence, departs, divergences
from latecomer.runtime.explain.job import Group, Job, Operation
from latecomer.runtime.explain.waits import Waits
from latecomer.runtime.telemetry.rank_names import names

Kind = Literal["mismatch", "absent", "stuck", "cycle", "p2p", "slow", "hung", "nodump", "ok"]
ENDS: tuple[Kind, ...] = ("absent", "stuck", "nodump", "hung")  # of a way, worst first
LATELY = 4  # operations in which a rank in a circle may have left the usual order
MOST_SHOWN = 8  # ranks of which it is told one by one what they did


class Verdict(msgspec.Struct, frozen=True):
    """One cause.

    Attributes:
        kind: see the module.
        ranks: the culprits.
        group: of the operation; its name in torch.
        operation: what they, or those that wait for them, are in.
        waiting: how many ranks wait for them, others between them or not.
        witness: the way from a rank that waits to a culprit, and what that has done; a line each.
    """

    kind: Kind
    ranks: tuple[int, ...]
    group: str = ""
    operation: str = ""
    waiting: int = 0
    witness: tuple[str, ...] = ()


def verdicts(job: Job, *, stands: bool = True) -> list[Verdict]:
    """All that hold it up; what came first comes first.

    Of a job that is not known to stand it is told where ranks did different things, no more.
    """
    return _Reasons(job).verdicts(stands=stands)


class _Reasons:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.waits = Waits(job)
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from(self.waits.edges)
        for rank, awaited in self.waits.edges.items():
            self.graph.add_edges_from((rank, other) for other in awaited)

    def verdicts(self, *, stands: bool) -> list[Verdict]:
        diverged = divergences(self.waits)
        found = [self._mismatch(divergence) for divergence in diverged]
        if not stands:
            return found or [Verdict("ok", ())]
        places = {(divergence.group, divergence.sequence) for divergence in diverged}
        blamed = {rank for divergence in diverged for rank in divergence.culprits}

        ends, circles = self._ends_and_circles()
        for kind in ENDS:
            if ends[kind] and not places & self._places(ends[kind]):
                found.append(self._blame(kind, ends[kind]))
        for circle in circles:
            if not blamed & circle:
                found.append(self._circle(circle))
        silent = self.job.without_dump | self.job.cut
        if not found and silent:
            said = "nothing is open in what the others have left"
            lines = (said, *(self._what_it_did(rank) for rank in sorted(silent)[:MOST_SHOWN]))
            found.append(Verdict("nodump", tuple(sorted(silent)), witness=lines))
        return found or [Verdict("ok", ())]

    def _ends_and_circles(self) -> tuple[dict[Kind, set[int]], list[set[int]]]:
        """Where the ways of waits end: ranks by what each has done, and circles."""
        ends: dict[Kind, set[int]] = defaultdict(set)
        circles = []
        condensed = nx.condensation(self.graph)
        for number, members in condensed.nodes(data="members"):
            if condensed.out_degree(number):
                continue
            if len(members) > 1:
                circles.append(set(members))
            else:
                (rank,) = members
                ends[self._kind_of_end(rank)].add(rank)
        return ends, circles

    def _kind_of_end(self, rank: int) -> Kind:
        if rank not in self.job.operations or rank in self.job.cut:
            return "nodump"
        wait = self.waits.of.get(rank)
        if wait is None:
            return "absent"
        if wait.through and wait.operation.needs_all:
            # On Gloo all end together: this dump is older than the others'.
            is_on_gloo = rank in self.job.on_gloo | self.job.watched
            return "absent" if is_on_gloo else "stuck"
        return "hung"

    def _places(self, ranks: Iterable[int]) -> set[tuple[Group, int]]:
        """The operations in which they stand."""
        stand_at = [self.waits.of[rank].operation for rank in ranks if rank in self.waits.of]
        return {(operation.group, operation.sequence) for operation in stand_at}

    def _mismatch(self, divergence: Divergence) -> Verdict:
        by_done: dict[str, list[int]] = defaultdict(list)
        for rank, done in divergence.did.items():
            text = " + ".join(" ".join(map(str, signature)) for signature in done)
            entered = self.waits.at[rank, divergence.group, divergence.sequence][0]
            by_done[text + _line(entered)].append(rank)
        lines = [f"{names(ranks)}: {text}" for text, ranks in by_done.items()]
        if divergence.how:
            lines.append(f"{names(divergence.culprits)}: {divergence.how}")
        return Verdict(
            kind="mismatch",
            ranks=tuple(sorted(divergence.culprits)),
            group=divergence.group.name,
            operation=f"operation {divergence.sequence} of {self.job.called(divergence.group)}",
            waiting=self._waiting(divergence.culprits),
            witness=tuple(lines),
        )

    def _blame(self, kind: Kind, ranks: set[int]) -> Verdict:
        operation = self._awaited(ranks)
        ordered = sorted(ranks)
        lines = self._way_to(ranks)
        lines += [self._what_it_did(rank) for rank in ordered[:MOST_SHOWN]]
        if len(ordered) > MOST_SHOWN:
            lines.append(f"and {len(ordered) - MOST_SHOWN} more ranks")
        idle = self.job.operations.keys() - self.waits.edges.keys() - ranks
        if idle and kind == "absent":
            lines.append(f"{names(idle)}: nothing is open there, either, and nobody waits for it")
        return Verdict(
            kind=kind,
            ranks=tuple(sorted(ranks)),
            group=operation.group.name if operation else "",
            operation=self._said(operation) if operation else "",
            waiting=self._waiting(ranks),
            witness=tuple(lines),
        )

    def _circle(self, circle: set[int]) -> Verdict:
        between_two = {rank for rank in circle if self.waits.of[rank].operation.peer is not None}
        peers = {self.waits.of[rank].operation.peer for rank in between_two}
        odd = {rank for rank in circle if departs(self.waits, self._stands_at(rank), LATELY)}
        culprits = between_two | {peer for peer in peers if peer is not None} or odd or circle
        operation = self._stands_at(min(culprits & circle))
        lines = [self._step(rank, self.waits.edges[rank] & circle) for rank in sorted(circle)]
        return Verdict(
            kind="p2p" if between_two else "cycle",
            ranks=tuple(sorted(culprits)),
            group=operation.group.name,
            operation=self._said(operation),
            waiting=self._waiting(circle),
            witness=tuple(lines),
        )

    def _stands_at(self, rank: int) -> Operation:
        return self.waits.of[rank].operation

    def _waiting(self, ranks: Iterable[int]) -> int:
        """How many others wait for one of them, or for who waits for one."""
        here = [rank for rank in ranks if rank in self.graph]
        waiting = set().union(*(nx.ancestors(self.graph, rank) for rank in here))
        return len(waiting - set(here))

    def _awaited(self, ranks: set[int]) -> Operation | None:
        """What the culprits stand at, or the first in which others wait for them."""
        own = [self._stands_at(rank) for rank in sorted(ranks) if rank in self.waits.of]
        if own:
            return own[0]
        waiting = [
            wait.operation for rank, wait in self.waits.of.items() if self.waits.edges[rank] & ranks
        ]
        return min(waiting, key=lambda operation: operation.created_ns, default=None)

    def _way_to(self, ranks: set[int]) -> list[str]:
        """From who is furthest away to the nearest of the culprits."""
        reverse = self.graph.reverse(copy=False)
        there = [rank for rank in ranks if rank in reverse]
        ways = nx.multi_source_dijkstra_path(reverse, set(there)) if there else {}
        furthest: list[int] = max(ways.values(), key=len, default=[])
        steps = itertools.pairwise(reversed(furthest))
        return [self._step(rank, {awaited}) for rank, awaited in steps]

    def _step(self, rank: int, awaited: set[int]) -> str:
        wait = self.waits.of.get(rank)
        if wait is None:
            return f"rank {rank}: its last operation may have failed by {names(awaited)}"
        has = "has" if len(awaited) == 1 else "have"
        evidence = f"which {has} not entered it"
        if awaited <= self.job.without_dump:
            evidence = "of which there is no dump"
        elif wait.operation.peer is not None:
            evidence = "which is not at the other end of it"
        elif awaited & self.job.cut:
            evidence = "of which it is not known whether it has entered it"
        elif not awaited <= wait.missing:
            evidence = f"which {has} enqueued it behind another operation"
        return (
            f"rank {rank} waits in {self._said(wait.operation)}{_line(wait.operation)}, "
            f"for {names(awaited)}, {evidence}"
        )

    def _what_it_did(self, rank: int) -> str:
        remark = self.job.remarks.get(rank, "")
        return self._where_it_stands(rank) + (f"; {remark}" if remark else "")

    def _where_it_stands(self, rank: int) -> str:
        if rank not in self.job.operations:
            return f"rank {rank}: there is no dump of it"
        wait = self.waits.of.get(rank)
        if wait is not None:
            through = f", which {names(wait.through)} completed" if wait.through else ""
            return f"rank {rank} is in {self._said(wait.operation)}{_line(wait.operation)}{through}"
        operations = self.job.operations[rank]
        if not operations:
            return f"rank {rank} has nothing open: there is no operation in its dump"
        last = f"{self._said(operations[-1])}{_line(operations[-1])}"
        text = f"rank {rank} has nothing open; its last, {last}, has ended"
        if rank in self.job.on_gloo:
            text += " (Gloo records no send and no receive: it may be in one)"
        return text

    def _said(self, operation: Operation) -> str:
        peer = "" if operation.peer is None else f" with rank {operation.peer}"
        number = f"operation {operation.sequence} of {self.job.called(operation.group)}"
        return f"{operation.kind}{peer}, {number}"


def _line(operation: Operation) -> str:
    """Where the program is in it, as far as its stack was recorded."""
    return f" ({operation.where})" if operation.where else ""
