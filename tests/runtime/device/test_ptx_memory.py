"""The memory model, on programs of a few accesses: what PTX allows, and what is a race.

The names are those of litmus tests in the PTX ISA, section 8.10, and in the literature.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.device.ptx.memory import Memory
from tests.runtime.device.ptx.order import BlockOrder
from tests.runtime.device.ptx.regions import GAP, Region, Wrong
from tests.runtime.device.ptx.shared import Shared

DATA = 0  # offsets in symmetric memory
FLAG = 128
OTHER = 132
RANKS = 3
BLOCKS = 2


def newest(oldest, newest):
    return newest


def oldest(oldest, newest):
    return oldest


class World:
    """Three ranks with two blocks each, symmetric memory, and a tensor of rank 0 alone."""

    def __init__(self):
        regions = [Region(rank, "symmetric", GAP * (1 + 2 * rank), 256) for rank in range(RANKS)]
        regions.append(Region(0, "own", GAP * 7, 256))
        regions.append(Region(0, "rows", GAP * 9, 64))
        self.regions = regions
        rank_of = tuple(i // BLOCKS for i in range(RANKS * BLOCKS))
        self.memory = Memory(regions, GAP * 11, rank_of, seed=1)
        total = RANKS * BLOCKS
        self.orders = [BlockOrder(i, rank, total) for i, rank in enumerate(rank_of)]

    def at(self, rank, offset):
        return np.array([self.regions[rank].start + offset], np.uint64)

    def store(self, block, thread, rank, offset, value):
        threads = np.array([thread])
        values = [np.array([value], np.uint32)]
        self.memory.store(self.orders[block], threads, self.at(rank, offset), 4, values)

    def load(self, block, thread, rank, offset):
        threads = np.array([thread])
        address = self.at(rank, offset)
        (found,) = self.memory.load(self.orders[block], threads, address, 4, 1, None)
        return int(found[0])

    def exchange(self, block, thread, rank, offset, value, scope="sys", releases=True):
        address = int(self.at(rank, offset)[0])
        return self.memory.exchange(self.orders[block], thread, address, value, scope, releases)

    def look(self, block, thread, rank, offset, scope="sys", acquires=True, choose=newest):
        address = int(self.at(rank, offset)[0])
        return self.memory.strong_load(self.orders[block], thread, address, scope, acquires, choose)

    def barrier(self, block):
        self.memory.settle(self.orders[block])
        self.orders[block].barrier()


def message_passing(
    *,
    before=True,
    after=True,
    releases=True,
    acquires=True,
    scope="sys",
    taker_scope="sys",
    taker=2,
):
    """Block 0 of rank 0 stores data at rank 1 and raises a flag; a block takes the data."""
    world = World()
    world.store(0, 5, 1, DATA, 42)
    if before:
        world.barrier(0)
    world.exchange(0, 0, 1, FLAG, 7, scope, releases)
    assert world.look(taker, 0, 1, FLAG, taker_scope, acquires) == 7
    if after:
        world.barrier(taker)
    return world.load(taker, 9, 1, DATA)


def test_message_passing():
    assert message_passing() == 42


@pytest.mark.parametrize(
    "changed",
    [
        {"before": False},
        {"after": False},
        {"releases": False},
        {"acquires": False},
        {"scope": "gpu"},
        {"scope": "cta"},
        {"taker_scope": "gpu"},
    ],
    ids=str,
)
def test_message_passing_with_something_missing_is_a_race(changed):
    with pytest.raises(Wrong, match="race"):
        message_passing(**changed)


def test_scopes_reach_as_far_as_they_say():
    """8.5: gpu is enough between blocks of a device, cta is not."""
    assert message_passing(scope="gpu", taker_scope="gpu", taker=1) == 42
    with pytest.raises(Wrong, match="race"):
        message_passing(scope="cta", taker_scope="cta", taker=1)


def test_a_release_shows_nothing_that_comes_after_it():
    world = World()
    world.exchange(0, 0, 1, FLAG, 7)
    world.store(0, 0, 1, DATA, 42)
    world.look(2, 0, 1, FLAG)
    with pytest.raises(Wrong, match="race of a load and a store"):
        world.load(2, 0, 1, DATA)


def test_a_thread_that_releases_needs_no_barrier_for_what_it_has_stored_itself():
    world = World()
    world.store(0, 0, 1, DATA, 42)
    world.exchange(0, 0, 1, FLAG, 7)
    world.look(2, 3, 1, FLAG)
    assert world.load(2, 3, 1, DATA) == 42
    with pytest.raises(Wrong, match="race"):
        world.load(2, 4, 1, DATA)


def test_an_old_message_may_be_found_and_then_shows_nothing():
    world = World()
    world.store(0, 0, 1, DATA, 42)
    world.exchange(0, 0, 1, FLAG, 7)
    assert world.look(2, 0, 1, FLAG, choose=oldest) == 0
    with pytest.raises(Wrong, match="race"):
        world.load(2, 0, 1, DATA)


def test_coherent_read_read():
    """CoRR, 8.10.5: what a thread has read, it does not fall behind."""
    world = World()
    for value in (1, 2, 3):
        world.exchange(0, 0, 1, FLAG, value)
    assert world.look(2, 0, 1, FLAG, choose=lambda low, high: 2) == 2
    assert world.look(2, 0, 1, FLAG, choose=oldest) == 2
    assert world.look(2, 1, 1, FLAG, choose=oldest) == 0  # another thread may


def test_what_is_known_is_not_overlooked():
    """8.10.6: no older message than one that comes before the load."""
    world = World()
    world.exchange(0, 0, 1, FLAG, 1)
    world.exchange(0, 0, 1, OTHER, 1)
    assert world.look(2, 0, 1, OTHER) == 1
    assert world.look(2, 0, 1, FLAG, choose=oldest) == 1


def test_store_buffering_is_allowed():
    """SB, 8.10.6: without fence.sc both may find what was there before."""
    world = World()
    world.exchange(0, 0, 1, FLAG, 1)
    world.exchange(2, 0, 1, OTHER, 1)
    assert world.look(0, 0, 1, OTHER, choose=oldest) == 0
    assert world.look(2, 0, 1, FLAG, choose=oldest) == 0


def test_causality_goes_on_from_rank_to_rank():
    """ISA2: rank 2 has never met rank 0, and knows what rank 1 knew."""
    world = World()
    world.store(0, 3, 2, DATA, 42)
    world.barrier(0)
    world.exchange(0, 0, 1, FLAG, 1)
    world.look(2, 0, 1, FLAG)
    world.exchange(2, 0, 2, FLAG, 1)
    world.look(4, 0, 2, FLAG)
    world.barrier(4)
    assert world.load(4, 8, 2, DATA) == 42


def test_exchanges_find_the_newest():
    """8.10.3."""
    world = World()
    assert world.exchange(0, 0, 1, FLAG, 1) == 0
    assert world.exchange(2, 0, 1, FLAG, 2) == 1
    assert world.exchange(4, 0, 1, FLAG, 3) == 2


def test_plain_and_strong_accesses_race():
    world = World()
    world.store(2, 0, 1, FLAG, 5)
    with pytest.raises(Wrong, match="strong access"):
        world.look(0, 0, 1, FLAG)

    world = World()
    world.look(0, 0, 1, FLAG)
    with pytest.raises(Wrong, match="strong load"):
        world.store(2, 0, 1, FLAG, 5)

    world = World()
    world.exchange(0, 0, 1, FLAG, 5)
    with pytest.raises(Wrong, match="strong store"):
        world.load(2, 0, 1, FLAG)

    world = World()
    world.memory.host_stores(int(world.at(1, FLAG)[0]), 1)
    assert world.look(2, 0, 1, FLAG, acquires=False) == 1
    with pytest.raises(Wrong, match="host"):
        world.load(2, 0, 1, FLAG)
    with pytest.raises(Wrong, match="host"):
        world.look(2, 0, 1, FLAG, scope="gpu")


def test_a_flag_that_its_owner_refreshes_plainly():
    """In order: the raise, the owner's wait, a barrier, another thread's plain store, a release."""
    world = World()
    world.exchange(0, 0, 1, FLAG, 1)
    world.look(2, 0, 1, FLAG)
    world.barrier(2)
    world.store(2, 40, 1, FLAG, 2)
    with pytest.raises(Wrong, match="plain one"):
        world.exchange(0, 0, 1, FLAG, 3)
    world.barrier(2)
    world.exchange(2, 0, 0, FLAG, 2)
    world.look(0, 0, 0, FLAG)
    assert world.exchange(0, 0, 1, FLAG, 3) == 2


def test_a_look_and_a_plain_store_of_another_thread():
    """Ordered by a barrier in between, however often a block has looked before; else not."""
    for times in (1, 3):
        world = World()
        for _ in range(times):
            world.look(2, 0, 1, FLAG)
            world.barrier(2)
        before = world.orders[2].key(), world.memory.key()
        world.look(2, 0, 1, FLAG)
        world.barrier(2)
        assert (world.orders[2].key(), world.memory.key()) == before
        world.store(2, 40, 1, FLAG, 2)

        world = World()
        for _ in range(times):
            world.barrier(2)
            world.look(2, 0, 1, FLAG)
        with pytest.raises(Wrong, match="strong load"):
            world.store(2, 40, 1, FLAG, 2)


def test_stores_wait_for_loads():
    """Write after read: a slot is not overwritten before all have read it."""
    world = World()
    world.load(2, 3, 1, DATA)
    world.load(3, 4, 1, DATA)
    with pytest.raises(Wrong, match="race of a store and a load"):
        world.store(0, 0, 1, DATA, 1)


@pytest.mark.parametrize("first", [2, 3])
@pytest.mark.parametrize("released", [(), (2,), (3,), (2, 3)])
def test_all_that_have_loaded_must_have_said_so(first, released):
    world = World()
    for block in (first, 5 - first):
        world.load(block, 3, 1, DATA)
        world.barrier(block)
    for block in released:
        flag = FLAG if block == 2 else OTHER
        world.exchange(block, 0, 0, flag, 1)
        world.look(0, 0, 0, flag)
    if released == (2, 3):
        world.store(0, 0, 1, DATA, 1)
        return
    with pytest.raises(Wrong, match="race of a store and a load"):
        world.store(0, 0, 1, DATA, 1)


def test_launches_are_in_order_on_a_rank():
    """8.9.4: all of a kernel comes before the next one on the stream, and nothing of others."""
    world = World()
    world.store(0, 5, 0, DATA, 1)
    with pytest.raises(Wrong, match="race"):
        world.load(1, 5, 0, DATA)
    orders = world.orders[:BLOCKS]
    for order in orders:
        order.end_launch()
    ended = [order.copy() for order in orders]
    for order in orders:
        order.begin_launch(ended)
    assert world.load(1, 5, 0, DATA) == 1
    with pytest.raises(Wrong, match="race"):
        world.load(2, 5, 0, DATA)


def test_a_look_after_a_launch_has_begun_is_not_before_it():
    """However soon a barrier follows: another block of the rank has begun, too, and may store."""
    world = World()
    orders = world.orders[:BLOCKS]
    for order in orders:
        order.end_launch()
    ended = [order.copy() for order in orders]
    for order in orders:
        order.begin_launch(ended)
    world.look(0, 0, 0, FLAG)
    world.barrier(0)
    with pytest.raises(Wrong, match="strong load"):
        world.store(1, 0, 0, FLAG, 1)


def test_copies_find_what_nobody_could_use():
    world = World()
    world.store(2, 0, 1, DATA, 42)
    threads = np.arange(4)
    addresses = np.repeat(world.at(1, DATA), 4)
    copies = np.array([False, True, True, True])
    world.barrier(2)
    (found,) = world.memory.load(world.orders[2], threads, addresses, 4, 1, copies)
    assert found[0] == 42
    assert 42 not in found[1:]
    assert len(set(found.tolist())) == 4
    world.store(2, 0, 1, DATA, 43)  # a race with none of them: only thread 0 has read


def test_where_and_how_one_may_access():
    world = World()
    one = np.array([0])
    value = [np.array([1], np.uint32)]
    memory = world.memory
    for order, address, problem in (
        (world.orders[0], 3, "not aligned"),
        (world.orders[0], GAP // 2, "nobody has"),
        (world.orders[0], GAP + 256, "nobody has"),
        (world.orders[2], GAP * 7, "own of rank 0"),
        (world.orders[0], GAP * 9, "stores into rows"),
    ):
        with pytest.raises(Wrong, match=problem):
            memory.store(order, one, np.array([address], np.uint64), 4, value)
    memory.store(world.orders[0], one, np.array([GAP * 7], np.uint64), 4, value)
    with pytest.raises(Wrong, match="same place"):
        memory.store(
            world.orders[0],
            np.arange(2),
            np.array([GAP, GAP], np.uint64),
            4,
            [np.arange(2, dtype=np.uint32)],
        )


def test_shared_memory():
    shared = Shared()
    with pytest.raises(Wrong, match="nothing was stored"):
        shared.access(3, 0, 4, is_store=False)
    shared.access(0, 0, 4, is_store=True)
    with pytest.raises(Wrong, match="race"):
        shared.access(1, 0, 4, is_store=False)
    shared.barrier()
    shared.access(1, 0, 4, is_store=False)
    shared.access(2, 0, 4, is_store=False)
    with pytest.raises(Wrong, match="race"):
        shared.access(1, 0, 4, is_store=True)
    shared.barrier()
    shared.access(1, 0, 4, is_store=True)
    with pytest.raises(Wrong, match="shared memory"):
        shared.access(1, 4, 4, is_store=True)
