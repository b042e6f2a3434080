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
from collections.abc import Iterable, Iterator
from fractions import Fraction
from heapq import heapreplace

from latecomer.synth.cost import Cost
from latecomer.synth.twolevel.machine import Machine
from latecomer.verify.core.schedule import Phase, Round, Schedule, Transfer


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
    ready_s = [0.0] * machine.ranks
    # per node, a heap of the times at which its network ports are free
    ports_out = [[0.0] * machine.network_ports for _ in range(machine.nodes)]
    ports_in = [[0.0] * machine.network_ports for _ in range(machine.nodes)]
    node_of = machine.node_of

    for transfers in _rounds(_completion(schedule)):
        ready_before_s = list(ready_s)
        # when a rank's own ports are free, within this round
        may_send_s = list(ready_s)
        may_receive_s = list(ready_s)

        for (src, dst), chunks in _messages(transfers).items():
            start_s = max(
                ready_before_s[src], ready_before_s[dst], may_send_s[src], may_receive_s[dst]
            )
            out = ports_out[node_of[src]]
            into = ports_in[node_of[dst]]
            crosses = node_of[src] != node_of[dst]
            if crosses:
                start_s = max(start_s, out[0], into[0])

            end_s = start_s + _message_s(machine, src, dst, chunks * chunk_bytes)
            if crosses:
                # The port that is free first is taken, each way.
                heapreplace(out, end_s)
                heapreplace(into, end_s)
            may_send_s[src] = end_s
            may_receive_s[dst] = end_s
            ready_s[src] = max(ready_s[src], end_s)
            ready_s[dst] = max(ready_s[dst], end_s)
    return max(ready_s)


def network_rounds(schedule: Schedule, machine: Machine) -> int:
    """Completion rounds in which at least one message crosses the network."""
    node_of = machine.node_of
    crossed = 0
    for transfers in _rounds(_completion(schedule)):
        crossed += any(node_of[t.src] != node_of[t.dst] for t in transfers)
    return crossed


def level_costs(schedule: Schedule, machine: Machine) -> tuple[Cost, Cost]:
    """The completion's rounds that use the network, and all others, each as a :class:`Cost`.

    A round counts as one message of as many chunks as its busiest rank sends or receives; what
    shares a round with the network is not counted apart, as in :func:`completion_s`.
    """
    node_of = machine.node_of
    network_cost = Cost(0, Fraction(0))
    inner_cost = Cost(0, Fraction(0))
    for transfers in _rounds(_completion(schedule)):
        crossing = [t for t in transfers if node_of[t.src] != node_of[t.dst]]
        chunks = _busiest_rank(crossing or transfers)
        cost = Cost(1, Fraction(chunks, schedule.chunks))
        if crossing:
            network_cost += cost
        else:
            inner_cost += cost
    return network_cost, inner_cost


def _busiest_rank(transfers: Iterable[Transfer]) -> int:
    """The most chunks that one rank sends, or receives."""
    sent = Counter(t.src for t in transfers)
    received = Counter(t.dst for t in transfers)
    return max([*sent.values(), *received.values()], default=0)


def _completion(schedule: Schedule) -> list[Phase]:
    return [phase for phase in schedule.phases if not phase.absent]


def _rounds(phases: Iterable[Phase]) -> Iterator[Round]:
    for phase in phases:
        yield from phase.rounds


def _barriers(
    schedule: Schedule, machine: Machine, buffer_bytes: int, phases: Iterable[Phase]
) -> float:
    chunk_bytes = buffer_bytes / schedule.chunks
    return sum(_round_s(machine, transfers, chunk_bytes) for transfers in _rounds(phases))


def _round_s(machine: Machine, transfers: Round, chunk_bytes: float) -> float:
    """The busiest port of any rank, in seconds."""
    sending_s: dict[int, float] = defaultdict(float)
    receiving_s: dict[int, float] = defaultdict(float)
    for (src, dst), chunks in _messages(transfers).items():
        message_s = _message_s(machine, src, dst, chunks * chunk_bytes)
        sending_s[src] += message_s
        receiving_s[dst] += message_s
    return max([*sending_s.values(), *receiving_s.values()], default=0.0)


def _messages(transfers: Round) -> Counter[tuple[int, int]]:
    """Chunks per (src, dst)."""
    return Counter((t.src, t.dst) for t in transfers)


def _message_s(machine: Machine, src: int, dst: int, message_bytes: float) -> float:
    link = machine.link(src, dst)
    return link.alpha_s + message_bytes / link.bandwidth
