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
CHUNKS = 3
"""Of each of a rank's three areas: input, output, scratch."""

Terms = Counter[tuple[int, int]]


class Builder:
    """Appends steps to blocks, with what they wait for."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.ranks = draw.choice((2, 2, 3))
        self.many = draw.choice((2, 3, 3, 4))
        self.homes = [n % self.ranks for n in range(self.many)]
        self.blocks: list[list[Step]] = [[] for _ in range(self.many)]
        self.slots = draw.choice((1, 1, 2, 2, None))
        self.fifos: dict[tuple[int, int], int] = {}
        self.clocks: list[dict[int, int]] = [{} for _ in range(self.many)]
        self.touched: dict[int, list[tuple[int, int, bool]]] = {}
        self.memory: list[Terms | None] = []
        for rank in range(self.ranks):
            self.memory += [Counter({(rank, chunk): 1}) for chunk in range(CHUNKS)]
            self.memory += [None] * (2 * CHUNKS)
        self.junk = len(self.memory)
        self.presses = draw.random() < 0.4

    def fifo(self, source: int, target: int) -> int:
        """The FIFO between two blocks."""
        return self.fifos.setdefault((source, target), len(self.fifos))

    def step(self, count: int) -> Step:
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

    def spare(self, count: int) -> int:
        """New addresses that hold nothing."""
        self.memory += [None] * count
        return len(self.memory) - count

    def append(self, block: int, step: Step) -> None:
        """Put a step at the end of a block, behind all that it must come after."""
        needed: dict[int, int] = {}
        areas = [(a, False) for a in step["sources"]] + [(a, True) for a in step["targets"]]
        for start, writes in areas:
            for address in range(start, start + step["count"]):
                for other, at, wrote in self.touched.get(address, []):
                    if other != block and (writes or wrote):
                        needed[other] = max(needed.get(other, -1), at)
        for other, at in sorted(needed.items()):
            if self.clocks[block].get(other, -1) >= at:
                continue
            if self.presses and self.slots and self.draw.random() < 0.6:
                self.press(other, block)
            else:
                self.signal(other, at, block, step)
        self.blocks[block].append(step)
        for start, writes in areas:
            for address in range(start, start + step["count"]):
                here = (block, len(self.blocks[block]) - 1, writes)
                self.touched.setdefault(address, []).append(here)

    def signal(self, other: int, at: int, block: int, step: Step) -> None:
        """Let a step wait for one of another block."""
        value = 2 * at
        theirs = self.blocks[other][at]
        if not theirs["signals"]:
            theirs["signals"] = [[other, value]]
        step["waits"].append([other, value])
        self.learn(block, other, at)

    def learn(self, block: int, other: int, at: int) -> None:
        """Note what a block now comes after."""
        mine = self.clocks[block]
        mine[other] = max(mine.get(other, -1), at)

    def press(self, earlier: int, later: int) -> None:
        """Order two blocks by a FIFO that a third one empties only after a message of the first."""
        others = [n for n in range(self.many) if n not in {earlier, later}]
        if not others:
            self.blocks.append([])
            self.homes.append(0)
            self.clocks.append({})
            self.many += 1
            others = [self.many - 1]
        between = self.draw.choice(others)
        at = len(self.blocks[earlier]) - 1
        self.message(earlier, between)
        assert self.slots
        for _ in range(self.slots + 1):
            self.blocks[later].append(
                self.step(1) | {"sources": [self.spare(1)], "sends": self.fifo(later, between)}
            )
        room = self.spare(1)
        for _ in range(self.slots + 1):
            self.blocks[between].append(
                self.step(1) | {"targets": [room], "receives": self.fifo(later, between)}
            )
        self.learn(later, earlier, at)

    def message(self, source: int, target: int) -> None:
        """A message that nobody needs."""
        fifo = self.fifo(source, target)
        self.blocks[source].append(self.step(1) | {"sources": [self.spare(1)], "sends": fifo})
        self.blocks[target].append(self.step(1) | {"targets": [self.spare(1)], "receives": fifo})

    def area(self, count: int, written: bool) -> int:
        """Some area, of any rank; if ``written`` one that holds something."""
        for _ in range(20):
            start = self.draw.randrange(self.ranks) * 3 * CHUNKS + self.draw.randrange(3) * CHUNKS
            start += self.draw.randrange(CHUNKS - count + 1)
            cells = self.memory[start : start + count]
            if not written or all(cell is not None for cell in cells):
                return start
        return 0

    def sum_of(self, areas: list[int], count: int) -> list[Terms | None]:
        """What these areas add up to."""
        found: list[Terms | None] = []
        for chunk in range(count):
            total: Terms | None = Counter()
            for start in areas:
                value = self.memory[start + chunk]
                total = None if value is None or total is None else total + value
            found.append(total)
        return found

    def partner(self, start: int) -> int:
        """The same place at another rank, so that sums mean something."""
        whole = 3 * CHUNKS
        return (start + whole * self.draw.randrange(1, self.ranks)) % (whole * self.ranks)

    def happen(self) -> None:
        """One thing that happens."""
        draw = self.draw
        count = draw.choice((1, 1, 2, 3))
        source = self.area(count, True)
        target = self.area(count, False)
        block = draw.randrange(self.many)
        kind = draw.choice(("copy", "sum", "message", "message", "added", "forward"))
        if kind in {"copy", "sum"}:
            sources = [source]
            if kind == "sum":
                sources.append(self.partner(source))
            if any(0 < abs(target - a) < count for a in sources):
                return
            value = self.sum_of(sources, count)
            targets = [target] + [self.partner(target)] * (draw.random() < 0.3)
            if any(0 < abs(t - a) < count for t in targets for a in sources + targets):
                return
            self.append(block, self.step(count) | {"sources": sources, "targets": targets})
            self.store(targets, value)
            return
        other = draw.choice([n for n in range(self.many) if n != block])
        value = self.sum_of([source], count)
        self.append(
            block, self.step(count) | {"sources": [source], "sends": self.fifo(block, other)}
        )
        if kind == "forward" and self.many > 2:
            third = draw.choice([n for n in range(self.many) if n not in {block, other}])
            step = self.step(count) | {
                "receives": self.fifo(block, other),
                "sends": self.fifo(other, third),
            }
            if draw.random() < 0.5:
                room = self.area(count, False)
                step["targets"] = [room]
                self.append(other, step)
                self.store([room], value)
            else:
                self.append(other, step)
            block = other
            other = third
        step = self.step(count) | {"receives": self.fifo(block, other), "targets": [target]}
        if kind == "added":
            own = self.partner(source)
            if not 0 < abs(own - target) < count:
                step["sources"] = [own]
                more = self.sum_of([own], count)
                value = [
                    None if a is None or b is None else a + b
                    for a, b in zip(value, more, strict=True)
                ]
        self.append(other, step)
        self.store([target], value)

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
            elif len(chunks) == 1 and value == Counter(
                {(r, min(chunks)): 1 for r in range(self.ranks)}
            ):
                rows.append([address, -1, min(chunks)])
        return rows

    def draft(self) -> Draft:
        """The program as plain data."""
        for _ in range(self.draw.randrange(2, 8)):
            self.happen()
        sizes = None
        if self.draw.random() < 0.6:
            room = 1200
            least = self.draw.choice((0, 12 * 400, 12 * 600))
            most = self.draw.choice((None, 12 * 600, 12 * 1200, 12 * 500))
            if most is None or most >= least:
                sizes = [12, room, least, most]
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


def places_of(draft: Draft) -> list[tuple[int, int]]:
    """Where there are steps."""
    return [(b, n) for b, steps in enumerate(draft["blocks"]) for n in range(len(steps))]


def change(draft: Draft, draw: random.Random) -> None:
    """One change."""
    places = places_of(draft)
    if not places:
        return
    block, at = draw.choice(places)
    steps = draft["blocks"][block]
    step = steps[at]
    waiting = [draft["blocks"][b][n] for b, n in places if draft["blocks"][b][n]["waits"]]
    kind = draw.randrange(14)
    if kind in {0, 1} and waiting:
        waits = draw.choice(waiting)["waits"]
        del waits[draw.randrange(len(waits))]
    elif kind == 2 and waiting:
        waits = draw.choice(waiting)["waits"]
        draw.choice(waits)[1] -= draw.choice((1, 2, 3))
    elif kind == 3:
        step["signals"] = [] if step["signals"] else [[block, 2 * at + draw.choice((-1, 0, 0, 1))]]
    elif kind in {4, 5} and at + 1 < len(steps):
        steps[at], steps[at + 1] = steps[at + 1], steps[at]
    elif kind == 6:
        del steps[at]
    elif kind in {7, 8} and step["sources"] + step["targets"]:
        areas = step[draw.choice([n for n in ("sources", "targets") if step[n]])]
        n = draw.randrange(len(areas))
        moved = areas[n] + draw.choice((-1, 1, CHUNKS))
        areas[n] = min(max(0, moved), draft["addresses"] - step["count"])
    elif kind == 9:
        count = draw.choice((0, 1, 2))
        if count <= step["count"] or not step["sources"] + step["targets"]:
            step["count"] = count
    elif kind == 10:
        draft["slots"] = draw.choice((1, 2, 3, None))
    elif kind == 11:
        _press_the_other_way(draft, draw)
    elif kind == 12:
        _delay(draft, steps, draw.randrange(1, 6))
    else:
        other = draw.randrange(len(draft["blocks"]))
        step["waits"].append([other, draw.randrange(0, 6)])


def _nothing(draft: Draft) -> Step:
    draft["addresses"] += 1
    return {
        "count": 1,
        "sources": [],
        "targets": [],
        "receives": -1,
        "sends": -1,
        "waits": [],
        "signals": [],
    }


def _delay(draft: Draft, steps: list[Step], many: int) -> None:
    """Steps that nobody needs, first of all in a block."""
    for _ in range(many):
        step = _nothing(draft)
        step["sources"] = [0]
        step["targets"] = [draft["addresses"] - 1]
        steps.insert(0, step)


def _press_the_other_way(draft: Draft, draw: random.Random) -> None:
    """Instead of a wait, let full FIFOs order two steps, and in the wrong order."""
    if not draft["slots"]:
        return
    pairs = []
    for block, at in places_of(draft):
        for counter, value in draft["blocks"][block][at]["waits"]:
            for other, n in places_of(draft):
                if [counter, value] in draft["blocks"][other][n]["signals"] and other != block:
                    pairs.append((block, at, other, n, [counter, value]))
    if not pairs:
        return
    block, at, other, n, wait = draw.choice(pairs)
    draft["blocks"][block][at]["waits"].remove(wait)
    draft["blocks"].append([])
    draft["homes"].append(0)
    told = draft["fifos"]
    full = draft["fifos"] + 1
    draft["fifos"] += 2

    def message(**fields: Any) -> Step:
        step = _nothing(draft)
        return step | fields

    between = draft["blocks"][-1]
    draft["blocks"][block].insert(at + 1, message(sources=[draft["addresses"]], sends=told))
    between.append(message(targets=[draft["addresses"]], receives=told))
    for _ in range(draft["slots"] + 1):
        draft["blocks"][other].insert(n, message(sources=[draft["addresses"]], sends=full))
        between.append(message(targets=[draft["addresses"]], receives=full))
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
