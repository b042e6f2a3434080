"""What a block did, read off as rows of a device program: puts and raises, waits and takes.

Nothing of the rows that the kernel was given is used: only which addresses were loaded, stored,
raised and waited for, and where the layout says that these lie.

    PUT      elements go from the own tensor into a slot of another rank, then its flag is raised
    COPY     after a wait for a flag of its own, elements go from that slot into the own tensor
    REDUCE   the same, with elements that are loaded from where the sum goes
    average  elements of the own tensor are loaded and stored, before the rows

From whom a receive is, the put into its slot tells. Of a slice without elements no chunk is seen,
nor whether it is added or copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latecomer.verify.device.program import DeviceAction
from tests.runtime.device.ptx.allreduce import DTYPES, AllReduces
from tests.runtime.device.ptx.block import Block
from tests.runtime.device.ptx.group import Event
from tests.runtime.device.ptx.regions import CONSTANT, Region, Wrong

UNSEEN = -1


@dataclass(frozen=True)
class Row:
    """A row, in an epoch: of the slice's elements those from ``begin`` on, ``count``."""

    epoch: int
    action: int
    peer: int
    chunk: int
    slot: int
    begin: int
    count: int


@dataclass
class BlockRows:
    """Of one block in one operation: rows, flags that it refreshed, elements that it averaged."""

    rows: list[Row]
    refreshed: set[tuple[int, int]]  # epoch, slot
    averaged: int = 0


@dataclass(frozen=True)
class _Move:
    """Elements that went from one place to another in one instruction, by each thread."""

    is_sum: bool
    source: Region
    target: Region
    from_: np.ndarray
    to: np.ndarray
    size: int


_Load = tuple[Region, Event]


@dataclass
class _Loads:
    """What a group of threads has loaded since it last stored: each store is of the next ones."""

    own: list[_Load]
    staged: list[_Load]
    stored: int = 0

    def next(self) -> tuple[_Load | None, _Load | None]:
        """What the next store is of."""
        at = self.stored
        self.stored += 1
        own = self.own[at] if at < len(self.own) else None
        return own, self.staged[at] if at < len(self.staged) else None


