"""Who has accessed each cell of memory last, by plain loads and stores: races are found here.

Of a cell the last store is kept, and the last load since; loads of several threads in one interval
of a block are kept as one, and loads of other blocks that are in no order with the last one beside
it. That is enough to find every race: what comes after the last one comes after all before it.
"""

from __future__ import annotations

import numpy as np

from tests.runtime.device.ptx.order import (
    MANY,
    BlockOrder,
    block_of,
    interval_of,
    stamp,
    thread_of,
)
from tests.runtime.device.ptx.regions import Wrong

CELL = 2  # bytes: the smallest access

Cells = slice | np.ndarray
"""Numbers of cells; a slice, where they are in a row."""


class Accesses:
    """The last ones of so many cells."""

    def __init__(self, cells: int) -> None:
        self.stores = np.zeros(cells, np.int64)
        self._loads = np.zeros(cells, np.int64)
        self._other_loads: dict[int, set[int]] = {}

    def copy(self) -> Accesses:
        """Another one, the same."""
        other = Accesses(0)
        other.stores = self.stores.copy()
        other._loads = self._loads.copy()
        other._other_loads = {cell: set(loads) for cell, loads in self._other_loads.items()}
        return other

    def key(self) -> tuple:
        """All of it, to tell states apart."""
        others = tuple((cell, tuple(sorted(x))) for cell, x in sorted(self._other_loads.items()))
        return self.stores.tobytes(), self._loads.tobytes(), others

    def check_stores(self, order: BlockOrder, cells: Cells, by: np.ndarray, what: str) -> None:
        """Wrong if an earlier store of the cells is not before these accesses."""
        stores = self.stores[cells]
        late = interval_of(stores) >= order.common.below[block_of(stores)]
        late &= stores != 0
        own = block_of(stores) == order.number
        late &= ~(own & ((thread_of(stores) == by) | (interval_of(stores) < order.interval)))
        if late.any():
            require(order, stores[late], by[late], f"{what} and a store")

    def check_loads(self, order: BlockOrder, cells: Cells, by: np.ndarray) -> None:
        """Wrong if an earlier load of the cells is not before these stores."""
        loads = self._loads[cells]
        late = interval_of(loads) >= order.common.below[block_of(loads)]
        late &= loads != 0
        own = block_of(loads) == order.number
        late &= ~(own & ((thread_of(loads) == by) | (interval_of(loads) < order.interval)))
        if late.any():
            require(order, loads[late], by[late], "a store and a load")
        if self._other_loads:
            numbers = numbers_of(cells)
            for cell, thread in zip(numbers.tolist(), by.tolist(), strict=True):
                for load in self._other_loads.pop(cell, ()):
                    require(order, np.array([load]), np.array([thread]), "a store and a load")

    def note_loads(self, order: BlockOrder, cells: Cells, by: np.ndarray) -> None:
        """The cells are loaded, by these threads."""
        before = self._loads[cells].copy()  # a slice would be a view
        access = stamp(order.number, order.interval, 0, order.acts())
        now = access | by << 22
        together = before >> 32 == access >> 32
        together &= thread_of(before) != by
        self._loads[cells] = np.where(together, access | MANY << 22, now)
        foreign = (block_of(before) != order.number) & (before != 0)
        if foreign.any():
            numbers = numbers_of(cells)
            for cell, load in zip(numbers[foreign].tolist(), before[foreign].tolist(), strict=True):
                if not order.common.has(load):
                    self._other_loads.setdefault(cell, set()).add(load)

    def note_stores(self, order: BlockOrder, cells: Cells, by: np.ndarray) -> None:
        """The cells are stored into, by these threads."""
        self.stores[cells] = stamp(order.number, order.interval, 0, order.acts()) | by << 22
        self._loads[cells] = 0


def require(order: BlockOrder, accesses: np.ndarray, by: np.ndarray, what: str) -> None:
    """Wrong if one of the accesses does not come before what a thread does now."""
    for access, thread in zip(accesses.tolist(), by.tolist(), strict=True):
        if not order.precedes(access, thread):
            raise Wrong(
                f"a race of {what}: thread {thread} of block {order.number}, and thread "
                f"{thread_of(access)} of block {block_of(access)}"
            )


def copies_among(addresses: np.ndarray) -> np.ndarray | None:
    """Of the threads that load from these addresses at once, all that are not the first."""
    if len(addresses) < 2 or (np.diff(addresses.astype(np.int64)) > 0).all():
        return None
    copies = np.ones(len(addresses), np.bool_)
    copies[np.unique(addresses, return_index=True)[1]] = False
    return copies if copies.any() else None


def numbers_of(cells: Cells) -> np.ndarray:
    """The numbers of cells."""
    return np.arange(cells.start, cells.stop) if isinstance(cells, slice) else cells


def cells_of(addresses: np.ndarray, threads: np.ndarray, size: int) -> tuple[Cells, np.ndarray]:
    """The cells of accesses of ``size`` bytes (a slice, where they are in a row), and who does."""
    of_one = size // CELL
    first = (addresses // CELL).astype(np.int64)
    by = np.repeat(threads, of_one) if of_one > 1 else threads
    start = int(first[0])
    if len(first) == 1 or (
        int(first[-1]) - start == of_one * (len(first) - 1) and (np.diff(first) == of_one).all()
    ):
        return slice(start, start + of_one * len(first)), by
    if of_one == 1:
        return first, by
    return (first[:, None] + np.arange(of_one)).ravel(), by
