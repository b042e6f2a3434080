"""All interleavings of threads that wait for counters, semaphores and barriers of all sorts.

Unlike in interleavings.py, who ends a wait may depend on the interleaving here: several threads can
take from one semaphore, and MSCCL++'s ``DeviceSyncer`` opens when its counter *is* the number it
waits for. So states are explored one by one, with the code of the device's counters as it is.

One thread alone is moved where that is enough: where nothing that other threads can do before it
touches what its next action touches. What they can do is computed with that thread standing still,
and rather too much than too little. What is left out by that has the same ends, and the same
hangs, as what is tried.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

from tests.hunt.interleavings import JUNK, Undecided, Value

T = TypeVar("T")
ABSENT = -1
"""What a packet holds that has not come; values are above 0."""


class Act(NamedTuple):
    """One action of a thread; what it means is said in :meth:`Machine._enabled` and ``_do``.

    ``key``: what it touches beside memory, if that makes a difference to other threads.
    """

    kind: str
    counter: int = 0
    number: int = 0
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    key: int | None = None


class State(NamedTuple):
    """How far each thread is; what it holds (a ticket, an index, a sum); counters; memory."""

    positions: tuple[int, ...]
    held: tuple[Any, ...]
    counters: tuple[int, ...]
    memory: tuple[Value, ...]


Ends = tuple[bool, set[tuple[Value, ...]], set[tuple[int, ...]]]
"""Whether some run hangs; memory, and counters, at the ends of the others."""


class Machine:
    """Threads, their counters and their memory.

    Attributes:
        spoils: per cell, the cells that a store into it spoils (a packet and what lies beneath it).
    """

    def __init__(
        self,
        threads: list[list[Act]],
        counters: list[int],
        memory: list[Value],
        packets: set[int],
        spoils: dict[int, tuple[int, ...]],
    ) -> None:
        self.threads = threads
        self.packets = packets
        self.spoils = spoils
        self.start = State(
            positions=(0,) * len(threads),
            held=(None,) * len(threads),
            counters=tuple(counters),
            memory=tuple(memory),
        )
        self.touches: list[list[dict[int, bool]]] = []
        for thread in threads:
            self.touches.append([self._touched(act) for act in thread])

        # Per cell and thread: its last act that touches the cell, and its last one that writes it.
        self.last: dict[int, dict[int, list[int]]] = {}
        for number, touches_of_thread in enumerate(self.touches):
            for position, touched in enumerate(touches_of_thread):
                for cell, writes in touched.items():
                    of_cell = self.last.setdefault(cell, {}).setdefault(number, [-1, -1])
                    of_cell[0] = position
                    if writes:
                        of_cell[1] = position
        self.race = ""

    def _touched(self, act: Act) -> dict[int, bool]:
        """What an act touches, and whether it writes it; a key stands for a cell below 0."""
        touched: dict[int, bool] = {}
        for cells, writes in ((act.sources, False), (act.targets, True)):
            for cell in cells:
                touched[cell] = writes
                if cell in self.packets:
                    touched |= dict.fromkeys(self.spoils.get(cell, ()), writes)
        if act.key is not None:
            touched[-1 - act.key] = True
        return touched

    def explore(self, most_states: int, reduce: bool = True) -> Ends:
        """Whether some run hangs; memory at the ends of all runs; counters there.

        Where ``reduce`` is off, every thread that can go on is tried in every state.

        Raises:
            Undecided: there are more than ``most_states`` states.
        """
        hangs = False
        ends: set[tuple[Value, ...]] = set()
        counters: set[tuple[int, ...]] = set()
        visited: set[State] = set()
        todo = [self.start]
        while todo:
            state = self._go_alone(todo.pop()) if reduce else todo.pop()
            ready = self._ready(state)
            if not ready:
                if self._ended(state):
                    ends.add(state.memory)
                    counters.add(state.counters)
                else:
                    hangs = True
                continue

            if state in visited:
                continue
            visited.add(state)
            if len(visited) > most_states:
                raise Undecided
            self._notice(state, ready)
            todo += [self._do(state, number) for number in ready]
        return hangs, ends, counters

    def _go_alone(self, state: State) -> State:
        """Move threads one at a time, as long as one need not be tried in several orders."""
        while True:
            ready = self._ready(state)
            alone = next((n for n in ready if not self._rivals(state, n)), None)
            if alone is None:
                alone = next((n for n in ready if not self._meets(state, n)), None)
            if alone is None:
                return state
            state = self._do(state, alone)

    def _ready(self, state: State) -> list[int]:
        """The threads that can go on."""
        return [number for number in range(len(self.threads)) if self._enabled(state, number)]

    def _ended(self, state: State) -> bool:
        """Whether all threads have done all."""
        return state.positions == tuple(len(thread) for thread in self.threads)

    def sample(self, count: int, seed: int) -> Ends:
        """As :meth:`explore`, of so many runs drawn at random."""
        draw = random.Random(seed)
        hangs = False
        ends: set[tuple[Value, ...]] = set()
        counters: set[tuple[int, ...]] = set()
        for turn in range(count):
            state = self.start
            priority = [draw.random() for _ in self.threads]
            while True:
                ready = self._ready(state)
                if not ready:
                    break
                number = draw.choice(ready) if turn % 2 else max(ready, key=priority.__getitem__)
                state = self._do(state, number)

            if self._ended(state):
                ends.add(state.memory)
                counters.add(state.counters)
            else:
                hangs = True
        return hangs, ends, counters

    def _enabled(self, state: State, number: int) -> bool:
        """Whether a thread's next act can happen."""
        position = state.positions[number]
        if position == len(self.threads[number]):
            return False

        act = self.threads[number][position]
        held: int = state.held[number]
        counters = state.counters
        if act.kind == "at least":
            return counters[act.counter] >= act.number
        if act.kind == "token":
            return counters[act.counter] >= held
        if act.kind == "poll":
            return held > 0 or counters[act.counter] >= held
        if act.kind == "leave":
            return counters[act.counter + 1 + held] == act.number
        if act.kind == "read":
            packets = [cell for cell in act.sources if cell in self.packets]
            return not any(state.memory[cell] == ABSENT for cell in packets)
        return True

    def _do(self, state: State, number: int) -> State:
        """The state after a thread's next act."""
        counters = state.counters
        memory = state.memory
        held = state.held[number]
        act = self.threads[number][state.positions[number]]
        holds: Any = None  # from now on
        if act.kind == "raise":
            counters = _put(counters, act.counter, counters[act.counter] + 1)
        elif act.kind == "ticket":
            counters = _put(counters, act.counter, counters[act.counter] + 1)
            holds = counters[act.counter]
        elif act.kind == "load":
            holds = counters[act.counter]
        elif act.kind == "store":
            assert isinstance(held, int)
            holds = held + 1
            counters = _put(counters, act.counter, holds)
        elif act.kind == "acquire":
            holds = counters[act.counter]
            counters = _put(counters, act.counter, counters[act.counter] - 1)
        elif act.kind == "arrive":
            index = (counters[act.counter] + 1) % 3
            arrived = act.counter + 1 + index
            counters = _put(counters, act.counter + 1 + (index + 1) % 3, 0)
            counters = _put(counters, arrived, counters[arrived] + 1)
            holds = index
        elif act.kind == "leave":
            counters = _put(counters, act.counter, held)
        elif act.kind == "read":
            holds = _sum([memory[cell] for cell in act.sources])
        elif act.kind == "write":
            memory = self._stored(memory, act.targets, held)

        position = state.positions[number] + 1
        return State(
            positions=_put(state.positions, number, position),
            held=_put(state.held, number, holds),
            counters=counters,
            memory=memory,
        )

    def _stored(
        self, memory: tuple[Value, ...], targets: tuple[int, ...], value: Value
    ) -> tuple[Value, ...]:
        """Memory after a value is stored; packets that share its bytes are gone, and so is data."""
        cells = list(memory)
        for cell in targets:
            for spoiled in self.spoils.get(cell, ()):
                cells[spoiled] = ABSENT if spoiled in self.packets else JUNK
            cells[cell] = value
        return tuple(cells)

    def _rivals(self, state: State, number: int) -> bool:
        """Whether any other thread has still to touch what the thread's next action touches."""
        positions = state.positions
        for cell, writes in self.touches[number][positions[number]].items():
            for thread, (last_touch, last_write) in self.last[cell].items():
                last = last_touch if writes else last_write
                if thread != number and positions[thread] <= last:
                    return True
        return False

    def _meets(self, state: State, number: int) -> bool:
        """Whether others may touch that before the thread goes on: rather yes than no."""
        touched = self.touches[number][state.positions[number]]
        ahead = _Ahead(self, state)
        moved = True
        while moved:
            moved = False
            for rival, thread in enumerate(self.threads):
                if rival == number:
                    continue
                while ahead.positions[rival] < len(thread) and ahead.may(rival):
                    for cell, writes in self.touches[rival][ahead.positions[rival]].items():
                        if cell in touched and (writes or touched[cell]):
                            return True
                    ahead.go(rival)
                    moved = True
        return False

    def _notice(self, state: State, ready: list[int]) -> None:
        """Remember a race: two threads that could both go on, and meet in memory."""
        for first, second in combinations(ready, 2):
            if self.race:
                return
            first_touches = self.touches[first][state.positions[first]]
            second_touches = self.touches[second][state.positions[second]]
            for cell, writes in first_touches.items():
                if cell >= 0 and cell in second_touches and (writes or second_touches[cell]):
                    self.race = f"threads {first} and {second} meet at cell {cell}"
                    break


