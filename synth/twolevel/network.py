"""The network ports of the nodes: whether a schedule keeps to them, and how to make it do so.

The format knows the ports of ranks only. A node that has fewer network ports than ranks limits its
ranks together, so that is checked here, in addition to all that :mod:`verify` checks: in no round
more than P messages leave a node for the network, or come into it. Chunks between the same two
ranks in one round are one message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from verify.core.schedule import Phase, Round, Schedule, Transfer
from verify.core.verdict import (
    PROVED,
    SHOWN,
    Counterexample,
    LocatedTransfer,
    Result,
    refuted,
)


def network_ports(schedule: Schedule, node_of: Sequence[int], ports: int) -> Result:
    """Whether no node ever sends, or receives, more than ``ports`` network messages in a round.

    Args:
        schedule: a well formed schedule.
        node_of: the node of each rank.
        ports: network ports of a node, each way.
    """
    for phase, number, transfers in schedule.located_rounds():
        crossing = [t for t in transfers if node_of[t.src] != node_of[t.dst]]
        for verb, end in (("sends", "src"), ("receives", "dst")):
            messages: dict[int, dict[tuple[int, int], Transfer]] = {}
            for t in crossing:
                of_node = messages.setdefault(node_of[getattr(t, end)], {})
                of_node.setdefault((t.src, t.dst), t)
                if len(of_node) > ports:
                    return refuted(
                        Counterexample(
                            property="network_ports",
                            phase=phase.name,
                            round=number,
                            rank=getattr(t, end),
                            chunk=t.chunk,
                            expected=f"at most {ports} network {verb} per node and round",
                            found=f"node {node_of[getattr(t, end)]} {verb} {len(of_node)} or more",
                            transfers=tuple(
                                LocatedTransfer(phase.name, number, s.src, s.dst, s.chunk, s.op)
                                for s in list(of_node.values())[-SHOWN:]
                            ),
                        )
                    )
    return PROVED


def fitted(schedule: Schedule, node_of: Sequence[int], ports: int) -> Schedule:
    """The same transfers in more rounds, so that :func:`network_ports` holds.

    A round is split into as few parts as first fit finds. All transfers of a round read its start,
    so one that reads a buffer must not come after the one that writes it; those that write each
    other's (an exchange) stay together. An exchange over the network needs one port each way, so
    one port is enough. Rounds that fit stay as they are; if any does not, claims about the number
    of rounds are dropped from ``meta``.
    """
    phases = tuple(
        Phase(
            phase.name,
            phase.absent,
            tuple(part for r in phase.rounds for part in _split(r, node_of, ports)),
        )
        for phase in schedule.phases
    )
    if phases == schedule.phases:
        return schedule
    claims = ("rounds", "completion_rounds", "gap", "optimal")
    meta = {key: value for key, value in schedule.meta.items() if key not in claims}
    return msgspec.structs.replace(schedule, phases=phases, meta=meta)


def _split(transfers: Round, node_of: Sequence[int], ports: int) -> list[Round]:
    if _fits(transfers, node_of, ports):
        return [transfers]
    parts: list[list[Transfer]] = []
    part_of: dict[Transfer, int] = {}
    for unit in _units(transfers):
        # Whoever reads what this unit writes was placed before; not earlier than that reader.
        written = {(t.dst, t.chunk) for t in unit}
        readers = (part_of[t] for t in part_of if (t.src, t.chunk) in written)
        at = max(readers, default=0)
        while at < len(parts) and not _fits([*parts[at], *unit], node_of, ports):
            at += 1
        if at == len(parts):
            parts.append([])
        parts[at] += unit
        part_of |= dict.fromkeys(unit, at)
    return [tuple(part) for part in parts]


def _fits(transfers: Sequence[Transfer], node_of: Sequence[int], ports: int) -> bool:
    crossing = {(t.src, t.dst) for t in transfers if node_of[t.src] != node_of[t.dst]}
    senders = [node_of[src] for src, _ in crossing]
    receivers = [node_of[dst] for _, dst in crossing]
    return all(ends.count(v) <= ports for ends in (senders, receivers) for v in set(ends))


def _units(transfers: Round) -> Iterator[list[Transfer]]:
    """Transfers that have to stay together, those that read a buffer before those that write it.

    Where every transfer that is left writes what another one reads, some of them form a cycle. The
    smallest set that is closed under "who reads what I write" is such a cycle.
    """
    readers = {
        t: [s for s in transfers if s != t and (s.src, s.chunk) == (t.dst, t.chunk)]
        for t in transfers
    }
    left = dict.fromkeys(transfers)
    while left:
        units = [[t] for t in left if not any(s in left for s in readers[t])]
        for unit in units or [min((_closure(t, readers, left) for t in left), key=len)]:
            yield unit
            for t in unit:
                del left[t]


def _closure(
    start: Transfer, readers: dict[Transfer, list[Transfer]], left: Collection[Transfer]
) -> list[Transfer]:
    """``start``, those that read what it writes, those that read what these write, and so on."""
    found = {start: None}
    pending = [start]
    while pending:
        for t in readers[pending.pop()]:
            if t in left and t not in found:
                found[t] = None
                pending.append(t)
    return list(found)
