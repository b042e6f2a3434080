"""A kernel's text, decoded: for each instruction a function that a group of threads calls.

Registers are numbered; constants, parameters and what is special about a block (PTX ISA, section
10) stand behind them in the same list, so that all operands are numbers of the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.runtime.device.ptx.arithmetic import Value, choose, mask, operation
from tests.runtime.device.ptx.liveness import live_registers
from tests.runtime.device.ptx.parser import Address, BadText, Instruction, Text, parse

SPECIAL = {"%tid.x": 32, "%ctaid.x": 32, "%nctaid.x": 32}
CLOCK = "%globaltimer"

Group = Any
"""Threads that run together (:mod:`group`, which is above this module)."""

Step = Callable[[Group], None]


@dataclass(frozen=True)
class Branch:
    """``bra``: to a place, for threads of which the guard holds (none: for all)."""

    to: int
    guard: int
    negated: bool


@dataclass(frozen=True)
class Barrier:
    """``bar.sync 0``."""


@dataclass(frozen=True)
class Return:
    """``ret``."""


@dataclass(frozen=True)
class Strong:
    """A strong access of one word: ld.relaxed, ld.acquire, or atom.exch with a ``value``."""

    guard: int
    negated: bool
    base: int
    offset: int
    target: int
    scope: str
    orders: bool  # an acquire, or a release
    value: int | None


Turn = Branch | Barrier | Return | Strong

STRONG = {
    f"{access}.global.{scope}.{order}{kind}": (scope, order != "relaxed")
    for scope in ("cta", "gpu", "sys")
    for access, orders, kind in (
        ("ld", ("relaxed", "acquire"), ".b32"),
        ("atom", ("relaxed", "release"), ".exch.b32"),
    )
    for order in orders
}
"""By the name of a strong access: its scope, and whether it acquires or releases."""

NOTHING = -1


class Program:
    """What a block runs.

    Attributes:
        text: as it was parsed.
        initial: the list of registers at the start, but for parameters and what is special.
        bits: of each place of that list.
        places: name of a parameter, a special register or a register -> its number.
        copies: by instruction, threads whose loads have been copies of others' (``memory``).
    """

    def __init__(self, ptx: str) -> None:
        self.text: Text = parse(ptx)
        self.initial: list[Value | None] = [None] * len(self.text.registers)
        self.places = {name: i for i, name in enumerate(self.text.registers)}
        self.bits = list(self.text.registers.values())
        for name, bits in (*self.text.parameters, *SPECIAL.items()):
            self.places[name] = self._append(None, bits)
        self._constants: dict[int, int] = {}
        self.copies: dict[int, np.ndarray] = {}
        self._steps: list[Step | Turn] = [
            self._decoded(number, instruction)
            for number, instruction in enumerate(self.text.instructions)
        ]
        self._live: list[list[int]] = []
        self._straight: dict[int, tuple[tuple[Step, ...], int, Turn]] = {}

    def straight(self, start: int) -> tuple[tuple[Step, ...], int, Turn]:
        """What is done from an instruction on up to the next turn; its number, and the turn."""
        if start not in self._straight:
            end = start
            while not isinstance(self._steps[end], Turn):
                end += 1
            steps = tuple(self._steps[start:end])
            self._straight[start] = steps, end, self._steps[end]
        return self._straight[start]

    def live(self, at: int) -> list[int]:
        """The places of registers that may be read from an instruction on."""
        if not self._live:
            self._live = [
                sorted(self.places[name] for name in names if name in self.text.registers)
                for names in live_registers(self.text)
            ]
        return self._live[at]

    def _append(self, value: Value | None, bits: int) -> int:
        self.initial.append(value)
        self.bits.append(bits)
        return len(self.initial) - 1

    def _constant(self, value: int) -> int:
        if value not in self._constants:
            self._constants[value] = self._append(value, 64)
        return self._constants[value]

    def _decoded(self, number: int, instruction: Instruction) -> Step | Turn:
        name = instruction.name
        if name in ("bra", "bra.uni"):
            label = instruction.operands[0]
            if label not in self.text.labels:
                raise BadText(f"line {instruction.line}: label {label}")
            return Branch(self.text.labels[label], *self._guard(instruction))
        if name == "bar.sync":
            if instruction.guard or instruction.operands != (0,):
                raise BadText(f"line {instruction.line}: a barrier under a guard, or not number 0")
            return Barrier()
        if name == "ret":
            if instruction.guard:
                raise BadText(f"line {instruction.line}: a return under a guard")
            return Return()
        if name in STRONG:
            return self._strong(instruction)
        if name.startswith("ld.param."):
            return self._parameter(instruction)
        space = name.split(".")[:2]
        if space in (["ld", "global"], ["st", "global"], ["ld", "shared"], ["st", "shared"]):
            return self._access(number, instruction)
        return self._on_registers(instruction)

    def _guard(self, instruction: Instruction) -> tuple[int, bool]:
        if not instruction.guard:
            return NOTHING, False
        return self._register(instruction.guard, instruction), instruction.negated

    def _register(self, name: object, instruction: Instruction) -> int:
        if name not in self.places:
            raise BadText(f"line {instruction.line}: operand {name}")
        return self.places[name]

    def _operand(self, operand: object, bits: int, instruction: Instruction) -> int:
        if isinstance(operand, int):
            return self._constant(operand & mask(bits))
        if operand == self.text.shared:
            return self._constant(0)  # the array begins with the shared memory
        return self._register(operand, instruction)

    def _strong(self, instruction: Instruction) -> Strong:
        scope, orders = STRONG[instruction.name]
        guard, negated = self._guard(instruction)
        target, address, *values = instruction.operands
        return Strong(
            guard=guard,
            negated=negated,
            base=self._register(address.base, instruction),
            offset=address.offset,
            target=self._register(target, instruction),
            scope=scope,
            orders=orders,
            value=self._register(values[0], instruction) if values else None,
        )

    def _parameter(self, instruction: Instruction) -> Step:
        bits = int(instruction.name.removeprefix("ld.param.b"))
        target, address = instruction.operands
        source = self._register(address.base, instruction)
        if self.bits[source] != bits or address.offset:
            raise BadText(f"line {instruction.line}: part of a parameter")
        return self._register_step(instruction, target, lambda a: a, (source,))

    def _on_registers(self, instruction: Instruction) -> Step:
        name = instruction.name
        if name == "mov.u64" and instruction.operands[1] == CLOCK:
            place = self._register(instruction.operands[0], instruction)
            return lambda group: group.registers.__setitem__(place, group.block.clock())
        if name == "mov.b32" and isinstance(instruction.operands[0], tuple):
            return self._unpacking(instruction)
        function = operation(name)
        bits = _bits_of(name)
        target, *sources = instruction.operands
        places = tuple(self._operand(source, bits, instruction) for source in sources)
        return self._register_step(instruction, target, function, places)

    def _unpacking(self, instruction: Instruction) -> Step:
        """9.7.9.3: ``mov.b32 {low, high}, source``."""
        low, high = (self._register(name, instruction) for name in instruction.operands[0])
        source = self._register(instruction.operands[1], instruction)
        if instruction.guard:
            raise BadText(f"line {instruction.line}: a guard")

        def step(group: Group) -> None:
            value = group.registers[source]
            if isinstance(value, int):
                group.registers[low] = value & 0xFFFF
                group.registers[high] = value >> 16
            else:
                group.registers[low] = value.astype(np.uint16)
                group.registers[high] = (value >> 16).astype(np.uint16)

        return step

    def _register_step(
        self, instruction: Instruction, target: object, function: Callable, sources: tuple[int, ...]
    ) -> Step:
        place = self._register(target, instruction)
        step = _plain_step(function, place, sources)
        if not instruction.guard:
            return step
        guard, negated = self._guard(instruction)
        bits = self.bits[place]

        def guarded(group: Group) -> None:
            before = group.registers[place]
            step(group)
            condition = group.registers[guard]
            where, otherwise = group.registers[place], before
            if negated:
                where, otherwise = otherwise, where
            group.registers[place] = choose(condition, where, otherwise, bits)

        return guarded

    def _access(self, number: int, instruction: Instruction) -> Step:
        """ld and st, 9.7.9.8 and 9.7.9.11: of one element or of a vector."""
        access, space, *vector, kind = instruction.name.split(".")
        if kind not in ("b16", "b32", "b64") or vector not in ([], ["v2"], ["v4"]):
            raise BadText(f"line {instruction.line}: {instruction.name}")
        width = int(kind[1:]) // 8
        words = int(vector[0][1:]) if vector else 1
        guard, negated = self._guard(instruction)
        is_load = access == "ld"
        data, address = instruction.operands if is_load else instruction.operands[::-1]
        assert isinstance(address, Address)
        names = data if isinstance(data, tuple) else (data,)
        if len(names) != words:
            raise BadText(f"line {instruction.line}: {len(names)} elements")
        places = [self._register(name, instruction) for name in names]
        base = self._operand(address.base, 64, instruction)
        offset = address.offset

        def step(group: Group) -> None:
            active = group.active(guard, negated)
            if active is not None:
                run = getattr(group, f"{access}_{space}")
                run(number, active, group.registers[base], offset, width, places)

        return step


def _bits_of(name: str) -> int:
    """Of the constants that an instruction has as operands."""
    kind = name.rpartition(".")[2]
    if kind == "pred":
        return 1
    return 32 if kind.endswith("x2") else int(kind.lstrip("bfsu"))


def _plain_step(function: Callable, place: int, sources: tuple[int, ...]) -> Step:
    """One call for one instruction."""
    if len(sources) == 1:
        (a,) = sources

        def step(group: Group) -> None:
            registers = group.registers
            registers[place] = function(registers[a])

    elif len(sources) == 2:
        a, b = sources

        def step(group: Group) -> None:
            registers = group.registers
            registers[place] = function(registers[a], registers[b])

    else:
        a, b, c = sources

        def step(group: Group) -> None:
            registers = group.registers
            registers[place] = function(registers[a], registers[b], registers[c])

    return step
