"""Where the ranks of a group did different things: the first operation, and who deviates.

The minority deviates. Where there is none, as between two ranks, who departs from its own earlier
steps does: training repeats itself, so what followed the same operations before tells what should
have come now.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain

from latecomer.runtime.explain.job import Group, Operation
from latecomer.runtime.explain.waits import Waits

DEPTHS = range(6, 1, -1)  # operations before one, by which its like in earlier steps is found
AHEAD = 8  # operations in which it is looked for what was skipped, added or swapped

Done = tuple[tuple[str | int, ...], ...]
"""The signatures of what a rank did under one number; several, if they are coalesced."""


@dataclass(frozen=True)
class Divergence:
    """The first operation of a group in which ranks did different things.

    Attributes:
        did: by rank, what it did.
        culprits: who deviates; all, if that can't be told.
        how: what the one that deviates did instead, if that can be told.
        created_ns: when the first of them entered it, on its own clock.
    """

    group: Group
    sequence: int
    did: dict[int, Done]
    culprits: tuple[int, ...]
    how: str
    created_ns: int


def divergences(waits: Waits) -> list[Divergence]:
    """The first of each group, the earliest first."""
    numbers: dict[Group, set[int]] = defaultdict(set)
    for _, group, sequence in waits.at:
        numbers[group].add(sequence)
    found = [
        divergence
        for group, sequences in numbers.items()
        if (divergence := _first(waits, group, sorted(sequences))) is not None
    ]
    return sorted(found, key=lambda divergence: divergence.created_ns)


def departs(waits: Waits, operation: Operation, lately: int) -> bool:
    """Whether one of its rank's last operations up to this one is new after what came before."""
    line = [
        (each.group, each.signature)
        for each in waits.collectives[operation.rank]
        if each.record <= operation.record
    ]
    first = max(len(line) - lately, 2)
    return any(_is_new(line, end) for end in range(len(line) - 1, first - 1, -1))


def _is_new(line: list[tuple[Group, tuple[str | int, ...]]], end: int) -> bool:
    """Whether earlier, after as many of the operations before ``end`` as recur, came others."""
    for depth in DEPTHS:
        if depth > end:
            continue
        before = line[end - depth : end]
        after = {line[at] for at in range(depth, end) if line[at - depth : at] == before}
        if after:
            return line[end] not in after
    return False


def _first(waits: Waits, group: Group, sequences: list[int]) -> Divergence | None:
    for sequence in sequences:
        here = {
            rank: waits.at[rank, group, sequence]
            for rank in group.ranks
            if (rank, group, sequence) in waits.at
        }
        did = {
            rank: _done(here[rank]) for rank in here if all(each.signature for each in here[rank])
        }
        if len(set(did.values())) > 1:
            culprits = _culprits(waits, did, here)
            return Divergence(
                group=group,
                sequence=sequence,
                did=did,
                culprits=culprits,
                how=_how(waits, group, sequence, did, culprits),
                created_ns=min(each.created_ns for each in chain.from_iterable(here.values())),
            )
    return None


def _done(operations: list[Operation]) -> Done:
    return tuple(operation.signature for operation in operations)


def _culprits(
    waits: Waits, did: dict[int, Done], here: dict[int, list[Operation]]
) -> tuple[int, ...]:
    (usual, most), (_, next_most), *_ = Counter(did.values()).most_common()
    if most > next_most:
        return tuple(rank for rank, done in did.items() if done != usual)
    odd = tuple(rank for rank in did if departs(waits, here[rank][0], lately=1))
    return odd or tuple(did)


def _how(
    waits: Waits, group: Group, sequence: int, did: dict[int, Done], culprits: tuple[int, ...]
) -> str:
    others = [rank for rank in did if rank not in culprits]
    if len(culprits) != 1 or not others:
        return ""

    def from_here(rank: int) -> list[Done]:
        ahead = range(sequence, sequence + AHEAD)
        return [
            _done(waits.at[rank, group, number])
            for number in ahead
            if (rank, group, number) in waits.at
        ]

    its, theirs = from_here(culprits[0]), from_here(others[0])
    comes_next, came_next = its[0] in theirs[1:2], theirs[0] in its[1:2]
    if comes_next and came_next:
        return "it has swapped two operations"
    if comes_next:
        return "it has skipped one, or does it later"
    return "it has one more" if came_next else ""
