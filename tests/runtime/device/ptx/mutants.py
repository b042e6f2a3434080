"""Mutants of the kernel's PTX: one line of its text is changed, moved or left out.

Each operator below goes over all lines that it fits. A mutant has the name of what was done to
which line: its text without registers' numbers, and its place among the lines of the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

INSTRUCTION = re.compile(r"\s*(?:(@!?)(%p\d+)\s+)?([a-z][\w.]*)\s+(.*);|\s*(ret);")
GLOBAL = re.compile(r"(ld|st)\.global\.(v[24]\.)?b\d+$")
STRONG = re.compile(r"(ld|atom)\.global\.sys\.")
TURNED = {"lt": "ge", "ge": "lt", "gt": "le", "eq": "ne", "ne": "eq"}
BESIDE = {"setp.lt.s32": "setp.le.s32", "setp.lt.s64": "setp.le.s64"}
BESIDE |= {"setp.gt.s32": "setp.ge.s32", "setp.ge.s32": "setp.gt.s32"}
BESIDE |= {"setp.ge.s64": "setp.gt.s64"}
OTHER = {"min.s64": "max.s64", "max.s64": "min.s64", "add.s32": "sub.s32", "sub.s32": "add.s32"}
OTHER |= {"add.s64": "sub.s64", "sub.s64": "add.s64", "and.pred": "or.pred", "or.pred": "and.pred"}
OTHER |= {"or.b64": "and.b64", "or.b32": "and.b32"}
NUMBER = re.compile(r"(?<=[ ,])(-?\d+)(?=$)")


@dataclass(frozen=True)
class Mutant:
    """``what`` was done to which ``line``, from 1, and the whole text then."""

    name: str
    what: str
    line: int
    ptx: str


def mutants(ptx: str) -> list[Mutant]:
    """All of a kernel's text."""
    lines = ptx.splitlines()
    made = []
    seen: Counter[str] = Counter()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(".file"):
            break
        found = INSTRUCTION.match(line)
        if found is None:
            continue
        shape = re.sub(
            r"\s+", " ", re.sub(r"%([a-z]+)\d+", r"%\1", line.partition("//")[0])
        ).strip()
        if shape == "bar.sync 0;":
            shape += f" before {_following(lines, number)}"
        seen[shape] += 1
        for what, changed in _changes(line, found):
            text = "\n".join([*lines[:number], *changed, *lines[number + 1 :]])
            name = f"{what}: {shape} ({seen[shape]})"
            made.append(Mutant(name, what, number + 1, text))
    made.append(_flag_before_data(lines))
    return made


def _following(lines: list[str], number: int) -> str:
    """The name of the next instruction."""
    found = next(filter(None, (INSTRUCTION.match(line) for line in lines[number + 1 :])))
    return found[3] or found[5]


def _changes(line: str, found: re.Match[str]) -> Iterator[tuple[str, list[str]]]:
    """What may be done to a line, and what stands there then."""
    sign, guard, name, operands, _ = found.groups()
    if name == "bar.sync":
        yield "a lost barrier", []
    elif name in ("bra", "bra.uni"):
        yield from _of_branches(line, sign, guard)
    elif name and STRONG.match(name):
        yield from _of_strong(line, name)
        yield from _of_accesses(line, sign, guard)
    elif name and GLOBAL.match(name):
        yield from _of_accesses(line, sign, guard)
        yield from _of_vectors(line)
        if name.startswith("st"):
            yield "a lost store", []
    elif name in ("st.shared.b32", "ld.shared.b32"):
        yield from _of_accesses(line, sign, guard)
        if name.startswith("st"):
            yield "a lost store", []
    elif name:
        yield from _of_arithmetic(line, name, operands)


def _of_branches(line: str, sign: str | None, guard: str | None) -> Iterator[tuple[str, list[str]]]:
    if guard is None:
        return
    turned = "@" if sign == "@!" else "@!"
    yield "a turned branch", [line.replace(f"{sign}{guard}", f"{turned}{guard}")]
    yield "a lost branch", []
    yield "a branch without its condition", [line.replace(f"{sign}{guard}", "")]


def _of_strong(line: str, name: str) -> Iterator[tuple[str, list[str]]]:
    for scope in ("gpu", "cta"):
        yield f"scope {scope}", [line.replace(".sys.", f".{scope}.")]
    for order in ("acquire", "release"):
        if order in name:
            yield "relaxed", [line.replace(order, "relaxed")]
    if name.startswith("atom"):
        yield "a lost raise", []


def _of_accesses(line: str, sign: str | None, guard: str | None) -> Iterator[tuple[str, list[str]]]:
    if guard is not None:
        turned = "@" if sign == "@!" else "@!"
        yield "a turned guard", [line.replace(f"{sign}{guard}", f"{turned}{guard}")]
        yield "a lost guard", [line.replace(f"{sign}{guard}", "")]
    for by in (2, 4, 16, -16):
        if "+ 0" in line:
            yield f"an address {by} further on", [line.replace("+ 0", f"+ {by}")]


def _of_vectors(line: str) -> Iterator[tuple[str, list[str]]]:
    found = re.search(r"\{ (%r?d?\d+), (%r?d?\d+)(.*)\}", line) or re.search(
        r"\{ (%rd?\d+), (%rd?\d+)(.*)\}", line
    )
    if found:
        swapped = f"{{ {found[2]}, {found[1]}{found[3]}}}"
        yield "two elements swapped", [line.replace(found[0], swapped)]


def _of_arithmetic(line: str, name: str, operands: str) -> Iterator[tuple[str, list[str]]]:
    kind = re.match(r"setp\.(\w\w)\.", name)
    if kind:
        other = name.replace(kind[1], TURNED[kind[1]])
        yield "a turned comparison", [line.replace(name, other)]
    if name in BESIDE:
        yield "a comparison that is off by one", [line.replace(name, BESIDE[name])]
    if name in OTHER:
        yield "another operation", [line.replace(name, OTHER[name])]
    parts = [part.strip() for part in operands.split(",")]
    if name.startswith(("sub", "selp", "cvt.rn.bf16x2", "div")) and len(parts) > 2:
        parts[1], parts[2] = parts[2], parts[1]
        yield "operands swapped", [line.replace(operands, ", ".join(parts))]
    constant = NUMBER.search(operands)
    if constant and not name.endswith(".pred"):
        value = int(constant[1])
        for changed in {value + 1, value - 1, value * 2} - {value}:
            text = f"{operands[: constant.start()]}{changed}{operands[constant.end() :]}"
            yield f"{changed - value:+d} to a constant", [line.replace(operands, text)]
    elif name == "mov.pred":
        other = "0" if parts[1] == "-1" else "-1"
        yield "the other truth", [line.replace(operands, f"{parts[0]}, {other}")]


def _flag_before_data(lines: list[str]) -> Mutant:
    """The raise moved to where its row begins to move data."""
    raises = next(i for i, line in enumerate(lines) if "atom.global" in line)
    begin = max(i for i in range(raises) if "max.s64" in lines[i])
    moved = [*lines[:begin], lines[raises - 1], lines[raises], *lines[begin:raises]]
    text = "\n".join([*moved, *lines[raises + 1 :]])
    return Mutant("the flag before the data", "moved", raises + 1, text)
