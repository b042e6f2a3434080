"""The oracle: a small machine that runs device programs, and every interleaving of it.

It shares no code with ``latecomer.verify.device``, nor its idea: nothing is said here about what
comes before what. A put is two steps, the store and the flag; a receive is two, the wait and the
take. What lies in a slot knows for which epoch, by whom and from which row it was put there. A
value is the number of an expression tree whose leaves know their rank, chunk and epoch. Flags have
few bits, so that they wrap around within a few operations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

PUT = 0
REDUCE = 1
COPY = 2
Row = Sequence[int]
Rows = Sequence[Sequence[Row]]
"""Of one operation, by rank."""


class State(NamedTuple):
    at: tuple[int, ...]  # steps done, by rank
    flags: tuple[int, ...]
    slots: tuple[Any, ...]
    held: tuple[tuple[int, ...], ...]


class Machine:
    """``operations`` of programs, one for each epoch; epoch 0 has the number ``first``.

    ``flag_first``: a put raises the flag before it stores. ``shared_flags``: all sets share theirs.
    ``refresh``: in each operation ranks first raise their own flags, from the number of their
    receives on, as the kernel does. Sets are chosen by the number, which wraps around.
    """

    def __init__(
        self,
        operations: Sequence[Rows],
        chunks: int,
        sets: int,
        *,
        first: int = 1,
        bits: int = 32,
        flag_first: bool = False,
        shared_flags: bool = False,
        refresh: bool = False,
    ) -> None:
        self.ranks = len(operations[0])
        self.chunks = chunks
        self.sets = sets
        self.slots = 1
        for rows_by_rank in operations:
            for rows in rows_by_rank:
                for _, _, _, slot in rows:
                    self.slots = max(self.slots, slot + 1)
        self.first = first
        self.size = 2**bits
        self.shared_flags = shared_flags
        self.trees: dict[Any, int] = {}
        put = ("raise", "store") if flag_first else ("store", "raise")
        self.steps: list[list[tuple[Any, ...]]] = [[] for _ in range(self.ranks)]
        self.ends: list[list[int]] = [[] for _ in range(self.ranks)]  # of operations, in steps
        for epoch, rows_by_rank in enumerate(operations):
            for steps, ends, rows in zip(self.steps, self.ends, rows_by_rank, strict=True):
                if refresh:
                    received = {slot for action, _, _, slot in rows if action != PUT}
                    steps.append(("refresh", epoch, -1, -1, -1, -1, received))
                for number, row in enumerate(rows):
                    verbs = put if row[0] == PUT else ("wait", "take")
                    steps += [(verb, epoch, number, *row) for verb in verbs]
                ends.append(len(steps))

    def tree(self, key: Any) -> int:
        return self.trees.setdefault(key, len(self.trees))

    def inputs(self, rank: int, epoch: int) -> tuple[int, ...]:
        return tuple(self.tree(("input", rank, chunk, epoch)) for chunk in range(self.chunks))

    def start(self) -> State:
        locations = self.ranks * self.sets * self.slots
        return State(
            at=(0,) * self.ranks,
            flags=((self.first - 1) % self.size,) * locations,
            slots=(None,) * locations,
            held=tuple(self.inputs(rank, 0) for rank in range(self.ranks)),
        )

    def over(self, state: State, rank: int) -> bool:
        return state.at[rank] == len(self.steps[rank])

    def can(self, state: State, rank: int) -> bool:
        if self.over(state, rank):
            return False
        verb, epoch, _, _, _, _, slot = self.steps[rank][state.at[rank]]
        if verb != "wait":
            return True
        ahead = state.flags[self._flag(rank, epoch, slot)] - (self.first + epoch)
        return ahead % self.size < self.size // 2

    def _slot(self, rank: int, epoch: int, slot: int) -> int:
        number = (self.first + epoch) % self.size
        return (rank * self.sets + number % self.sets) * self.slots + slot

    def _flag(self, rank: int, epoch: int, slot: int) -> int:
        return self._slot(rank, -self.first if self.shared_flags else epoch, slot)

    def go(self, state: State, rank: int) -> tuple[State, bool]:
        """The next state, and whether a take found something else than was put for it."""
        verb, epoch, _, action, peer, chunk, slot = self.steps[rank][state.at[rank]]
        number = (self.first + epoch) % self.size
        flags = state.flags
        slots = state.slots
        own = state.held[rank]
        wrong = False
        if verb == "raise":
            flags = _put(flags, self._flag(peer, epoch, slot), number)
        elif verb == "refresh":
            for unused in range(len(slot), self.slots):
                flags = _put(flags, self._flag(rank, epoch, unused), number)
        elif verb == "store":
            slots = _put(slots, self._slot(peer, epoch, slot), (epoch, rank, chunk, own[chunk]))
        elif verb == "take":
            stored = slots[self._slot(rank, epoch, slot)]
            wrong = stored is None or stored[:3] != (epoch, peer, chunk)
            value = stored[3] if stored else self.tree("nothing")
            if action == REDUCE:
                value = self.tree(("+", *sorted((value, own[chunk]))))
            own = _put(own, chunk, value)

        steps_done = _put(state.at, rank, state.at[rank] + 1)
        for epoch_after, end in enumerate(self.ends[rank], 1):
            if end == steps_done[rank] and epoch_after < len(self.ends[rank]):
                own = self.inputs(rank, epoch_after)
        return State(steps_done, flags, slots, _put(state.held, rank, own)), wrong


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


class Exploration(NamedTuple):
    """Over all interleavings: ``results``: what ranks may hold after the last operation."""

    stuck: bool
    wrong_take: bool
    deaf: set[tuple[int, int]]  # (p, q): p has ended an operation, and q has not begun
    results: set[tuple[tuple[int, ...], ...]]
    states: int


def explore(machine: Machine) -> Exploration:
    """Every state that can be reached."""
    stuck = False
    wrong = False
    deaf: set[tuple[int, int]] = set()
    results = set()
    start = machine.start()
    reached = {start}
    todo = [start]
    ranks = range(machine.ranks)
    while todo:
        state = todo.pop()
        able = [rank for rank in ranks if machine.can(state, rank)]
        if not able:
            if all(machine.over(state, rank) for rank in ranks):
                results.add(state.held)
            else:
                stuck = True

        begun = [q for q in ranks if state.at[q]]
        if len(begun) < machine.ranks:
            ended = [p for p in begun if state.at[p] >= machine.ends[p][0]]
            deaf |= {(p, q) for p in ended for q in ranks if q not in begun}

        for rank in able:
            after, wrong_take = machine.go(state, rank)
            wrong |= wrong_take
            if after not in reached:
                reached.add(after)
                todo.append(after)
    return Exploration(stuck, wrong, deaf, results, states=len(reached))


def wanted(machine: Machine, text: str | bytes, epoch: int) -> tuple[tuple[int, ...], ...]:
    """What the schedule's rounds leave on the ranks, in lockstep, with the inputs of ``epoch``."""
    held = [list(machine.inputs(rank, epoch)) for rank in range(machine.ranks)]
    for moves in _rounds(text):
        before = [list(own) for own in held]
        for src, dst, chunk, op in moves:
            moved = before[src][chunk]
            if op == "reduce":
                moved = machine.tree(("+", *sorted((moved, held[dst][chunk]))))
            held[dst][chunk] = moved
    return tuple(map(tuple, held))


def lowered(text: str | bytes) -> list[list[list[int]]]:
    """The rows of each rank, made from the file by what its documentation says."""
    doc = json.loads(text)
    rows: list[list[list[int]]] = [[] for _ in range(doc["ranks"])]
    slots = [0] * doc["ranks"]
    for moves in _rounds(text):
        receives = []
        for src, dst, chunk, op in moves:
            rows[src].append([PUT, dst, chunk, slots[dst]])
            receives.append((dst, [REDUCE if op == "reduce" else COPY, src, chunk, slots[dst]]))
            slots[dst] += 1
        for dst, row in receives:
            rows[dst].append(row)
    return rows


def _rounds(text: str | bytes) -> Iterator[list[list[Any]]]:
    for phase in json.loads(text)["phases"]:
        yield from phase["rounds"]
