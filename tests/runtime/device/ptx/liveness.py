"""Which registers an instruction, or one after it, may still read: no others make a difference."""

from __future__ import annotations

from tests.runtime.device.ptx.parser import Address, Instruction, Operand, Text

ONLY_READ = ("st", "bra", "bar", "ret")
"""Instructions without a register that they set."""


def live_registers(text: Text) -> list[frozenset[str]]:
    """By instruction, the names of registers that are read from there on before they are set."""
    count = len(text.instructions)
    reads = [_reads(instruction) for instruction in text.instructions]
    sets = [_sets(instruction) for instruction in text.instructions]
    follows = [_follows(text, number) for number in range(count)]
    live: list[frozenset[str]] = [frozenset()] * count
    changed = True
    while changed:
        changed = False
        for number in reversed(range(count)):
            after = frozenset().union(*(live[i] for i in follows[number]))
            now = reads[number] | (after - sets[number])
            if now != live[number]:
                live[number] = now
                changed = True
    return live


def _follows(text: Text, number: int) -> list[int]:
    instruction = text.instructions[number]
    following = []
    if instruction.name.startswith("bra"):
        following.append(text.labels[str(instruction.operands[0])])
    always_elsewhere = instruction.name == "ret" or (following and not instruction.guard)
    if not always_elsewhere and number + 1 < len(text.instructions):
        following.append(number + 1)
    return following


def _names(operand: Operand) -> frozenset[str]:
    if isinstance(operand, Address):
        return _names(operand.base)
    if isinstance(operand, tuple):
        return frozenset(operand)
    return frozenset({operand} if isinstance(operand, str) and operand[0] == "%" else ())


def _reads(instruction: Instruction) -> frozenset[str]:
    names = frozenset({instruction.guard} if instruction.guard else ())
    operands = instruction.operands
    if not instruction.name.startswith(ONLY_READ):
        # where its guard does not hold, an instruction leaves what is there
        operands = operands if instruction.guard else operands[1:]
    return names.union(*(_names(operand) for operand in operands))


def _sets(instruction: Instruction) -> frozenset[str]:
    if instruction.guard or instruction.name.startswith(ONLY_READ):
        return frozenset()
    return _names(instruction.operands[0])
