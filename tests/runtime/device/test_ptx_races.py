"""Races by causality order, on random programs, against the definition: sets of events.

The oracle keeps, for each event, all events that come before it (PTX ISA 8.9.5), and calls a race
what 8.7.1 calls so. It knows nothing of intervals and moments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.ptx.regions import Wrong
from tests.runtime.device.test_ptx_memory import World

BLOCKS = (0, 1, 2)  # the first two are of one rank
THREADS = (0, 3, 7)
WORDS = (0, 4, 128, 132)  # of rank 1's memory

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["load", "store", "exchange", "exchange", "look", "look", "relaxed", "barrier"]
        ),
        st.sampled_from(BLOCKS),
        st.sampled_from(THREADS),
        st.sampled_from(WORDS),
        st.integers(0, 5),
    ),
    max_size=40,
)


@dataclass
class Oracle:
    """Each event is a bit; ``past`` of a thread is what comes before its next event."""

    past: dict[tuple[int, int], int] = field(default_factory=dict)
    accesses: list[tuple[int, int, bool, bool]] = field(default_factory=list)
    stored: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    seen: dict[tuple[int, int, int], int] = field(default_factory=dict)
    events: int = 0

    def before(self, block, thread):
        return self.past.get((block, thread), 0)

    def access(self, block, thread, word, is_store, is_strong):
        """Whether it races with one before."""
        before = self.before(block, thread)
        for event, other, stores, strong in self.accesses:
            conflict = other == word and (stores or is_store)
            if conflict and not before >> event & 1 and not (strong and is_strong):
                return True
        self.accesses.append((self.events, word, is_store, is_strong))
        self.past[block, thread] = before | 1 << self.events
        self.events += 1
        return False

    def store(self, block, thread, word, value, is_strong):
        """After the access: the newest that is stored there."""
        stored = self.stored.setdefault(word, [])
        stored.append((self.events - 1, value))
        if is_strong:
            self.seen[block, thread, word] = len(stored) - 1

    def look(self, block, thread, word, before, value, oldest):
        """Whether a strong load may find a value, and the ``oldest`` one if it was asked for.

        -1 is what was there at first.
        """
        stored = self.stored.get(word, [])
        found = next((i for i, (_, other) in enumerate(stored) if other == value), -1)
        known = [i for i, (event, _) in enumerate(stored) if before >> event & 1]
        least = max([self.seen.get((block, thread, word), -1), *known])
        self.seen[block, thread, word] = found
        return found == least if oldest else found >= least

    def acquire(self, block, thread, shown):
        self.past[block, thread] = self.before(block, thread) | shown

    def barrier(self, block):
        together = 0
        for thread in THREADS:
            together |= self.before(block, thread)
        for thread in THREADS:
            self.past[block, thread] = together


def races(steps):
    """At which step the oracle, and the memory, find a race; none: -1."""
    oracle = Oracle()
    world = World()
    values = iter(range(1, 1000))
    shown = {}  # by the value that an exchange has stored: what it shows
    found = [-1, -1]
    for number, (what, block, thread, word, choice) in enumerate(steps):
        try:
            if what == "barrier":
                oracle.barrier(block)
                world.barrier(block)
                continue
            is_store = what in ("store", "exchange")
            is_strong = what not in ("load", "store")
            before = oracle.before(block, thread)
            if oracle.access(block, thread, word, is_store, is_strong):
                found[0] = number
            value = next(values)
            if is_store:
                oracle.store(block, thread, word, value, is_strong)
            if what == "load":
                world.load(block, thread, 1, word)
            elif what == "store":
                world.store(block, thread, 1, word, value)
            elif what == "exchange":
                shown[value] = oracle.before(block, thread)
                world.exchange(block, thread, 1, word, value)
            else:
                acquires = what == "look"
                read = world.look(
                    block,
                    thread,
                    1,
                    word,
                    acquires=acquires,
                    choose=lambda low, high, choice=choice: min(low + choice, high),
                )
                if found[0] < 0:
                    assert oracle.look(block, thread, word, before, read, oldest=choice == 0)
                if acquires:
                    oracle.acquire(block, thread, shown.get(read, 0))
        except Wrong:
            found[1] = number
        if found != [-1, -1]:
            break
    return found


@settings(max_examples=300)
@given(STEPS)
def test_races_are_found_at_once_and_no_others(steps):
    """And strong loads find what they may, the oldest of it where they are asked for that."""
    by_definition, by_memory = races(steps)
    assert by_definition == by_memory
