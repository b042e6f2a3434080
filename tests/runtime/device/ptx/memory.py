"""Global memory of all ranks, under PTX's memory consistency model (PTX ISA, section 8).

**Plain accesses** (weak: ld and st without .relaxed, .acquire, .release). Two of them, or one and a
strong one, are a *data race* if they overlap, one is a store, and causality order does not order
them (8.7.1). Races are errors here: PTX's model gives them a meaning, but what a load may find is
then nearly anything. Whether two accesses race is decided by :mod:`order`, not by the moment at
which they are run, so it makes no difference which of them runs first. Without a race a load has
one value, that of the last store before it in causality order (8.10.6, 8.10.1): no machine that
keeps the model, however late or in whatever order its stores become visible, finds another.

**Strong accesses** are of words of 32 bits. All that were stored into a word are its *messages*, in
coherence order (8.9.6). A strong load may find any, but (8.10.5, 8.10.6) none older than one that
comes before it in causality order, or than what its thread has read before. The adversary chooses.
An exchange finds the newest, and is the newest then (8.10.3, atomicity). Two strong accesses of one
word that are not morally strong, by scope or size, race as plain ones do.

**A copy**: where several threads of a block load the same cell in one instruction, all but the
first find random bits. Triton lets all threads of a block load the tail of a slice, and one group
of them store it: these loads and stores race, and nothing is done with what they find. That
nothing is, random bits show.

Weaker than PTX, so that more is called wrong: any race on plain accesses; a strong write that
follows a release in its thread shows nothing (8.8), nor does one that an exchange has replaced
(8.9.2); what a thread has read binds no other thread that comes after it (8.9.5, by observation).

Stronger than PTX: no store becomes visible before an earlier load of its thread is done. In our
builds each strong store is a release, which PTX orders so (8.8), and a plain one is found behind
a release alone, or races. What the host stores arrives whole (8.1.1).

Left out, since no build has it: fences, volatile, other proxies (8.6), reductions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.runtime.device.ptx.accesses import CELL, Accesses, Cells, cells_of, numbers_of, require
from tests.runtime.device.ptx.order import BlockOrder, Knowledge, block_of, stamp
from tests.runtime.device.ptx.regions import CONSTANT, Region, Regions, Wrong


@dataclass(frozen=True)
class Message:
    """A word that was stored, by which access, and what its release shows (nothing: no release).

    ``scope`` is empty where the store was plain, and HOST where it was the host's.
    """

    value: int
    access: int
    scope: str
    shows: Knowledge | None


@dataclass
class Word:
    """What was stored into 32 bits by strong accesses, oldest first, and who has read it how."""

    messages: list[Message]
    seen: dict[tuple[int, int], int] = field(default_factory=dict)
    reads: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)

    def copy(self) -> Word:
        """Another one, the same."""
        return Word(list(self.messages), dict(self.seen), dict(self.reads))


HOST = "host"
VIEWS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
"""By bytes of a word."""

Chooser = Callable[[int, int], int]
"""Of a strong load: from the oldest and the newest message that it may find, which it finds."""


class Memory:
    """Bytes, who accessed them last, and the messages of words.

    Args:
        regions: what there is; addresses ascend.
        size: bytes of it all.
        rank_of: by block, whose it is.
        seed: of the bits that copies find.
    """

    def __init__(
        self,
        regions: list[Region],
        size: int,
        rank_of: tuple[int, ...],
        seed: int,
    ) -> None:
        self.regions = Regions(regions)
        self.bytes = np.zeros(size, np.uint8)
        self.words: dict[int, Word] = {}
        self._accesses = Accesses(size // CELL)
        self._is_word = np.zeros(size // CELL, np.bool_)
        self._rank_of = rank_of
        self._seed = np.uint64(seed)

    def copy(self) -> Memory:
        """Another one, the same."""
        other = object.__new__(Memory)
        other.__dict__ |= self.__dict__
        other.bytes = self.bytes.copy()
        other._accesses = self._accesses.copy()
        other._is_word = self._is_word.copy()
        other.words = {at: word.copy() for at, word in self.words.items()}
        return other

    def key(self) -> tuple:
        """All of it, to tell states apart."""
        words = [
            (
                at,
                tuple((m.value, m.access) for m in word.messages),
                tuple(sorted(word.seen.items())),
                tuple(sorted(word.reads.items())),
            )
            for at, word in sorted(self.words.items())
        ]
        return self.bytes.tobytes(), self._accesses.key(), tuple(words)

    def view(self, region: Region, kind: type) -> np.ndarray:
        """A region as the host sees it, while no kernel runs."""
        return self.bytes[region.start : region.start + region.size].view(kind)

    # -- plain accesses

    def load(
        self,
        order: BlockOrder,
        threads: np.ndarray,
        addresses: np.ndarray,
        width: int,
        words: int,
        copies: np.ndarray | None,
    ) -> list[np.ndarray]:
        """``words`` words of ``width`` bytes for each thread, one after another from its address.

        ``copies``: which of these loads are copies (:func:`copies_among`); none if there is none.
        """
        region = self._checked(order, addresses, width, words, is_store=False)
        kind = VIEWS[width]
        index = (addresses // width).astype(np.int64)
        data = self.bytes.view(kind)
        results = [data[index + i] for i in range(words)]
        if region.what in CONSTANT:
            return results
        if copies is not None:
            noise = self._noise(threads[copies], addresses[copies])
            for result in results:
                result[copies] = noise.astype(kind)
            threads = threads[~copies]
            addresses = addresses[~copies]
        if len(addresses):
            cells, by = cells_of(addresses, threads, width * words)
            self._check_stores(order, cells, by, "a load")
            self._accesses.note_loads(order, cells, by)
        return results

    def store(
        self,
        order: BlockOrder,
        threads: np.ndarray,
        addresses: np.ndarray,
        width: int,
        values: list[np.ndarray],
    ) -> None:
        """The words of each thread, one after another from its address."""
        self._checked(order, addresses, width, len(values), is_store=True)
        cells, by = cells_of(addresses, threads, width * len(values))
        if not isinstance(cells, slice) and len(np.unique(cells)) < len(cells):
            raise Wrong("threads store into the same place in one instruction")
        self._check_stores(order, cells, by, "a store")
        self._accesses.check_loads(order, cells, by)
        self._accesses.note_stores(order, cells, by)
        data = self.bytes.view(VIEWS[width])
        index = (addresses // width).astype(np.int64)
        for i, value in enumerate(values):
            data[index + i] = value
        if self._is_word[cells].any():
            self._store_into_words(order, cells, by)

    def _noise(self, threads: np.ndarray, addresses: np.ndarray) -> np.ndarray:
        """Bits that look random, the same for the same load (Fibonacci hashing, twice)."""
        mixed = addresses.astype(np.uint64) + (threads.astype(np.uint64) << 40) + self._seed
        for _ in range(2):
            mixed *= np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        return mixed >> np.uint64(7)

    def constant(self, order: BlockOrder, address: int, width: int, words: int) -> list[int] | None:
        """What lies at an address that no kernel stores to; nothing if one may."""
        size = width * words
        if address % size:
            raise Wrong(f"an access of {size} bytes that is not aligned")
        if self.regions.require(order.rank, address, address + size, False).what not in CONSTANT:
            return None
        data = self.bytes[address : address + size].view(VIEWS[width])
        return data.tolist()

    def _checked(
        self, order: BlockOrder, addresses: np.ndarray, width: int, words: int, is_store: bool
    ) -> Region:
        """The region of an access; all of it lies in one, and is aligned (5.4.5, 9.7.9.8)."""
        size = width * words
        if (addresses % size).any():
            raise Wrong(f"an access of {size} bytes that is not aligned")
        low = int(addresses.min())
        return self.regions.require(order.rank, low, int(addresses.max()) + size, is_store)

    def _check_stores(self, order: BlockOrder, cells: Cells, by: np.ndarray, what: str) -> None:
        """Wrong if an earlier store of the cells, plain or strong, is not before these accesses."""
        self._accesses.check_stores(order, cells, by, what)
        if self._is_word[cells].any():
            self._check_messages(order, cells, by, what)

    # -- strong accesses

    def strong_load(
        self,
        order: BlockOrder,
        thread: int,
        address: int,
        scope: str,
        acquires: bool,
        choose: Chooser,
    ) -> int:
        """What a thread's ld.relaxed or ld.acquire of a scope finds."""
        word = self._word(order, thread, address, is_store=False)
        who = order.number, thread
        newest = len(word.messages) - 1
        oldest = self.oldest(order, thread, word)
        found = oldest if oldest == newest else choose(oldest, newest)
        for message in word.messages[oldest:]:
            self._require_strong(order, thread, message.access, message.scope, scope)
        message = word.messages[found]
        word.seen[who] = found
        access = stamp(order.number, order.interval, thread, order.moment)
        word.reads[who] = access, scope
        order.looks.add((address, thread))
        if acquires and message.shows is not None:
            order.acquire(thread, message.shows)
        return message.value

    def exchange(
        self, order: BlockOrder, thread: int, address: int, value: int, scope: str, releases: bool
    ) -> int:
        """What a thread's atom.exch of a scope finds, and leaves behind."""
        word = self._word(order, thread, address, is_store=True)
        for message in word.messages[self.oldest(order, thread, word) :]:
            self._require_strong(order, thread, message.access, message.scope, scope)
        for access, of_read in word.reads.values():
            self._require_strong(order, thread, access, of_read, scope)
        moment = order.acts()
        access = stamp(order.number, order.interval, thread, moment)
        shows = order.release(thread, moment) if releases else None
        found = word.messages[-1].value
        word.messages.append(Message(value, access, scope, shows))
        word.seen[order.number, thread] = len(word.messages) - 1
        self.bytes.view(np.uint32)[address // 4] = value
        order.acts()  # what this thread does later is not in what was released
        return found

    def host_stores(self, address: int, value: int) -> None:
        """A word of the host, at any time: strong, at system scope, and it shows nothing."""
        word = self.words.get(address)
        if word is None:
            word = self._first_messages(address)
        word.messages.append(Message(value, 0, HOST, None))
        self.bytes.view(np.uint32)[address // 4] = value

    def settle(self, order: BlockOrder) -> None:
        """A block comes to a barrier: all that it has done comes before all that it does next.

        Intervals say so, but do not go on where it has only looked at words. Then nothing was
        released in this interval either, and these loads may count to the one before.
        """
        if order.has_acted:
            return
        for address, thread in order.looks:
            word = self.words[address]
            _, scope = word.reads[order.number, thread]
            access = stamp(order.number, order.interval - 1, thread, order.moment)
            word.reads[order.number, thread] = access, scope

    def oldest(self, order: BlockOrder, thread: int, word: Word) -> int:
        """The oldest message that a thread may still find."""
        oldest = word.seen.get((order.number, thread), 0)
        for number in range(len(word.messages) - 1, oldest, -1):
            message = word.messages[number]
            if message.scope != HOST and order.precedes(message.access, thread):
                return number
        return oldest

    def newest(self, address: int) -> int:
        """The number of the newest message of a word."""
        return len(self.words[address].messages) - 1

    def _word(self, order: BlockOrder, thread: int, address: int, is_store: bool) -> Word:
        """A word that a strong access is about to touch."""
        if address % 4:
            raise Wrong("a strong access that is not aligned")
        self.regions.require(order.rank, address, address + 4, is_store)
        word = self.words.get(address)
        if word is None:
            word = self._first_messages(address)
        cells = slice(address // CELL, address // CELL + 4 // CELL)
        by = np.full(4 // CELL, thread)
        # plain stores are messages, too, and are looked at as such; plain loads only a store minds
        if is_store:
            self._accesses.check_loads(order, cells, by)
        return word

    def _first_messages(self, address: int) -> Word:
        cell = address // CELL
        value = int(self.bytes.view(np.uint32)[address // 4])
        access = int(self._accesses.stores[cell])
        word = Word([Message(value, access, "", None)])
        self.words[address] = word
        self._is_word[cell : cell + 4 // CELL] = True
        return word

    def _require_strong(
        self, order: BlockOrder, thread: int, access: int, of_access: str, scope: str
    ) -> None:
        """Wrong if an access is neither before this one nor morally strong with it (8.7)."""
        if of_access == HOST:
            if scope != "sys":
                raise Wrong(f"a race with the host: the scope is {scope}")
            return
        if order.precedes(access, thread):
            return
        if not of_access:
            raise Wrong(f"a race of a strong access, in block {order.number}, and a plain one")
        if not (self._reaches(order, access, scope) and self._reaches(order, access, of_access)):
            raise Wrong(
                f"a race: block {order.number} at scope {scope}, block {block_of(access)} at "
                f"scope {of_access}"
            )

    def _reaches(self, order: BlockOrder, access: int, scope: str) -> bool:
        """Whether a scope includes the threads of both blocks (8.5)."""
        other = block_of(access)
        if scope == "sys":
            return True
        if scope == "gpu":
            return self._rank_of[other] == order.rank
        return other == order.number

    def _store_into_words(self, order: BlockOrder, cells: Cells, by: np.ndarray) -> None:
        """A plain store into words: their newest message, which nobody may read unordered."""
        numbers = numbers_of(cells)
        for cell, thread in zip(numbers.tolist(), by.tolist(), strict=True):
            address = cell * CELL
            if address % 4 == 0 and address in self.words:
                word = self.words[address]
                for access, _ in word.reads.values():
                    require(
                        order, np.array([access]), np.array([thread]), "a store and a strong load"
                    )
                value = int(self.bytes.view(np.uint32)[address // 4])
                word.messages.append(Message(value, int(self._accesses.stores[cell]), "", None))

    def _check_messages(self, order: BlockOrder, cells: Cells, by: np.ndarray, what: str) -> None:
        """Wrong if a word's message is not before these plain accesses."""
        numbers = numbers_of(cells)
        for cell, thread in zip(numbers.tolist(), by.tolist(), strict=True):
            word = self.words.get(cell * CELL - cell * CELL % 4)
            if word is None:
                continue
            for message in word.messages:
                if message.scope == HOST:
                    raise Wrong(f"a race of {what} and a store of the host")
                if not order.precedes(message.access, thread):
                    raise Wrong(f"a race of {what} and a strong store")
