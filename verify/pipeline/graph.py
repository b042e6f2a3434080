"""Who waits for whom: the event graph of a schedule, its longest paths and its cycles.

Nodes are compute actions and messages. A compute action starts when the action before it in its
rank's program is over and the messages it needs are there. A message starts when the compute
actions before its SEND are over; it holds its link for the occupancy and is there a latency later.

    buffered     Sends hold up nobody. Over a link with occupancy, messages of one direction go in
                 the order of their SENDs; over a half-duplex one, messages of both directions in
                 the order of the lower rank's program.
    rendezvous   Each rank's messages also form one in-order stream (as NCCL's): SEND and RECV are
                 worked off in the order of its program, each is over when the message is there,
                 and none begins before the compute actions that precede it are over. What a rank
                 computes after a wait for a SEND begins when that message is there.

A schedule that is compute only has its messages implied: sent at once, used when needed.
An in-order run never has a choice, so the schedule runs to its end exactly if the graph has no
cycle, and then every start is the longest path to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.messages import pairs
from latecomer.verify.pipeline.schedule import (
    AWAITED_BY,
    COMPUTE,
    PER_STAGE,
    Action,
    PipelineSchedule,
    Program,
    send_of,
)


class Wait(NamedTuple):
    """What has to be finished before a node starts and, if it needs the data, also be there."""

    node: int
    why: str
    data: bool = False


@dataclass(slots=True)
class Node:
    """A compute action of ``rank``, or a message that ``rank`` sends to ``receiver``.

    Attributes:
        length: ticks from start to finish.
        lag: ticks from finish until the data is there, for those who need the data.
    """

    rank: int
    action: Action
    length: int
    lag: int = 0
    receiver: int | None = None
    waits: list[Wait] = field(default_factory=list)

    @property
    def link(self) -> tuple[int, int] | None:
        """The two ranks of a message, lower one first."""
        if self.receiver is None:
            return None
        return min(self.rank, self.receiver), max(self.rank, self.receiver)

    def __str__(self) -> str:
        to = "" if self.receiver is None else f" to {self.receiver}"
        return f"rank {self.rank}{to}: {self.action}"


class Delay(NamedTuple):
    """More latency than the instance says, in ticks, on one link."""

    link: tuple[int, int] | None = None
    latency: Fraction = Fraction(0)

    def lag(self, node: Node) -> int:
        """The lag of a node, times the denominator of ``latency``."""
        extra = self.latency.numerator if self.link is not None and node.link == self.link else 0
        return node.lag * self.latency.denominator + extra


NO_DELAY = Delay()


class Graph:
    """Numbered nodes, and what their waits mean for a run.

    Order, longest paths and cycles are found here and not by networkx: ``check`` builds two or
    three graphs of as many nodes as there are actions, and one pass over lists gives the order and
    the cyclic nodes together.

    Attributes:
        cyclic: nodes that can never start; empty if the schedule runs to its end.
        order: all other nodes, each after all it waits for.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        waiting = [len(node.waits) for node in nodes]
        followers: list[list[int]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for wait in node.waits:
                followers[wait.node].append(number)
        self.order = [number for number, count in enumerate(waiting) if not count]
        for number in self.order:  # grows while it is walked
            for follower in followers[number]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    self.order.append(follower)
        self.cyclic = {number for number, count in enumerate(waiting) if count}

    def finishes(self, delay: Delay = NO_DELAY) -> list[int]:
        """The earliest finish of every node, by longest path; there is no cycle.

        All times are multiplied by the denominator of the delay's latency.
        """
        assert not self.cyclic
        times = delay.latency.denominator
        nodes = self.nodes
        lags = [delay.lag(node) for node in nodes]
        finish = [0] * len(nodes)
        for number in self.order:
            start = 0
            for before, _, data in nodes[number].waits:
                start = max(start, finish[before] + (lags[before] if data else 0))
            finish[number] = start + nodes[number].length * times
        return finish

    def critical(self, finish: list[int], delay: Delay = NO_DELAY) -> list[int]:
        """Nodes of a longest path, first to last, for what ``finishes`` gave with the same."""
        if not finish:
            return []

        number = max(range(len(finish)), key=finish.__getitem__)
        path = [number]
        while start := finish[number] - self.nodes[number].length * delay.latency.denominator:
            number = self._last_awaited(number, start, finish, delay)
            path.append(number)
        return path[::-1]

    def _last_awaited(self, number: int, start: int, finish: list[int], delay: Delay) -> int:
        """A node because of which node ``number`` starts no sooner than ``start``."""
        for before, _, data in self.nodes[number].waits:
            lag = delay.lag(self.nodes[before]) if data else 0
            if start == finish[before] + lag:
                return before
        raise AssertionError("a start is the longest path to it, or 0")

    def cycle(self) -> list[tuple[int, str]]:
        """A cycle, as short as a quick search finds: (node, why it waits for the next one)."""
        node = min(self.cyclic)
        path: dict[int, None] = {}
        while node not in path:
            path[node] = None
            node = next(w.node for w in self.nodes[node].waits if w.node in self.cyclic)
        walked = list(path)
        loop = walked[walked.index(node) :]
        # A shortest way back takes a pass over all that is stuck, so it is looked for from some
        # only.
        shortest = min((self._back_to(begin) for begin in loop[:16]), key=len)

        cycle = []
        for waiting, awaited in pairwise([*shortest, shortest[0]]):
            reasons = (why for before, why, _ in self.nodes[waiting].waits if before == awaited)
            cycle.append((waiting, next(reasons)))
        return cycle

    def _back_to(self, begin: int) -> list[int]:
        """A shortest path from a node on a cycle back to itself, over what each waits for."""
        reached_from: dict[int, int] = {}
        level = [begin]
        while begin not in reached_from:
            following = []
            for node in level:
                for before, _, _ in self.nodes[node].waits:
                    if before in self.cyclic and before not in reached_from:
                        reached_from[before] = node
                        following.append(before)
            level = following
        path = [reached_from[begin]]
        while path[-1] != begin:
            path.append(reached_from[path[-1]])
        return path[::-1]


def build(schedule: PipelineSchedule, costs: Costs, *, rendezvous: bool = False) -> Graph:
    """The event graph of a schedule whose actions and messages are complete.

    Args:
        schedule: every compute action once; every message once, or all of them implied.
        costs: its instance in ticks.
        rendezvous: whether messages are rendezvous on one in-order stream per rank.
    """
    nodes: list[Node] = []
    number: dict[Action, int] = {}  # compute action -> its node
    before: dict[Action, int] = {}  # SEND or RECV -> the last compute action before it
    for rank, program in enumerate(schedule.programs):
        last: int | None = None
        for action in program:
            if action.kind in COMPUTE:
                node = Node(rank, action, costs.duration(action))
                if last is not None:
                    node.waits.append(Wait(last, f"earlier in the program of rank {rank}"))
                last = number[action] = len(nodes)
                nodes.append(node)
            elif last is not None:
                before[action] = last
    if schedule.has_messages:
        _explicit(schedule, costs, nodes, number, before, rendezvous)
    else:
        _implied(schedule, costs, nodes, number)
    return Graph(nodes)


def _implied(
    schedule: PipelineSchedule, costs: Costs, nodes: list[Node], number: dict[Action, int]
) -> None:
    """Messages of a schedule that is compute only, for its cycles: links are not shared here."""
    for action, node in number.items():
        receive = schedule.crossing(action)
        if receive is not None:
            sender = nodes[node].rank
            receiver = schedule.rank_of[receive.stage]
            latency, occupancy, _ = costs.link(sender, receiver)
            waits = [Wait(node, "it computes what is sent")]
            _needed(schedule, nodes, number, receive)
            nodes.append(Node(sender, send_of(receive), occupancy, latency, receiver, waits))


def _needed(
    schedule: PipelineSchedule, nodes: list[Node], number: dict[Action, int], receive: Action
) -> None:
    """The consumer of ``receive`` waits for the message that is the next node."""
    consumer = nodes[number[schedule.consumer(receive)]]
    consumer.waits.append(Wait(len(nodes), "needs its data", data=True))


def _explicit(
    schedule: PipelineSchedule,
    costs: Costs,
    nodes: list[Node],
    number: dict[Action, int],
    before: dict[Action, int],
    rendezvous: bool,
) -> None:
    """Messages as written: the k-th receive from a rank takes what that rank sent k-th."""
    message: dict[Action, int] = {}  # SEND or RECV -> node
    for (sender, receiver), (sent, received) in pairs(schedule).items():
        latency, occupancy, _ = costs.link(sender, receiver)
        length, lag = (occupancy + latency, 0) if rendezvous else (occupancy, latency)
        for send, receive in zip(sent, received, strict=True):
            node = Node(sender, send, length, lag, receiver)
            if send in before:
                node.waits.append(Wait(before[send], "comes before the send"))
            if rendezvous and receive in before:
                node.waits.append(Wait(before[receive], "comes before the receive"))
            message[send] = message[receive] = len(nodes)
            _needed(schedule, nodes, number, receive)
            nodes.append(node)
    for rank, program in enumerate(schedule.programs):
        previous: dict[str, int] = {}  # queue -> its last message
        for action in program:
            if action in message:
                node = nodes[message[action]]
                queue = _queue(node, rank, costs, rendezvous)
                if queue in previous:
                    node.waits.append(Wait(previous[queue], f"earlier on {queue}"))
                if queue is not None:
                    previous[queue] = message[action]
        if rendezvous and schedule.has_waits:
            _waited(program, nodes, number, message)


def _waited(
    program: Program, nodes: list[Node], number: dict[Action, int], message: dict[Action, int]
) -> None:
    """Compute actions wait for the messages that are waited for before them.

    Messages do so anyway: they are later on the stream of the rank.
    """
    awaited: list[Wait] = []  # since the last compute action, which has waited for those before
    for action in program:
        if action in number:
            nodes[number[action]].waits += awaited
            awaited.clear()
        elif action.kind in AWAITED_BY and action.kind not in PER_STAGE:
            send = action._replace(kind=AWAITED_BY[action.kind])
            awaited.append(Wait(message[send], f"{action} comes before it"))


def _queue(message: Node, rank: int, costs: Costs, rendezvous: bool) -> str | None:
    """What ``rank`` makes a message wait in line for; None if nothing."""
    if rendezvous:
        return f"the stream of rank {rank}"
    assert message.link is not None
    low, high = message.link
    _, occupancy, half = costs.link(low, high)
    if not occupancy:
        return None
    if half:
        return f"the link {low}-{high}" if rank == low else None
    return f"the link to rank {message.receiver}" if rank == message.rank else None