class _Ahead:
    """What threads could still do, without values: what they wait for is rather there than not.

    Where the order of several threads makes a difference (acts with a key) nobody waits.
    """

    def __init__(self, machine: Machine, state: State) -> None:
        self.machine = machine
        self.positions = list(state.positions)
        self.held = list(state.held)
        self.counters = list(state.counters)
        self.memory = state.memory
        self.came: set[int] = set()

    def may(self, number: int) -> bool:
        """Whether a thread may go on."""
        act = self.machine.threads[number][self.positions[number]]
        held: int = self.held[number]
        if act.kind == "at least":
            return self.counters[act.counter] >= act.number
        if act.kind == "read":
            packets = [cell for cell in act.sources if cell in self.machine.packets]
            return all(self.memory[cell] != ABSENT or cell in self.came for cell in packets)
        if act.key is not None:
            return True
        if act.kind == "token":
            return self.counters[act.counter] >= held
        if act.kind == "poll":
            return held > 0 or self.counters[act.counter] >= held
        if act.kind == "leave":
            return self.counters[act.counter + 1 + held] >= act.number
        return True

    def go(self, number: int) -> None:
        """Let a thread do its next act."""
        act = self.machine.threads[number][self.positions[number]]
        self.positions[number] += 1
        counters = self.counters
        if act.kind in {"raise", "ticket"}:
            counters[act.counter] += 1
            self.held[number] = counters[act.counter]
        elif act.kind == "acquire":
            self.held[number] = counters[act.counter]
            counters[act.counter] -= 1
        elif act.kind == "arrive":
            index = (counters[act.counter] + 1) % 3
            counters[act.counter + 1 + (index + 1) % 3] = 0
            counters[act.counter + 1 + index] += 1
            self.held[number] = index
        elif act.kind == "leave" and act.key is None:
            counters[act.counter] = self.held[number]
        self.came |= {cell for cell in act.targets if cell in self.machine.packets}


def _put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """The values with one replaced."""
    return (*values[:index], value, *values[index + 1 :])


def _sum(values: list[Value]) -> Value:
    """The sum; of anything that is not defined, nothing that is defined."""
    total = 0
    for value in values:
        if value is None:
            return JUNK
        total += value
    return total
