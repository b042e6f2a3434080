"""Random programs of ``verify``'s model that are nearly right, and what they are to compute.

What happens is drawn in an order in which it could: copies and sums, also into other ranks' memory,
messages, messages forwarded while they come. Each step waits, by a counter or behind a full FIFO,
for whatever it must come after. What memory then holds, where that can be said as a demand, is what
the program is for. After that it is changed in up to four places.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import deepcopy
from typing import Any

Step = dict[str, Any]
Draft = dict[str, Any]
Position = tuple[int, int]
"""Where a step is: the block, and the index in the block."""
AREAS = 3
"""Of each rank: input, output, scratch."""
CHUNKS = 3
"""Of each area."""

Terms = Counter[tuple[int, int]]


def new_step(count: int) -> Step:
    """A step that does nothing."""
    return {
        "count": count,
        "sources": [],
        "targets": [],
        "receives": -1,
        "sends": -1,
        "waits": [],
        "signals": [],
    }


class Builder:
    """Appends steps to blocks, with what they wait for.

    Attributes:
        clocks: per block, the last step of each other block that it comes after.
        touched: per address, the steps that touch it: (block, index, whether it is written).
        memory: what each address holds, as a sum of (rank, chunk); None: nothing defined.
        presses: some blocks are ordered by full FIFOs instead of counters.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.ranks = draw.choice((2, 2, 3))
        self.block_count = draw.choice((2, 3, 3, 4))
        self.homes = [n % self.ranks for n in range(self.block_count)]
        self.blocks: list[list[Step]] = [[] for _ in range(self.block_count)]
        self.slots = draw.choice((1, 1, 2, 2, None))
        self.fifos: dict[tuple[int, int], int] = {}
        self.clocks: list[dict[int, int]] = [{} for _ in range(self.block_count)]
        self.touched: dict[int, list[tuple[int, int, bool]]] = {}
        self.memory: list[Terms | None] = []
        for rank in range(self.ranks):
            self.memory += [Counter({(rank, chunk): 1}) for chunk in range(CHUNKS)]
            self.memory += [None] * ((AREAS - 1) * CHUNKS)
        self.presses = draw.random() < 0.4

    def fifo(self, source: int, target: int) -> int:
        """The FIFO between two blocks."""
        return self.fifos.setdefault((source, target), len(self.fifos))

    def spare(self, count: int) -> int:
        """New addresses that hold nothing."""
        self.memory += [None] * count
        return len(self.memory) - count

    def append(self, block: int, step: Step) -> None:
        """Put a step at the end of a block, behind all that it must come after."""
        needed: dict[int, int] = {}  # per other block, the last step of it to come after
        areas = [(a, False) for a in step["sources"]] + [(a, True) for a in step["targets"]]
        for start, writes in areas:
            for address in range(start, start + step["count"]):
                for other_block, index, wrote in self.touched.get(address, []):
                    if other_block != block and (writes or wrote):
                        needed[other_block] = max(needed.get(other_block, -1), index)

        for other_block, index in sorted(needed.items()):
            if self.clocks[block].get(other_block, -1) >= index:
                continue
            if self.presses and self.slots and self.draw.random() < 0.6:
                self.press(other_block, block)
            else:
                self.signal(other_block, index, block, step)

        self.blocks[block].append(step)
        for start, writes in areas:
            for address in range(start, start + step["count"]):
                access = (block, len(self.blocks[block]) - 1, writes)
                self.touched.setdefault(address, []).append(access)

    def signal(self, earlier: int, index: int, block: int, step: Step) -> None:
        """Let a step wait for one of another block."""
        value = 2 * index
        signalling = self.blocks[earlier][index]
        if not signalling["signals"]:
            signalling["signals"] = [[earlier, value]]
        step["waits"].append([earlier, value])
        self.learn(block, earlier, index)

    def learn(self, block: int, earlier: int, index: int) -> None:
        """Note what a block now comes after."""
        clock = self.clocks[block]
        clock[earlier] = max(clock.get(earlier, -1), index)

    def press(self, earlier: int, later: int) -> None:
        """Order two blocks by a FIFO that a third one empties only after a message of the first."""
        between_candidates = [n for n in range(self.block_count) if n not in {earlier, later}]
        if not between_candidates:
            self.blocks.append([])
            self.homes.append(0)
            self.clocks.append({})
            self.block_count += 1
            between_candidates = [self.block_count - 1]
        between = self.draw.choice(between_candidates)

        index = len(self.blocks[earlier]) - 1
        self.message(earlier, between)
        assert self.slots
        for _ in range(self.slots + 1):
            sending = new_step(1)
            sending["sources"] = [self.spare(1)]
            sending["sends"] = self.fifo(later, between)
            self.blocks[later].append(sending)

        room = self.spare(1)
        for _ in range(self.slots + 1):
            receiving = new_step(1)
            receiving["targets"] = [room]
            receiving["receives"] = self.fifo(later, between)
            self.blocks[between].append(receiving)
        self.learn(later, earlier, index)

    def message(self, source: int, target: int) -> None:
        """A message that nobody needs."""
        fifo = self.fifo(source, target)
        sending = new_step(1) | {"sources": [self.spare(1)], "sends": fifo}
        self.blocks[source].append(sending)
        receiving = new_step(1) | {"targets": [self.spare(1)], "receives": fifo}
        self.blocks[target].append(receiving)

    def area(self, count: int, written: bool) -> int:
        """Some area, of any rank; if ``written`` one that holds something."""
        for _ in range(20):
            start = self.draw.randrange(self.ranks) * AREAS * CHUNKS
            start += self.draw.randrange(AREAS) * CHUNKS
            start += self.draw.randrange(CHUNKS - count + 1)
            cells = self.memory[start : start + count]
            if not written or all(cell is not None for cell in cells):
                return start
        return 0

    def sum_of(self, areas: list[int], count: int) -> list[Terms | None]:
        """What these areas add up to."""
        totals: list[Terms | None] = []
        for chunk in range(count):
            total: Terms | None = Counter()
            for start in areas:
                value = self.memory[start + chunk]
                total = None if value is None or total is None else total + value
            totals.append(total)
        return totals

    def partner(self, start: int) -> int:
        """The same place at another rank, so that sums mean something."""
        per_rank = AREAS * CHUNKS
        shift = per_rank * self.draw.randrange(1, self.ranks)
        return (start + shift) % (per_rank * self.ranks)

    def happen(self) -> None:
        """One thing that happens."""
        count = self.draw.choice((1, 1, 2, 3))
        source = self.area(count, written=True)
        target = self.area(count, written=False)
        block = self.draw.randrange(self.block_count)
        kind = self.draw.choice(("copy", "sum", "message", "message", "added", "forward"))
        if kind in {"copy", "sum"}:
            self._happen_here(block, kind, source, target, count)
        else:
            self._happen_between(block, kind, source, target, count)

    def _happen_here(self, block: int, kind: str, source: int, target: int, count: int) -> None:
        """A copy or a sum within a block, sometimes into two ranks' memory."""
        sources = [source]
        if kind == "sum":
            sources.append(self.partner(source))
        if any(_overlap(target, start, count) for start in sources):
            return

        totals = self.sum_of(sources, count)
        targets = [target]
        partner = self.partner(target)
        if self.draw.random() < 0.3:
            targets.append(partner)
        for start in targets:
            if any(_overlap(start, touched, count) for touched in sources + targets):
                return

        self.append(block, new_step(count) | {"sources": sources, "targets": targets})
        self.store(targets, totals)

    def _happen_between(self, block: int, kind: str, source: int, target: int, count: int) -> None:
        """A message to another block, which may forward it to a third one."""
        receiver = self.draw.choice([n for n in range(self.block_count) if n != block])
        value = self.sum_of([source], count)
        fifo = self.fifo(block, receiver)
        self.append(block, new_step(count) | {"sources": [source], "sends": fifo})

        if kind == "forward" and self.block_count > 2:
            forwarder = receiver
            receiver = self._forward(block, forwarder, value, count)
            block = forwarder

        step = new_step(count) | {"receives": self.fifo(block, receiver), "targets": [target]}
        if kind == "added":
            own = self.partner(source)
            if not _overlap(own, target, count):
                step["sources"] = [own]
                value = _sums(value, self.sum_of([own], count))
        self.append(receiver, step)
        self.store([target], value)

    def _forward(self, block: int, forwarder: int, value: list[Terms | None], count: int) -> int:
        """Let a block send on what it receives, and keep it or not; returns to which block."""
        candidates = [n for n in range(self.block_count) if n not in {block, forwarder}]
        receiver = self.draw.choice(candidates)
        step = new_step(count)
        step["receives"] = self.fifo(block, forwarder)
        step["sends"] = self.fifo(forwarder, receiver)
        if self.draw.random() < 0.5:
            room = self.area(count, written=False)
            step["targets"] = [room]
            self.append(forwarder, step)
            self.store([room], value)
        else:
            self.append(forwarder, step)
        return receiver

    def store(self, targets: list[int], value: list[Terms | None]) -> None:
        """What memory holds from now on."""
        for start in targets:
            self.memory[start : start + len(value)] = value

    def demand(self) -> list[list[int]]:
        """What memory holds now, as far as a demand can say it: (address, rank, chunk)."""
        rows = []
        for address, value in enumerate(self.memory):
            if not value:
                continue
            chunks = {chunk for _, chunk in value}
            if len(value) == 1 and sum(value.values()) == 1:
                ((rank, chunk),) = value
                rows.append([address, rank, chunk])
            elif len(chunks) == 1:
                (chunk,) = chunks
                if value == Counter({(rank, chunk): 1 for rank in range(self.ranks)}):
                    rows.append([address, -1, chunk])
        return rows

    def draft(self) -> Draft:
        """The program as plain data."""
        for _ in range(self.draw.randrange(2, 8)):
            self.happen()
        sizes = None
        if self.draw.random() < 0.6:
            room = 1200
            least_bytes = self.draw.choice((0, 12 * 400, 12 * 600))
            most_bytes = self.draw.choice((None, 12 * 600, 12 * 1200, 12 * 500))
            if most_bytes is None or most_bytes >= least_bytes:
                sizes = [12, room, least_bytes, most_bytes]
        return {
            "ranks": self.ranks,
            "slots": self.slots,
            "fifos": len(self.fifos),
            "sizes": sizes,
            "addresses": len(self.memory),
            "homes": self.homes,
            "blocks": self.blocks,
            "demand": self.demand(),
        }


