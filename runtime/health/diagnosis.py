"""Who is to blame when an operation fails, and whether to wait on: decided from what ranks say.

Every rank that lives says where it stands; whoever says nothing for the grace period is dead or
stopped. If everybody speaks, ranks that submitted different things are to blame, or a rank that
broke; else the chain of who waits for
whom is followed to its end, which is a rank that has not entered the operation (with all others
that have not), or one that does not go on, or a cycle.

A wait is not held against the ranks between: however long it lasts, it goes on while the end of
its chain has entered the operation and any rank of the chain has moved lately: positions are not
taken at one moment, so only ranks that all stand still can be waiting for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from verify.errors import RankFailure


class WaitFor(msgspec.Struct, frozen=True):
    """A rank's wait: for ``peer``, in which operation, phase and round."""

    operation: int
    phase: str
    round: int
    peer: int

    def __str__(self) -> str:
        where = f"operation {self.operation}, {self.phase} round {self.round}"
        return f"waits for rank {self.peer} in {where}"


class RankStatus(msgspec.Struct, frozen=True):
    """Where a rank stands.

    Attributes:
        entered: operations it has entered.
        waiting: its wait in the oldest operation, if it waits.
        idle_s: seconds since it last entered an operation or saw a wait end.
        broken: the exception that ended its work, if one did.
        differs_from: the rank that takes an operation to be something else than this one does.
        doing: what this rank takes that operation to be, or its oldest one.
    """

    entered: int
    waiting: WaitFor | None = None
    idle_s: float = 0.0
    broken: str = ""
    differs_from: int | None = None
    doing: str = ""

    def __str__(self) -> str:
        parts = [f"has entered {self.entered} operation(s)"]
        if self.waiting:
            parts.append(str(self.waiting))
        if self.broken:
            parts.append(f"broke: {self.broken}")
        if self.differs_from is not None:
            parts.append(f"differs from rank {self.differs_from}")
        if self.doing:
            parts.append(f"does {self.doing}")
        return ", ".join(parts)


def patience_s(positions: Mapping[int, RankStatus], me: int, limit_s: float) -> float:
    """How much longer rank ``me`` should wait; 0 or less if it is time to give up.

    Args:
        positions: what all ranks said.
        me: a rank that has waited for ``limit_s`` or longer.
        limit_s: how long a rank may keep others waiting.
    """
    chain, cycle = _chain(positions, me)
    if len(chain) == 1:
        return limit_s
    if not cycle and positions[chain[-1]].entered <= _needed(positions, chain):
        return 0.0
    return limit_s - min(positions[rank].idle_s for rank in chain[1:])


def diagnose(
    size: int, positions: Mapping[int, RankStatus], me: int, noticed: str, grace_s: float
) -> RankFailure:
    """Decide who failed.

    Args:
        size: number of ranks.
        positions: what each rank that spoke said, the own position included.
        me: the own rank, where the chain of waits begins.
        noticed: what was seen first, for the message.
        grace_s: how long the ranks were given to speak.
    """
    said = [f"rank {rank} {positions[rank]}" for rank in sorted(positions)]

    def failure(ranks: list[int], reason: str) -> RankFailure:
        return RankFailure(ranks, f"{_names(ranks)}: {reason} ({noticed})", said)

    if silent := [rank for rank in range(size) if rank not in positions]:
        return failure(silent, f"dead or stopped, no sign of life for {grace_s:g} s")
    differing = {r: p.differs_from for r, p in positions.items() if p.differs_from is not None}
    if differing:
        each = "; ".join(f"rank {rank} has {positions[rank].doing}" for rank in sorted(differing))
        ranks = sorted({*differing, *differing.values()})
        return failure(ranks, f"did not submit the same operation, {each}")
    if broken := [rank for rank in sorted(positions) if positions[rank].broken]:
        return failure(broken, f"broke, {positions[broken[0]].broken}")
    chain, cycle = _chain(positions, me)
    if cycle:
        return failure(sorted(cycle), "wait for each other")
    needed = _needed(positions, chain)
    behind = [rank for rank in sorted(positions) if positions[rank].entered <= needed]
    if behind and (len(chain) == 1 or chain[-1] in behind):
        return failure(behind, f"alive, but has not entered operation {needed} in time")
    if len(chain) > 1:
        return failure([chain[-1]], "others wait for it")
    return RankFailure([], f"all ranks are alive and in the operation ({noticed})", said)


def _chain(positions: Mapping[int, RankStatus], me: int) -> tuple[list[int], list[int]]:
    """(who waits for whom, from ``me`` to the first that does not wait; the cycle, if it is one)"""
    chain = [me]
    while (waiting := positions[chain[-1]].waiting) and waiting.peer not in chain:
        chain.append(waiting.peer)
    return chain, chain[chain.index(waiting.peer) :] if waiting else []


def _needed(positions: Mapping[int, RankStatus], chain: list[int]) -> int:
    """The operation in which the end of the chain is waited for (nobody waits: the furthest)."""
    if len(chain) == 1:
        return max(position.entered for position in positions.values()) - 1
    waiting = positions[chain[-2]].waiting
    assert waiting is not None
    return waiting.operation


def _names(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
