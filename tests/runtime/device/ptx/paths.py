"""What a kernel compiled for a GPU must have, read from its PTX: fences, barriers, wide accesses.

Triton's interpreter can't show that a barrier or a fence is missing, nor can x86. So the paths of
the program are followed: from place to place without passing a barrier of the block (``bar.sync``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from latecomer.runtime.device.variants import TILE, WARPS
from tests.runtime.device.ptx.builds import WIDTHS

LINE = re.compile(r"^\s*(?:@(!?%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);")
LABEL = re.compile(r"^(\$L\w+):")
RELEASE = re.compile(r"(atom|red|st)\..*release")
ACQUIRE = re.compile(r"(ld|atom)\..*acquire")
LOAD = re.compile(r"ld\.global\.(v\d\.)?b")
STORE = re.compile(r"st\.global\.(v\d\.)?b")
WIDE = re.compile(r"\.v4\.b32|\.v2\.b64")


@dataclass
class Program:
    """Instructions of PTX, and which may follow which."""

    names: list[str]
    after: list[list[int]]

    @classmethod
    def of(cls, ptx):
        names = []
        jumps = {}  # by instruction: to which label, and whether only on a condition
        labels = {}
        for text in ptx.splitlines():
            if label := LABEL.match(text):
                labels[label[1]] = len(names)
            elif line := LINE.match(text):
                condition, name, operands = line.groups()
                if name.startswith("bra"):
                    jumps[len(names)] = (operands.strip(), condition is not None)
                names.append(name)

        after = []
        for i, name in enumerate(names):
            following = []
            if i in jumps:
                label, is_conditional = jumps[i]
                following.append(labels[label])
            if name != "ret" and (i not in jumps or is_conditional) and i + 1 < len(names):
                following.append(i + 1)
            after.append(following)
        return cls(names, after)

    def where(self, pattern):
        return [i for i, name in enumerate(self.names) if pattern.match(name)]

    def reached(self, start):
        """All that may follow an instruction before the next barrier of the block."""
        reached = set()
        to_visit = list(self.after[start])
        while to_visit:
            i = to_visit.pop()
            if i not in reached and not self.names[i].startswith("bar.sync"):
                reached.add(i)
                to_visit += self.after[i]
        return reached


def problems(ptx, dtype, average):
    """What is wrong with the compiled kernel, in words."""
    program = Program.of(ptx)
    yield from _problems_of_order(program)
    yield from _problems_of_width(program, WIDTHS[dtype], average)


def _wide(program, accesses):
    """Those of the accesses that move 16 bytes."""
    return [i for i in accesses if WIDE.search(program.names[i])]


def _problems_of_order(program):
    names = program.names
    releases = program.where(RELEASE)
    acquires = program.where(ACQUIRE)
    if not any(".sys." in names[i] for i in releases):
        yield "no release at system scope"
    if not any(".sys." in names[i] for i in acquires):
        yield "no acquire at system scope"

    loads = program.where(LOAD)
    stores = program.where(STORE)
    follows = {i: program.reached(i) for i in {*loads, *stores, *acquires}}
    if any(release in follows[store] for store in stores for release in releases):
        yield "no barrier between stores and a release"
    if any(follows[acquire] & {*loads, *stores} for acquire in acquires):
        yield "no barrier between an acquire and what it orders"
    if any("volatile" in name for name in names):
        yield "a word that may change is read by all threads"
    for store in _wide(program, stores):
        for load in _wide(program, loads):
            if load in follows[store] and store not in follows[load]:
                yield "no barrier between what a row stores and what the next one loads"


def _problems_of_width(program, width, average):
    """``width``: bytes of an element."""
    moves = 3 + average
    stores = program.where(STORE)
    wide = _wide(program, stores)
    if len(wide) != moves * TILE * width // (32 * WARPS * 16):
        yield f"{len(wide)} stores of 16 bytes"

    narrow = [i for i in stores if program.names[i] == f"st.global.b{8 * width}"]
    # the last elements; the mark of what is no sum; flags that are brought up to date
    if len(narrow) != moves + 1 + (width == 4):
        yield f"{len(narrow)} narrow stores"