class _Reader:
    """Reads the events of a block in one operation."""

    def __init__(self, runs: AllReduces, number: int, rank: int, block: Block) -> None:
        self._runs = runs
        self._layout = runs.layout
        self._number = number
        self._rank = rank
        self._index = block.index
        self._itemsize = DTYPES[runs.case.operations[number].dtype].itemsize
        self._part = runs.cuts[number].part
        self._epoch = runs.epochs[number]
        self._loads: dict[int, _Loads] = {}
        self._moves: list[_Move] = []
        self._waited: int | None = None  # the slot whose flag has come
        self._is_told = False  # that it is to stop, by its last look at the stop word
        self._gives_up = False
        self._has_looked = False
        self.result = BlockRows([], set())
        # Between two barriers parts of a block are in no order: the first one has the flags.
        for event in sorted(block.events, key=lambda event: (event.barriers, event.unit)):
            getattr(self, f"_{event.what}")(event)
        self._end_row()

    def _region(self, event: Event) -> tuple[Region, np.ndarray]:
        """Where it is, and the offsets there."""
        region = self._runs.memory.regions.at(int(event.addresses[0]))
        assert region is not None
        return region, event.addresses.astype(np.int64) - region.start

    def _load(self, event: Event) -> None:
        region, offsets = self._region(event)
        if region.what in CONSTANT:
            return
        if region.what == "symmetric":
            staged = region.rank == self._rank and offsets.max() < self._layout.flags_at
            if not staged:
                raise Wrong("a load of symmetric memory that is not of the own staging")
        elif region.launch != self._number:
            raise Wrong("a load of another operation's tensor")
        loads = self._loads.get(event.unit)
        if loads is None or loads.stored:
            loads = self._loads[event.unit] = _Loads([], [])
        (loads.own if region.what == "own" else loads.staged).append((region, event))

    def _store(self, event: Event) -> None:
        region, offsets = self._region(event)
        layout = self._layout
        if region.what == "symmetric" and offsets.min() >= layout.flags_at:
            self._store_of_numbers(region, offsets, event)
            return
        if region.what == "own" and region.launch != self._number:
            raise Wrong("a store into another operation's tensor")
        loads = self._loads.get(event.unit)
        if loads is not None:
            self._require_going()
        if loads is None:
            if region.what == "own" and len(event.addresses) == 1:
                return  # the mark of what is no sum: see check_results
            raise Wrong("a store of what was not loaded")
        own, staged = loads.next()
        into_own = region.what == "own"
        if into_own and staged is None:
            self._averages(own, event)
            return
        wanted, other = (staged, own) if into_own else (own, staged)
        if wanted is None or (other is not None and not into_own):
            raise Wrong("a store of what was not loaded, or was loaded elsewhere")
        if other is not None and not np.array_equal(other[1].addresses, event.addresses):
            raise Wrong("a sum goes somewhere else than where one of its numbers was")
        source, load = wanted
        self._moves.append(
            _Move(other is not None, source, region, load.addresses, event.addresses, event.size)
        )

    def _averages(self, own: _Load | None, event: Event) -> None:
        if own is None or not np.array_equal(own[1].addresses, event.addresses):
            raise Wrong("an average goes somewhere else than where its number was")
        self.result.averaged += len(event.addresses) * event.size // self._itemsize

    def _store_of_numbers(self, region: Region, offsets: np.ndarray, event: Event) -> None:
        """Flags that are refreshed; stamps are looked at in the end."""
        layout = self._layout
        if offsets.min() >= layout.stamps_at:
            if offsets.max() >= layout.stop_at or self._index:
                raise Wrong("a store that is no stamp")
            return
        if region.rank != self._rank:
            raise Wrong("a plain store into another rank's flags")
        self._require_going()
        self._end_row()
        parity, slot, block = self._flag(offsets)
        self._enter(int(parity[0]))
        if (block != self._index).any() or (parity != parity[0]).any():
            raise Wrong("a refresh of another block's flags")
        if event.value != self._epoch & 0xFFFFFFFF:
            raise Wrong(f"a refresh by {event.value} in epoch {self._epoch}")
        self.result.refreshed |= {(self._epoch, s) for s in slot.tolist()}

    def _flag(self, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Set, slot and block of flags."""
        layout = self._layout
        number = (offsets - layout.flags_at) // 4
        block = number % layout.blocks
        slot = number // layout.blocks % layout.slots
        return number // (layout.blocks * layout.slots), slot, block

    def _enter(self, parity: int) -> None:
        """Pieces take turns with the sets."""
        if parity != self._epoch % 2:
            self._end_row()
            self._epoch += 1

    def _require_going(self) -> None:
        """A block that has seen its stop word, and has nothing to take, goes on with nothing."""
        if self._gives_up:
            raise Wrong("a block that has seen its stop word goes on")

    def _exchange(self, event: Event) -> None:
        self._require_going()
        region, offsets = self._region(event)
        if not self._layout.flags_at <= offsets[0] < self._layout.stamps_at:
            raise Wrong("a raise of what is no flag")
        parity, slot, block = (int(x[0]) for x in self._flag(offsets))
        puts = [move for move in self._moves if move.target.what == "symmetric"]
        self._moves = self._moves[: len(self._moves) - len(puts)]
        self._end_row()  # what came before what this row has put
        if parity != self._epoch % 2:
            self._epoch += 1
        if block != self._index or region.rank == self._rank:
            raise Wrong("a raise of another block's flag, or of its own rank's")
        if event.value != self._epoch & 0xFFFFFFFF:
            raise Wrong(f"a raise by {event.value} in epoch {self._epoch}")
        chunk, begin, count = self._slice(puts, region.rank, slot, put=True)
        row = Row(self._epoch, int(DeviceAction.PUT), region.rank, chunk, slot, begin, count)
        self.result.rows.append(row)

    def _acquire(self, event: Event) -> None:
        self._require_going()
        region, offsets = self._region(event)
        if region.rank != self._rank or not (
            self._layout.flags_at <= offsets[0] < self._layout.stamps_at
        ):
            raise Wrong("a wait for what is not one of its own flags")
        self._end_row()
        parity, slot, block = (int(x[0]) for x in self._flag(offsets))
        self._enter(parity)
        if block != self._index:
            raise Wrong("a wait for another block's flag")
        if (event.value - self._epoch) & 0xFFFFFFFF < 1 << 31:
            self._waited = slot
        else:
            self._gives_up = self._is_told
        self._is_told = False

    def _relaxed(self, event: Event) -> None:
        region, offsets = self._region(event)
        if region.rank != self._rank or offsets[0] != self._layout.stop_at:
            raise Wrong("a look at what is not its own stop word")
        self._is_told = event.value != 0
        if not self._has_looked:
            self._gives_up = self._is_told  # before it begins
        self._has_looked = True

    def _end_row(self) -> None:
        """A receive ends with what follows it."""
        moves, self._moves = self._moves, []
        self._loads.clear()
        if self._waited is None:
            if moves:
                raise Wrong("elements that were moved without a wait or a raise")
            return
        slot, self._waited = self._waited, None
        chunk, begin, count = self._slice(moves, self._rank, slot, put=False)
        sums = {move.is_sum for move in moves}
        if len(sums) > 1:
            raise Wrong("a part was added, another copied")
        action = UNSEEN
        if moves:
            action = int(DeviceAction.REDUCE if sums.pop() else DeviceAction.COPY)
        self.result.rows.append(Row(self._epoch, action, UNSEEN, chunk, slot, begin, count))

    def _slice(self, moves: list[_Move], holder: int, slot: int, put: bool) -> tuple[int, int, int]:
        """Chunk, first element and number of elements of a slice that was moved, whole."""
        if not moves:
            return UNSEEN, UNSEEN, 0
        layout = self._layout
        area = (self._epoch % 2 * layout.blocks + self._index) * layout.area
        slot_at = self._runs.symmetric[holder].start + area + slot * self._part * self._itemsize
        elements = []
        for move in moves:
            own, staged = (move.from_, move.to) if put else (move.to, move.from_)
            of_own = move.source if put else move.target
            of_staging = move.target if put else move.source
            if of_own.what != "own" or of_staging != self._runs.symmetric[holder]:
                raise Wrong("elements that were moved between other places than the row's")
            many = move.size // self._itemsize
            first = (own.astype(np.int64) - of_own.start) // self._itemsize
            in_slot = (staged.astype(np.int64) - slot_at) // self._itemsize
            if len(first) != len(in_slot) or len({*(first - in_slot).tolist()}) != 1:
                raise Wrong("elements that change places")
            elements.append((first[:, None] + np.arange(many)).ravel())
            elements.append(np.full(1, -1 - int(first[0] - in_slot[0])))  # the slice's begin
        begins = {int(e[0]) for e in elements[1::2]}
        moved = np.sort(np.concatenate(elements[0::2]))
        begin = -1 - begins.pop()
        if begins or not np.array_equal(moved, np.arange(begin, begin + len(moved))):
            raise Wrong("a slice that was not moved whole, or twice")
        slice_number = begin // self._part
        blocks = self._runs.case.blocks
        chunks = self._runs.programs[self._number].chunks
        if begin % self._part or slice_number % blocks != self._index:
            raise Wrong("a slice that is another block's, or none")
        piece = self._epoch - self._runs.epochs[self._number]
        if slice_number // blocks // chunks != piece:
            raise Wrong("a slice of another piece")
        return slice_number // blocks % chunks, begin, len(moved)


def rows_of(runs: AllReduces, number: int, rank: int, block: Block) -> BlockRows:
    """What a block did in an operation; Wrong where that is not made of rows."""
    return _Reader(runs, number, rank, block).result


def expected_rows(runs: AllReduces, number: int, rank: int, block: int) -> BlockRows:
    """What the proved program says that it does, if nobody stops it."""
    operation = runs.case.operations[number]
    program = runs.programs[number]
    slicing = runs.cuts[number]
    blocks = runs.case.blocks
    result = BlockRows([], set())
    receives = int((program.rows[rank][:, 0] != DeviceAction.PUT).sum())
    for piece in range(slicing.pieces):
        epoch = runs.epochs[number] + piece
        unused = range(receives, runs.layout.slots)
        result.refreshed |= {(epoch, slot) for slot in unused}
        for action, peer, chunk, slot in program.rows[rank].tolist():
            begin = ((piece * program.chunks + chunk) * blocks + block) * slicing.part
            count = max(0, min(slicing.part, operation.numel - begin))
            seen = count > 0
            is_put = action == DeviceAction.PUT
            result.rows.append(
                Row(
                    epoch=epoch,
                    action=action if seen or is_put else UNSEEN,
                    peer=peer,
                    chunk=chunk if seen else UNSEEN,
                    slot=slot,
                    begin=begin if seen else UNSEEN,
                    count=count,
                )
            )
    if operation.average:
        result.averaged = len(runs.slices(number, block))
    return result
