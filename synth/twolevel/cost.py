"""What a schedule costs on a machine of two levels, with and without barriers between its rounds.

    seconds      every round waits for its slowest message, whatever level that is on. Messages
                 inside nodes that share a round with the network are free, and none starts early.
    overlapped   no barrier: a rank begins its next round when its own messages of this one are
                 done, which is how the runtime goes about it. Fast rounds inside one node then run
                 while another node still waits for the network. Network ports are taken in the
                 order of the rounds and not handed to anybody in between, so this is one possible
                 run, a feasible time under the model and no lower bound.

Both start with everybody ready: the wait is over, the late rank has just arrived. A message of q
chunks takes alpha + q * S / k * beta of its level; the messages of one port go one after another.
Source: the alpha-beta model with a level for each link, as in MPI's hierarchical collectives.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from fractions import Fraction
from heapq import heapreplace

from synth.cost import Cost
from synth.twolevel.machine import Machine
from verify.core.schedule import Phase, Round, Schedule, Transfer


def completion_s(schedule: Schedule, machine: Machine, buffer_bytes: int) -> float:
    """Seconds from the last arrival to the end, with a barrier after every round."""
    return _barriers(schedule, machine, buffer_bytes, _completion(schedule))


def waiting_s(schedule: Schedule, machine: Machine, buffer_bytes: int) -> float:
    """Seconds of the phases that a rank is absent from: the wait that hides them."""
    waiting = (phase for phase in schedule.phases if phase.absent)
    return _barriers(schedule, machine, buffer_bytes, waiting)


def overlapped_s(schedule: Schedule, machine: Machine, buffer_bytes: int) -> float:
    """Seconds from the last arrival to the end, without barriers; at most ``completion_s``.

    ("At most" where the schedule keeps to the network ports.)
    """
    chunk_bytes = buffer_bytes / schedule.chunks
    ready = [0.0] * machine.ranks
    ports = {
        (node, way): [0.0] * machine.network_ports
        for node in range(machine.nodes)
        for way in ("out", "in")
    }
    node_of = machine.node_of
    for transfers in (r for phase in _completion(schedule) for r in phase.rounds):
        before = list(ready)
        out = list(ready)  # when a rank's port is free, within this round
        into = list(ready)
        for (src, dst), chunks in _messages(transfers).items():
            start = max(before[src], before[dst], out[src], into[dst])
            crosses = node_of[src] != node_of[dst]
            if crosses:
                start = max(start, ports[node_of[src], "out"][0], ports[node_of[dst], "in"][0])
            end = start + _message_s(machine, src, dst, chunks * chunk_bytes)
            if crosses:
                heapreplace(ports[node_of[src], "out"], end)
                heapreplace(ports[node_of[dst], "in"], end)
            out[src] = into[dst] = end
            ready[src], ready[dst] = max(ready[src], end), max(ready[dst], end)
    return max(ready)


def network_rounds(schedule: Schedule, machine: Machine) -> int:
    """Completion rounds in which at least one message crosses the network."""
    node_of = machine.node_of
    return sum(
        any(node_of[t.src] != node_of[t.dst] for t in transfers)
        for phase in _completion(schedule)
        for transfers in phase.rounds
    )


def level_costs(schedule: Schedule, machine: Machine) -> tuple[Cost, Cost]:
    """The completion's rounds that use the network, and all others, each as a :class:`Cost`.

    A round counts as one message of as many chunks as its busiest rank sends or receives; what
    shares a round with the network is not counted apart, as in :func:`completion_s`.
    """
    nodes = machine.node_of
    costs = {crosses: Cost(0, Fraction(0)) for crosses in (True, False)}
    for phase in _completion(schedule):
        for transfers in phase.rounds:
            crossing = [t for t in transfers if nodes[t.src] != nodes[t.dst]]
            chunks = _busiest_rank(crossing or transfers)
            costs[bool(crossing)] += Cost(1, Fraction(chunks, schedule.chunks))
    return costs[True], costs[False]


def _busiest_rank(transfers: Iterable[Transfer]) -> int:
    """The most chunks that one rank sends, or receives."""
    sent = Counter(t.src for t in transfers)
    received = Counter(t.dst for t in transfers)
    return max([*sent.values(), *received.values()], default=0)


def _completion(schedule: Schedule) -> list[Phase]:
    return [phase for phase in schedule.phases if not phase.absent]


def _barriers(
    schedule: Schedule, machine: Machine, buffer_bytes: int, phases: Iterable[Phase]
) -> float:
    chunk_bytes = buffer_bytes / schedule.chunks
    return sum(
        _round_s(machine, transfers, chunk_bytes) for phase in phases for transfers in phase.rounds
    )


def _round_s(machine: Machine, transfers: Round, chunk_bytes: float) -> float:
    """The busiest port of any rank, in seconds."""
    busy: dict[tuple[str, int], float] = defaultdict(float)
    for (src, dst), chunks in _messages(transfers).items():
        took = _message_s(machine, src, dst, chunks * chunk_bytes)
        busy["out", src] += took
        busy["in", dst] += took
    return max(busy.values(), default=0.0)


def _messages(transfers: Round) -> Counter[tuple[int, int]]:
    """Chunks per (src, dst)."""
    return Counter((t.src, t.dst) for t in transfers)


def _message_s(machine: Machine, src: int, dst: int, message_bytes: float) -> float:
    link = machine.link(src, dst)
    return link.alpha_s + message_bytes / link.bandwidth