def _overlap(first: int, second: int, count: int) -> bool:
    """Whether two areas of so many chunks overlap, but are not the same."""
    return 0 < abs(first - second) < count


def _sums(first: list[Terms | None], second: list[Terms | None]) -> list[Terms | None]:
    sums: list[Terms | None] = []
    for a, b in zip(first, second, strict=True):
        sums.append(None if a is None or b is None else a + b)
    return sums


def positions_of(draft: Draft) -> list[Position]:
    """Where there are steps."""
    positions = []
    for block, steps in enumerate(draft["blocks"]):
        positions += [(block, index) for index in range(len(steps))]
    return positions


CHANGES = (
    "drop a wait",
    "drop a wait",
    "wait for a lower value",
    "signal or not",
    "swap",
    "swap",
    "drop",
    "start of an area",
    "start of an area",
    "count",
    "slots",
    "press the other way",
    "delay",
    "another wait",
)
"""The kinds of changes; those named several times are made more often."""


def change(draft: Draft, draw: random.Random) -> None:
    """One change."""
    positions = positions_of(draft)
    if not positions:
        return

    block, index = draw.choice(positions)
    steps = draft["blocks"][block]
    step = steps[index]
    waiting = []
    for steps_of_block in draft["blocks"]:
        waiting += [step_there for step_there in steps_of_block if step_there["waits"]]

    kind = draw.choice(CHANGES)
    if kind == "drop a wait" and waiting:
        waits = draw.choice(waiting)["waits"]
        del waits[draw.randrange(len(waits))]
    elif kind == "wait for a lower value" and waiting:
        waits = draw.choice(waiting)["waits"]
        draw.choice(waits)[1] -= draw.choice((1, 2, 3))
    elif kind == "signal or not":
        if step["signals"]:
            step["signals"] = []
        else:
            step["signals"] = [[block, 2 * index + draw.choice((-1, 0, 0, 1))]]
    elif kind == "swap" and index + 1 < len(steps):
        steps.insert(index + 1, steps.pop(index))
    elif kind == "drop":
        del steps[index]
    elif kind == "start of an area" and step["sources"] + step["targets"]:
        side = draw.choice([name for name in ("sources", "targets") if step[name]])
        areas = step[side]
        number = draw.randrange(len(areas))
        moved = areas[number] + draw.choice((-1, 1, CHUNKS))
        areas[number] = min(max(0, moved), draft["addresses"] - step["count"])
    elif kind == "count":
        count = draw.choice((0, 1, 2))
        if count <= step["count"] or not step["sources"] + step["targets"]:
            step["count"] = count
    elif kind == "slots":
        draft["slots"] = draw.choice((1, 2, 3, None))
    elif kind == "press the other way":
        _press_the_other_way(draft, draw)
    elif kind == "delay":
        _delay(draft, steps, draw.randrange(1, 6))
    else:
        counter = draw.randrange(len(draft["blocks"]))
        step["waits"].append([counter, draw.randrange(0, 6)])


