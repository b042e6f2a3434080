"""What no schedule can beat on a machine of two levels, with one late rank.

For schedules with one send and one receive per rank and round, k equal chunks, P network messages
per node and round each way, and a barrier after every round. With c(link) = alpha + S/k * beta:

    rounds           R >= k + ceil(log2 n) - 1
                     the late rank's data leaves it chunk by chunk and goes to n ranks
    network rounds   B >= ceil(k / P) + ceil(log_{P+1} M) - 1
                     the same among nodes: P of its chunks leave home in a round, and the nodes
                     that know a chunk grow at most (P + 1)-fold in a network round

A network round costs c(outer) at least, any other one c(inner), so the time is at least
B c(outer) + max(0, R - B) min(c(inner), c(outer)): ``time_bound`` in proofs/coq/TwoLevel.v. This
grows with B and with R, so lower bounds may be put in for both; without its ceilings it is
A k + C + D / k, hence at least C + 2 sqrt(A D) for every k. Without barriers only the bytes count:
:func:`bytes_s`.

Deviation from :mod:`latecomer.verify.core.bounds`: seconds, not rounds, and never the ground of
"optimal".
"""

from __future__ import annotations

from math import inf, sqrt

from latecomer.synth.twolevel.machine import Machine
from latecomer.verify.core.bounds import dissemination_bound


def bound_s(machine: Machine, buffer_bytes: int, chunks: int) -> float:
    """Seconds that any schedule of so many chunks takes after the late rank's arrival."""
    rounds = dissemination_bound(machine.ranks, chunks)
    network_rounds = _network_rounds(machine, chunks)
    chunk_bytes = buffer_bytes / chunks
    inner_s = machine.inner.alpha_s + chunk_bytes / machine.inner.bandwidth
    outer_s = machine.outer.alpha_s + chunk_bytes / machine.outer.bandwidth
    other_s = _cheapest_link(machine, inner_s, outer_s)
    return network_rounds * outer_s + max(0, rounds - network_rounds) * other_s


def bound_any_chunks_s(machine: Machine, buffer_bytes: int) -> float:
    """Seconds that any schedule takes, whatever its number of (equal) chunks."""
    slope, fixed, shrinking = _relaxed(machine, buffer_bytes)
    return fixed + 2 * sqrt(slope * shrinking)


def balanced_chunks(machine: Machine, buffer_bytes: int) -> float:
    """The (fractional) number of chunks at which :func:`bound_any_chunks_s` is attained."""
    slope, _, shrinking = _relaxed(machine, buffer_bytes)
    return sqrt(shrinking / slope) if slope else inf


def _relaxed(machine: Machine, buffer_bytes: int) -> tuple[float, float, float]:
    """A (seconds per chunk), C (seconds), D (seconds times chunks) of the bound A k + C + D / k."""
    outer_bytes_s = buffer_bytes / machine.outer.bandwidth
    alpha_s = _cheapest_link(machine, machine.inner.alpha_s, machine.outer.alpha_s)
    cheapest_bytes_s = _cheapest_link(
        machine, buffer_bytes / machine.inner.bandwidth, outer_bytes_s
    )

    # rounds = chunks + what does not depend on them, and of either so many use the network
    if machine.nodes == 1:
        network_per_chunk = 0.0
        network_besides = 0
    else:
        network_per_chunk = 1 / machine.network_ports
        network_besides = _network_rounds(machine, 1) - 1
    inner_per_chunk = 1 - network_per_chunk
    inner_besides = dissemination_bound(machine.ranks, 1) - 1 - network_besides

    slope = network_per_chunk * machine.outer.alpha_s + inner_per_chunk * alpha_s
    fixed = (
        network_per_chunk * outer_bytes_s
        + inner_per_chunk * cheapest_bytes_s
        + network_besides * machine.outer.alpha_s
        + inner_besides * alpha_s
    )
    shrinking = network_besides * outer_bytes_s + inner_besides * cheapest_bytes_s
    return slope, fixed, shrinking


def bytes_s(machine: Machine, buffer_bytes: int) -> float:
    """Seconds for the bytes alone, barriers or not: the late rank's port must let all of its data
    out once, and every byte of it must leave its node through the network ports.
    """
    inner_s = buffer_bytes / machine.inner.bandwidth
    outer_s = buffer_bytes / machine.outer.bandwidth
    network_s = outer_s / machine.network_ports if machine.nodes > 1 else 0.0
    return max(_cheapest_link(machine, inner_s, outer_s), network_s)


def _network_rounds(machine: Machine, chunks: int) -> int:
    if machine.nodes == 1:
        return 0
    return dissemination_bound(machine.nodes, chunks, machine.network_ports)


def _cheapest_link(machine: Machine, inner: float, outer: float) -> float:
    """The lesser of two costs, of those links that the machine has."""
    costs = []
    if machine.per_node > 1:
        costs.append(inner)
    if machine.nodes > 1:
        costs.append(outer)
    return min(costs)
