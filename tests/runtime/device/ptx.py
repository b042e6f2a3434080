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

from runtime.device.variants import ALIGNMENT, REGISTERS, TILE, WARPS
from verify.device.program import SETS

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
    signature = {
        p.name: "constexpr" if p.is_constexpr else p.annotation_type for p in kernel.params
    } | {"rows": "*i32", "own": f"*{dtype}", "bases": "*i64", "stop": "*i32"}
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
        jumps = {}
        labels = {}
        for text in ptx.splitlines():
            if label := LABEL.match(text):
                labels[label[1]] = len(names)
            elif line := LINE.match(text):
                if line[2].startswith("bra"):
                    jumps[len(names)] = line[3].strip(), line[1] is not None
                names.append(line[2])
        after = [[i + 1] if i + 1 < len(names) else [] for i in range(len(names))]
        for i, (label, conditional) in jumps.items():
            after[i] = [labels[label], *(after[i] if conditional else [])]
        for i, name in enumerate(names):
            if name == "ret":
                after[i] = []
        return cls(names, after)

    def where(self, pattern):
        return [i for i, name in enumerate(self.names) if pattern.match(name)]

    def reached(self, start):
        """All that may follow an instruction before the next barrier of the block."""
        found = set()
        open_ = list(self.after[start])
        while open_:
            i = open_.pop()
            if i not in found and not self.names[i].startswith("bar.sync"):
                found.add(i)
                open_ += self.after[i]
        return found


def problems(ptx, dtype, average):
    """What is wrong with the compiled kernel, in words."""
    program = Program.of(ptx)
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
    wide_loads = [i for i in loads if WIDE.search(names[i])]
    wide_stores = [i for i in stores if WIDE.search(names[i])]
    for store in wide_stores:
        for load in wide_loads:
            if load in follows[store] and store not in follows[load]:
                yield "no barrier between what a row stores and what the next one loads"
    moves = 3 + average
    width = WIDTHS[dtype]
    if len(wide_stores) != moves * TILE * width // (32 * WARPS * 16):
        yield f"{len(wide_stores)} stores of 16 bytes"
    narrow = [i for i in stores if names[i] == f"st.global.b{8 * width}"]
    # the last elements; the mark of what is no sum; flags that are brought up to date
    if len(narrow) != moves + 1 + (width == 4):
        yield f"{len(narrow)} narrow stores"


def spills(cubin, tmp_path):
    """Bytes of local memory, and accesses to it: what did not fit into registers."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin)
    found = {}
    for tool, option in ("cuobjdump", "-res-usage"), ("nvdisasm", "-c"):
        run = subprocess.run([BIN / tool, option, path], capture_output=True, text=True, check=True)
        found[tool] = run.stdout
    local = int(re.search(r"LOCAL:(\d+)", found["cuobjdump"])[1])
    return local + len(re.findall(r"\b(?:STL|LDL)\b", found["nvdisasm"]))
