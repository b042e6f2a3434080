"""PTX text of one kernel as instructions: names, guards, operands, labels (PTX ISA, section 4).

Only what our builds contain is read: one entry, registers, one array in shared memory, debug
directives (which are skipped). Any other line is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ENTRY = re.compile(r"\.visible \.entry (\w+)\(")
PARAMETER = re.compile(r"\.param \.u(32|64) (?:\.ptr \.global \.align \d+ )?(\w+)")
THREADS = re.compile(r"\.reqntid (\d+)$")
REGISTERS = re.compile(r"\.reg \.(pred|b16|b32|b64)\s+(%[a-z]+)<(\d+)>;")
SHARED = re.compile(r"\.extern \.shared \.align 16 \.b8 (\w+)\[\];")
LABEL = re.compile(r"(\$L\w+):$")
INSTRUCTION = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*);$")
SKIPPED = re.compile(r"\.(version|target|address_size|maxnreg|loc)\b|[(){}]$")
OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
ADDRESS = re.compile(r"\[\s*([%\w]+)\s*(?:\+\s*(-?\d+)\s*)?\]$")

BITS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64}


class BadText(Exception):
    """What the parser or the interpreter does not know."""


@dataclass(frozen=True)
class Address:
    """``[base + offset]``; the base is a register, a parameter or an array."""

    base: str
    offset: int


Operand = str | int | Address | tuple[str, ...]
"""A register or a name; a number; an address; or the registers of a vector in braces."""


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        name: with all its modifiers, as ``ld.global.v4.b32``.
        guard: the predicate register that it is executed under; empty if always.
        negated: executed where the guard is false.
        operands: in the order of the text.
        line: its number in the text, from 1.
    """

    name: str
    guard: str
    negated: bool
    operands: tuple[Operand, ...]
    line: int


@dataclass(frozen=True)
class Text:
    """A kernel.

    Attributes:
        parameters: name and bits of each, in order.
        threads: of a block.
        registers: name -> bits.
        shared: the name of the array in shared memory.
        instructions: in order.
        labels: name -> the number of the instruction that follows.
    """

    parameters: tuple[tuple[str, int], ...]
    threads: int
    registers: dict[str, int]
    shared: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]


def parse(ptx: str) -> Text:
    """Read the text of a kernel; BadText for a line that is not known."""
    parameters = []
    registers = {}
    instructions = []
    labels = {}
    threads = 0
    shared = ""
    for number, raw in enumerate(ptx.splitlines(), 1):
        line = raw.partition("//")[0].strip()
        if line.startswith(".file"):
            break  # debug information follows
        if not line or SKIPPED.match(line) or ENTRY.match(line):
            continue
        if found := PARAMETER.match(line):
            parameters.append((found[2], int(found[1])))
        elif found := THREADS.match(line):
            threads = int(found[1])
        elif found := REGISTERS.match(line):
            names = [f"{found[2]}{i}" for i in range(int(found[3]))]
            registers |= dict.fromkeys(names, BITS[found[1]])
        elif found := SHARED.match(line):
            shared = found[1]
        elif found := LABEL.match(line):
            labels[found[1]] = len(instructions)
        elif found := INSTRUCTION.match(line):
            sign, guard, name, rest = found.groups()
            name = name.replace(".shared::cta", ".shared")  # PTX ISA 5.1.7: the same
            operands = tuple(_operand(text) for text in OPERAND.findall(rest))
            instructions.append(Instruction(name, guard or "", bool(sign), operands, number))
        else:
            raise BadText(f"line {number}: {raw.strip()}")
    return Text(tuple(parameters), threads, registers, shared, tuple(instructions), labels)


def _operand(text: str) -> Operand:
    if text.startswith("{"):
        return tuple(text.strip("{} ").replace(",", " ").split())
    if text.startswith("["):
        found = ADDRESS.match(text)
        if found is None:
            raise BadText(f"address {text}")
        return Address(found[1], int(found[2] or 0))
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        return int(text, 0)
    return text