def _nothing(draft: Draft) -> Step:
    """A step of one chunk, and a new address for it."""
    draft["addresses"] += 1
    return new_step(1)


def _delay(draft: Draft, steps: list[Step], count: int) -> None:
    """Steps that nobody needs, first of all in a block."""
    for _ in range(count):
        step = _nothing(draft)
        step["sources"] = [0]
        step["targets"] = [draft["addresses"] - 1]
        steps.insert(0, step)


def _press_the_other_way(draft: Draft, draw: random.Random) -> None:
    """Instead of a wait, let full FIFOs order two steps, and in the wrong order."""
    if not draft["slots"]:
        return
    pairs = []
    for waiting in positions_of(draft):
        block, index = waiting
        for wait in draft["blocks"][block][index]["waits"]:
            for signalling in positions_of(draft):
                earlier, earlier_index = signalling
                signals = draft["blocks"][earlier][earlier_index]["signals"]
                if wait in signals and earlier != block:
                    pairs.append((waiting, signalling, list(wait)))
    if not pairs:
        return

    (block, index), (earlier, earlier_index), wait = draw.choice(pairs)
    draft["blocks"][block][index]["waits"].remove(wait)
    between: list[Step] = []
    draft["blocks"].append(between)
    draft["homes"].append(0)
    telling_fifo = draft["fifos"]
    full_fifo = draft["fifos"] + 1
    draft["fifos"] += 2

    def message(**fields: Any) -> Step:
        step = _nothing(draft)
        return step | fields

    telling = message(sources=[draft["addresses"]], sends=telling_fifo)
    draft["blocks"][block].insert(index + 1, telling)
    between.append(message(targets=[draft["addresses"]], receives=telling_fifo))
    for _ in range(draft["slots"] + 1):
        sending = message(sources=[draft["addresses"]], sends=full_fifo)
        draft["blocks"][earlier].insert(earlier_index, sending)
        between.append(message(targets=[draft["addresses"]], receives=full_fifo))

    if draw.random() < 0.6:
        _delay(draft, draft["blocks"][block], draw.randrange(2, 7))
    draft["addresses"] += 1


def make(seed: int) -> Draft:
    """The program of a seed."""
    draw = random.Random(seed)
    draft = deepcopy(Builder(draw).draft())
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 4))):
        change(draft, draw)
    return draft
