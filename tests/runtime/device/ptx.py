"""What a kernel compiled for a GPU must have, read from its PTX: fences, barriers, wide accesses.

The interpreter can't show that a barrier or a fence is missing, nor can x86. So the paths of the
program are followed: from place to place without passing a barrier of the block (``bar.sync``).
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from latecomer.runtime.device.variants import ALIGNMENT, REGISTERS, TILE, WARPS
from latecomer.verify.device.program import SETS

WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2}
OPTIONS = {"num_warps": WARPS, "maxnreg": REGISTERS}
BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
LINE = re.compile(r"^\s*(?:@(!?%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);")
LABEL = re.compile(r"^(\$L\w+):")
RELEASE = re.compile(r"(atom|red|st)\..*release")
ACQUIRE = re.compile(r"(ld|atom)\..*acquire")
LOAD = re.compile(r"ld\.global\.(v\d\.)?b")
STORE = re.compile(r"st\.global\.(v\d\.)?b")
WIDE = re.compile(r"\.v4\.b32|\.v2\.b64")


def build(kernel, arch, dtype, average, **options):
    """The kernel of a module, compiled for a GPU that is not here."""
    signature = {}
    for parameter in kernel.params:
        kind = "constexpr" if parameter.is_constexpr else parameter.annotation_type
        signature[parameter.name] = kind
    signature |= {"rows": "*i32", "own": f"*{dtype}", "bases": "*i64", "stop": "*i32"}

    constants = {"SETS": SETS, "AVERAGE": average, "DEVICE_CLOCK": True, "TILE": TILE}
    pointers = [name for name, kind in signature.items() if kind.startswith("*")]
    aligned = [["tt.divisibility", ALIGNMENT]]
    attributes = {(kernel.arg_names.index(name),): aligned for name in pointers}
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options=OPTIONS | options)


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


def spills(cubin, tmp_path):
    """Bytes of local memory, and accesses to it: what did not fit into registers."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    usage = _output(BIN / "cuobjdump", "-res-usage", path)
    instructions = _output(BIN / "nvdisasm", "-c", path)
    local_bytes = int(re.search(r"LOCAL:(\d+)", usage)[1])
    return local_bytes + len(re.findall(r"\b(?:STL|LDL)\b", instructions))


def _output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
