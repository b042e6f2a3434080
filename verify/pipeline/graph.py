"""Who waits for whom: the event graph of a schedule, its longest paths and its cycles.

Nodes are compute actions and messages. A compute action starts when the action before it in its
rank's program is over and the messages it needs are there. A message starts when the compute
actions before its SEND are over; it holds its link for the occupancy and is there a latency later.

    buffered     Sends hold up nobody. Over a link with occupancy, messages of one direction go in
                 the order of their SENDs; over a half-duplex one, messages of both directions in
                 the order of the lower rank's program.
    rendezvous   Each rank's messages also form one in-order stream (as NCCL's): SEND and RECV are
                 worked off in the order of its program, each is over when the message is there,
                 and none begins before the compute actions that precede it are over.

A schedule that is compute only has its messages implied: sent at once, used when needed.
An in-order run never has a choice, so the schedule runs to its end exactly if the graph has no
cycle, and then every start is the longest path to it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from verify.pipeline.costs import Costs
from verify.pipeline.messages import consumer, pairs
from verify.pipeline.schedule import (
    COMPUTE,
    RECEIVES,
    SENDS,
    Action,
    PipelineSchedule,
    send_of,
)


@dataclass(frozen=True)
class Node:
    """A compute action of ``rank``, or a message that ``rank`` sends to ``receiver``."""

    rank: int
    action: Action
    receiver: int | None = None

    @property
    def link(self) -> tuple[int, int] | None:
        """The two ranks of a message, lower one first."""
        if self.receiver is None:
            return None
        return min(self.rank, self.receiver), max(self.rank, self.receiver)

    def __str__(self) -> str:
        if self.receiver is None:
            return f"rank {self.rank}: {self.action}"
        return f"rank {self.rank} to {self.receiver}: {self.action}"


@dataclass
class Graph:
    """Nodes with their lengths, and for each node those it waits for.

    Attributes:
        length: ticks from start to finish.
        lag: ticks from finish until the data is there, for those who need the data.
        after: per node, (node that has to be finished, why).
        needs: per node, nodes whose data has to be there.
        cyclic: nodes that can never start; empty if the schedule runs to its end.
        order: all other nodes, each after all it waits for.
    """

    nodes: list[Node] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    lag: list[int] = field(default_factory=list)
    after: list[list[tuple[int, str]]] = field(default_factory=list)
    needs: list[list[int]] = field(default_factory=list)
    cyclic: set[int] = field(default_factory=set)
    order: list[int] = field(default_factory=list)

    def add(self, node: Node, length: int, lag: int = 0) -> int:
        """A new node; its number."""
        self.nodes.append(node)
        self.length.append(length)
        self.lag.append(lag)
        self.after.append([])
        self.needs.append([])
        return len(self.nodes) - 1

    def sort(self) -> None:
        """Find ``order`` and ``cyclic``."""
        waiting = [0] * len(self.nodes)
        followers: list[list[int]] = [[] for _ in self.nodes]
        for node in range(len(self.nodes)):
            for before in self._before(node):
                followers[before].append(node)
                waiting[node] += 1
        self.order = [node for node, count in enumerate(waiting) if not count]
        for node in self.order:  # grows while it is walked
            for follower in followers[node]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    self.order.append(follower)
        self.cyclic = {node for node, count in enumerate(waiting) if count}

    def _before(self, node: int) -> list[int]:
        return [*(before for before, _ in self.after[node]), *self.needs[node]]

    def finishes(
        self, link: tuple[int, int] | None = None, extra: int = 0, times: int = 1
    ) -> list[int]:
        """The earliest finish of every node, by longest path; there is no cycle.

        ``link`` gets ``extra`` more latency; all times are multiplied by ``times`` first.
        """
        assert not self.cyclic
        length, after, needs = self.length, self.after, self.needs
        there = [lag * times for lag in self.lag]
        if extra:
            for node, what in enumerate(self.nodes):
                if what.receiver is not None and what.link == link:
                    there[node] += extra
        finish = [0] * len(self.nodes)
        for node in self.order:
            start = 0
            for before, _ in after[node]:
                start = max(start, finish[before])
            for before in needs[node]:
                start = max(start, finish[before] + there[before])
            finish[node] = start + length[node] * times
        return finish

    def critical(
        self,
        finish: list[int],
        link: tuple[int, int] | None = None,
        extra: int = 0,
        times: int = 1,
    ) -> list[int]:
        """Nodes of a longest path, first to last, for what ``finishes`` gave with the same."""
        node = max(range(len(finish)), key=finish.__getitem__, default=-1)
        path = []
        while node >= 0:
            path.append(node)
            start = finish[node] - self.length[node] * times
            if start == 0:
                break
            node = next(
                before
                for before in self._before(node)
                if start
                == finish[before]
                + (self._there(before, link, extra, times) if before in self.needs[node] else 0)
            )
        return path[::-1]

    def _there(self, node: int, link: tuple[int, int] | None, extra: int, times: int) -> int:
        what = self.nodes[node]
        more = extra if what.receiver is not None and what.link == link else 0
        return self.lag[node] * times + more

    def cycle(self) -> list[tuple[int, str]]:
        """A cycle, as short as a quick search finds: (node, why it waits for the next one)."""
        node, path = min(self.cyclic), []
        while node not in path:
            path.append(node)
            node = next(before for before in self._before(node) if before in self.cyclic)
        loop = path[path.index(node) :]
        best = min((self._back_to(begin) for begin in loop[:16]), key=len)
        return [
            (one, self._why(one, other))
            for one, other in zip(best, best[1:] + best[:1], strict=True)
        ]

    def _back_to(self, begin: int) -> list[int]:
        """A shortest way from a node on a cycle back to itself, over what each waits for."""
        reached_from: dict[int, int] = {}
        level = [begin]
        while begin not in reached_from:
            following = []
            for node in level:
                for before in self._before(node):
                    if before in self.cyclic and before not in reached_from:
                        reached_from[before] = node
                        following.append(before)
            level = following
        way = [reached_from[begin]]
        while way[-1] != begin:
            way.append(reached_from[way[-1]])
        return way[::-1]

    def _why(self, node: int, before: int) -> str:
        if before in self.needs[node]:
            return "needs its data"
        return next(why for other, why in self.after[node] if other == before)


def build(schedule: PipelineSchedule, costs: Costs, *, rendezvous: bool = False) -> Graph:
    """The event graph of a schedule whose actions and messages are complete.

    Args:
        schedule: every compute action once; every message once, or all of them implied.
        costs: its situation.
        rendezvous: whether messages are rendezvous on one in-order stream per rank.
    """
    graph = Graph()
    number: dict[Action, int] = {}
    before: dict[Action, int] = {}  # SEND or RECV -> the last compute action before it
    durations = {kind: costs.durations_of(kind) for kind in COMPUTE}
    for rank, program in enumerate(schedule.programs):
        last = -1
        for action in program:
            if action.kind in durations:
                node = graph.add(Node(rank, action), durations[action.kind][action.stage])
                number[action] = node
                if last >= 0:
                    graph.after[node].append((last, f"earlier in the program of rank {rank}"))
                last = node
            elif last >= 0:
                before[action] = last
    if schedule.has_messages:
        _explicit(schedule, costs, graph, number, before, rendezvous)
    else:
        _implied(schedule, costs, graph, number)
    graph.sort()
    return graph


def _implied(
    schedule: PipelineSchedule, costs: Costs, graph: Graph, number: dict[Action, int]
) -> None:
    """Messages of a schedule that is compute only, for its cycles: links are not shared here."""
    for action, node in list(number.items()):
        receive = schedule.crossing(action)
        if receive is not None:
            receiver = schedule.rank_of[receive.stage]
            latency, occupancy, _ = costs.link(graph.nodes[node].rank, receiver)
            what = Node(graph.nodes[node].rank, send_of(receive), receiver)
            message = graph.add(what, occupancy, latency)
            graph.after[message].append((node, "it computes what is sent"))
            graph.needs[number[consumer(schedule, receive)]].append(message)


def _explicit(
    schedule: PipelineSchedule,
    costs: Costs,
    graph: Graph,
    number: dict[Action, int],
    before: dict[Action, int],
    rendezvous: bool,
) -> None:
    """Messages as written: the k-th receive from a rank takes what that rank sent k-th."""
    message: dict[Action, int] = {}  # SEND or RECV -> node
    for (sender, receiver), (sent, received) in pairs(schedule).items():
        latency, occupancy, _ = costs.link(sender, receiver)
        for send, receive in zip(sent, received, strict=True):
            node = graph.add(
                Node(sender, send, receiver),
                occupancy + latency if rendezvous else occupancy,
                0 if rendezvous else latency,
            )
            message[send] = message[receive] = node
            if send in before:
                graph.after[node].append((before[send], "comes before the send"))
            if rendezvous and receive in before:
                graph.after[node].append((before[receive], "comes before the receive"))
            graph.needs[number[consumer(schedule, receive)]].append(node)
    for rank, program in enumerate(schedule.programs):
        previous: dict[object, int] = defaultdict(lambda: -1)  # queue -> its last message
        for action in program:
            if action.kind not in SENDS + RECEIVES:
                continue
            node = message[action]
            queue = _queue(graph.nodes[node], rank, costs, rendezvous)
            if queue is not None:
                if previous[queue] >= 0:
                    why = f"earlier on {queue}"
                    graph.after[node].append((previous[queue], why))
                previous[queue] = node


def _queue(message: Node, rank: int, costs: Costs, rendezvous: bool) -> str | None:
    """What ``rank`` makes a message wait in line for; None if nothing."""
    if rendezvous:
        return f"the stream of rank {rank}"
    assert message.link is not None
    _, occupancy, half = costs.link(*message.link)
    low, high = message.link
    if not occupancy:
        return None
    if half:
        return f"the link {low}-{high}" if rank == low else None
    return f"the link to rank {message.receiver}" if rank == message.rank else None
