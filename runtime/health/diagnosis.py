"""Who has failed when an operation fails, and whether to wait on: decided from what ranks say.

Every rank that lives says where it stands, and one that has finished and closes says so before it
goes; whoever says nothing for the grace period is dead or stopped. If all answer, ranks that
submitted different things have failed, or a rank that broke; else the chain of who waits for whom
is followed to its end, which is a rank that has not entered the operation (with all others that
have not), or one that has closed or does not go on, or a cycle. It begins where the oldest
operation is waited for: ranks that are further exchange something in later operations, and may be
said to wait for each other there while they go on. A cycle within an operation that a rank has not
entered is no reason: that schedules have none is proved, so that rank is what they lack.

A wait is not held against the ranks between: however long it lasts, it goes on while the end of
its chain has entered the operation and any rank of the chain has moved lately: statuses are not
taken at one moment, so only ranks that all stand still can be waiting for each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from latecomer.verify.errors import RankFailure


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
    """Where a rank stands."""

    entered: int  # operations it has entered
    waiting: WaitFor | None = None  # its wait in the oldest operation, if it waits
    idle_s: float = 0.0  # since it last entered an operation or saw a wait end
    broken: str = ""  # the exception that ended its work, if one did
    differs_from: int | None = None  # the rank that takes an operation to be something else
    doing: str = ""  # what this rank takes that operation to be, or its oldest one
    closed: bool = False  # it has closed, and enters no operation any more

    @property
    def present_wait(self) -> WaitFor | None:
        """Its wait; one that has closed waits for nobody, whatever it had waited for before."""
        return None if self.closed else self.waiting

    @property
    def is_well(self) -> bool:
        """Whether the rank is there and can go on."""
        return not self.broken and not self.closed

    def __str__(self) -> str:
        if self.closed:
            parts = [f"has closed after {self.entered} operation(s)"]
        else:
            parts = [f"has entered {self.entered} operation(s)"]
        if self.waiting is not None:
            parts.append(str(self.waiting))
        if self.broken:
            parts.append(f"broke: {self.broken}")
        if self.differs_from is not None:
            parts.append(f"differs from rank {self.differs_from}")
        if self.doing:
            parts.append(f"does {self.doing}")
        return ", ".join(parts)


def patience_s(statuses: Mapping[int, RankStatus], me: int, limit_s: float) -> float:
    """How much longer ``me``, which has waited for ``limit_s``, should; 0 or less: give up.

    ``statuses`` are those of all ranks; ``limit_s`` is how long one may keep others waiting.
    """
    chain, cycle = _chain(statuses, me)
    if len(chain) == 1:
        return limit_s
    last = statuses[chain[-1]]
    if not cycle and (last.closed or last.entered <= _needed(statuses, chain)):
        return 0.0
    return limit_s - min(statuses[rank].idle_s for rank in chain[1:])


def diagnose(
    world_size: int,
    statuses: Mapping[int, RankStatus],
    me: int,
    noticed: str,
    grace_s: float,
    suspects: Collection[int] = (),
    never_heard: Collection[int] = (),
    gone: Collection[int] = (),
) -> RankFailure:
    """Decide who failed, given the status of each rank that has answered within ``grace_s``.

    The chain of waits begins at rank ``me``, unless others wait in an older operation; ``noticed``
    is what was seen first. ``suspects`` are ranks that ``me`` waits for in another way: those of
    them that have closed have failed.
    ``never_heard`` are ranks of which no datagram has ever come: they may live behind a firewall;
    ``gone`` those whose own hosts say that their processes have ended.
    """
    evidence = [f"rank {rank} {statuses[rank]}" for rank in sorted(statuses)]

    def failure(ranks: list[int], reason: str) -> RankFailure:
        names = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        return RankFailure(ranks, f"{names}: {reason} ({noticed})", evidence)

    if silent := [rank for rank in range(world_size) if rank not in statuses]:
        if set(silent) <= set(gone):
            return failure(silent, "dead, the process has ended")
        reason = f"dead or stopped, no sign of life for {grace_s:g} s"
        if unheard := [rank for rank in silent if rank in never_heard]:
            names = ", ".join(map(str, unheard))
            reason += f"; UDP from rank(s) {names} has not arrived once: is a firewall between?"
        return failure(silent, reason)
    differing = {r: s.differs_from for r, s in statuses.items() if s.differs_from is not None}
    if differing:
        doings = "; ".join(f"rank {rank} has {statuses[rank].doing}" for rank in sorted(differing))
        ranks = sorted({*differing, *differing.values()})  # nobody knows which of two is right
        return failure(ranks, f"did not submit the same operation, {doings}")
    if broken := [rank for rank in sorted(statuses) if statuses[rank].broken]:
        return failure(broken, f"broke, {statuses[broken[0]].broken}")
    chain, cycle = _chain(statuses, _first_to_wait(statuses, me))
    needed = _needed(statuses, chain)
    behind = [rank for rank in sorted(statuses) if statuses[rank].entered <= needed]
    if behind and (cycle or len(chain) == 1 or chain[-1] in behind):
        if closed := [rank for rank in behind if statuses[rank].closed]:
            return failure(closed, f"closed before operation {needed}, which others have entered")
        return failure(behind, f"alive, but has not entered operation {needed} in time")
    if cycle:
        return failure(sorted(cycle), "wait for each other")
    waited_for = {*suspects, *chain[1:][-1:]}
    if closed := [rank for rank in sorted(waited_for) if statuses[rank].closed]:
        return failure(closed, "closed while others wait for it")
    if len(chain) > 1:
        return failure([chain[-1]], "others wait for it")
    return RankFailure([], f"all ranks are alive and in the operation ({noticed})", evidence)


def _first_to_wait(statuses: Mapping[int, RankStatus], me: int) -> int:
    """A rank that waits in the oldest operation: ``me`` if it does, or if no rank waits at all."""
    operations = {}
    for rank, status in statuses.items():
        if status.present_wait is not None:
            operations[rank] = status.present_wait.operation
    if not operations:
        return me
    oldest = min(operations.values())
    if operations.get(me) == oldest:
        return me
    return min(rank for rank, operation in operations.items() if operation == oldest)


def _chain(statuses: Mapping[int, RankStatus], first: int) -> tuple[list[int], list[int]]:
    """(who waits for whom, from ``first`` to one that does not wait; the cycle, if it is one)"""
    chain = [first]
    while (waiting := statuses[chain[-1]].present_wait) and waiting.peer not in chain:
        chain.append(waiting.peer)
    if waiting is None:
        return chain, []
    return chain, chain[chain.index(waiting.peer) :]


def _needed(statuses: Mapping[int, RankStatus], chain: list[int]) -> int:
    """The operation in which the end of the chain is waited for (no rank waits: the furthest)."""
    if len(chain) == 1:
        return max(status.entered for status in statuses.values()) - 1
    waiting = statuses[chain[-2]].waiting
    assert waiting is not None
    return waiting.operation
