"""The network ports of the nodes: whether a schedule keeps to them, and how to make it do so.

The format knows the ports of ranks only. A node that has fewer network ports than ranks limits its
ranks together, so that is checked here, in addition to all that :mod:`verify` checks: in no round
more than P messages leave a node for the network, or come into it. Chunks between the same two
ranks in one round are one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import msgspec

from latecomer.verify.core.schedule import Phase, Round, Schedule, Transfer
from latecomer.verify.core.verdict import (
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
        for verb in ("sends", "receives"):
            messages_of_node: dict[int, dict[tuple[int, int], Transfer]] = {}
            for transfer in crossing:
                rank = transfer.src if verb == "sends" else transfer.dst
                messages = messages_of_node.setdefault(node_of[rank], {})
                messages.setdefault((transfer.src, transfer.dst), transfer)
                if len(messages) > ports:
                    shown = list(messages.values())[-SHOWN:]
                    return refuted(
                        Counterexample(
                            property="network_ports",
                            phase=phase.name,
                            round=number,
                            rank=rank,
                            chunk=transfer.chunk,
                            expected=f"at most {ports} network {verb} per node and round",
                            found=f"node {node_of[rank]} {verb} {len(messages)} or more",
                            transfers=tuple(
                                LocatedTransfer(phase.name, number, t.src, t.dst, t.chunk, t.op)
                                for t in shown
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
    phases = []
    for phase in schedule.phases:
        rounds: list[Round] = []
        for transfers in phase.rounds:
            rounds += _split(transfers, node_of, ports)
        phases.append(Phase(phase.name, phase.absent, tuple(rounds)))
    if tuple(phases) == schedule.phases:
        return schedule

    claims = ("rounds", "completion_rounds", "gap", "optimal")
    meta = {key: value for key, value in schedule.meta.items() if key not in claims}
    return msgspec.structs.replace(schedule, phases=tuple(phases), meta=meta)


def _split(transfers: Round, node_of: Sequence[int], ports: int) -> list[Round]:
    if _fits(transfers, node_of, ports):
        return [transfers]
    parts: list[list[Transfer]] = []
    part_of: dict[Transfer, int] = {}
    for unit in _units(transfers):
        # Whoever reads what this unit writes was placed before; not earlier than that reader.
        written = {(t.dst, t.chunk) for t in unit}
        parts_of_readers = (part_of[t] for t in part_of if (t.src, t.chunk) in written)
        part = max(parts_of_readers, default=0)
        while part < len(parts) and not _fits([*parts[part], *unit], node_of, ports):
            part += 1
        if part == len(parts):
            parts.append([])
        parts[part] += unit
        part_of |= dict.fromkeys(unit, part)
    return [tuple(part) for part in parts]


def _fits(transfers: Sequence[Transfer], node_of: Sequence[int], ports: int) -> bool:
    messages = {(t.src, t.dst) for t in transfers if node_of[t.src] != node_of[t.dst]}
    sent_by_node = Counter(node_of[src] for src, _ in messages)
    received_by_node = Counter(node_of[dst] for _, dst in messages)
    return max([*sent_by_node.values(), *received_by_node.values()], default=0) <= ports


def _units(transfers: Round) -> Iterator[list[Transfer]]:
    """Transfers that have to stay together, those that read a buffer before those that write it.

    Where every transfer that is left writes what another one reads, some of them form a cycle. The
    smallest set that is closed under "who reads what I write" is such a cycle.
    """
    readers: dict[Transfer, list[Transfer]] = {}
    for writer in transfers:
        buffer = (writer.dst, writer.chunk)
        readers[writer] = [t for t in transfers if t != writer and (t.src, t.chunk) == buffer]

    pending = dict.fromkeys(transfers)  # a set in the order of the round
    while pending:
        units = [[t] for t in pending if not any(reader in pending for reader in readers[t])]
        if not units:
            cycles = [_closure(t, readers, pending) for t in pending]
            units = [min(cycles, key=len)]
        for unit in units:
            yield unit
            for transfer in unit:
                del pending[transfer]


def _closure(
    start: Transfer, readers: dict[Transfer, list[Transfer]], pending: Collection[Transfer]
) -> list[Transfer]:
    """``start``, those that read what it writes, those that read what these write, and so on."""
    reached = {start: None}
    to_visit = [start]
    while to_visit:
        for reader in readers[to_visit.pop()]:
            if reader in pending and reader not in reached:
                reached[reader] = None
                to_visit.append(reader)
    return list(reached)
