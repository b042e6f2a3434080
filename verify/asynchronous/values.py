"""Right values: how often each input chunk is contained in each chunk at the end.

A program without races has one result, whatever the interleaving, so one order in which its events
can happen gives it. Where races are absent only because of the FIFOs' slots, that has to be an
order that the slots permit, and each size of messages has one of its own (races.py). A value is a
multiset of input chunks: per chunk number, how often it is there from each rank (32 bits a rank,
packed into one integer). Equal values have one number; sums are remembered. This is exact for every
commutative monoid, so for every sum of exact numbers.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from latecomer.verify.asynchronous.model import ALL_RANKS, NONE, BlockProgram, Demand
from latecomer.verify.asynchronous.order import FlatProgram, Run
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted

# A sum of 2**32 terms or more is TOO_MANY, so no count runs over into its neighbour.
BITS = 32
"""For how often a rank's chunk is contained."""

UNDEFINED = 0
"""The value of a chunk that holds nothing, and of every sum with it."""

TOO_MANY = 1
"""The value of a sum of 2**32 terms or more: something is in it twice, and stays."""

MOST_DIFFERENCES = 8
"""Of one chunk that are named in a counterexample."""

Parts = tuple[tuple[int, int], ...]
"""(chunk number, packed counts) by chunk number."""


class NumberedValues:
    """All values that come up, numbered from 2.

    Attributes:
        parts, terms: per value what it contains, and how many input chunks these are, each counted
            as often as it is there.
    """

    def __init__(self) -> None:
        self.parts: list[Parts] = [(), ()]
        self.terms = [0, 0]
        self._numbers: dict[Parts, int] = {}
        self._sums: dict[tuple[int, int], int] = {}

    def number(self, parts: Parts, terms: int) -> int:
        """The number of a value of so many terms."""
        number = self._numbers.get(parts)
        if number is None:
            number = len(self.parts)
            self._numbers[parts] = number
            self.parts.append(parts)
            self.terms.append(terms)
        return number

    def input(self, rank: int, chunk: int) -> int:
        """The value of one rank's input chunk."""
        return self.number(((chunk, 1 << BITS * rank),), 1)

    def of_all(self, ranks: int, chunk: int) -> int:
        """The value of every rank's input chunk, once."""
        once = ((1 << BITS * ranks) - 1) // ((1 << BITS) - 1)
        return self.number(((chunk, once),), ranks)

    def add(self, left: int, right: int) -> int:
        """The value of a sum."""
        key = (left, right) if left < right else (right, left)
        total = self._sums.get(key)
        if total is None:
            total = self._add(*key)
            self._sums[key] = total
        return total

    def _add(self, lower: int, higher: int) -> int:
        """The value of a sum of two, of which ``lower`` has the lower number, or the same."""
        if lower <= TOO_MANY:  # of an undefined and a too large one: undefined
            return lower
        terms = self.terms[lower] + self.terms[higher]
        if terms >> BITS:
            return TOO_MANY
        counts = dict(self.parts[lower])
        for chunk, packed in self.parts[higher]:
            counts[chunk] = counts.get(chunk, 0) + packed
        return self.number(tuple(sorted(counts.items())), terms)

    def counts(self, value: int) -> dict[tuple[int, int], int]:
        """How often (rank, chunk) is contained, for those that are."""
        mask = (1 << BITS) - 1
        counts = {}
        for chunk, packed in self.parts[value]:
            ranks = -(-packed.bit_length() // BITS)  # rounded up
            for rank in range(ranks):
                count = packed >> BITS * rank & mask
                if count:
                    counts[rank, chunk] = count
        return counts


class _Outcome(NamedTuple):
    """How a run ends.

    Attributes:
        values: what the numbers of values mean.
        held: per address, the value that it holds at the end.
        writer: per address that was written, the step that wrote it last.
    """

    values: NumberedValues
    held: list[int]
    writer: dict[int, int]


def right_values(run: Run) -> Result:
    """Whether some demand of the program is met; the run ends, and there is no race."""
    flat = run.events.flat
    outcome = _execute(run)
    nearest: tuple[Demand, list[int]] | None = None  # to being met, with its wrong rows
    for demand in flat.program.demands:
        wrong_rows = _wrong_rows(flat.program, demand, outcome)
        if not wrong_rows:
            return PROVED
        if nearest is None or len(wrong_rows) < len(nearest[1]):
            nearest = demand, wrong_rows
    assert nearest is not None
    return refuted(_counterexample(flat, outcome, *nearest))


def _execute(run: Run) -> _Outcome:
    """Run all events in the run's order, on numbers of values."""
    events = run.events
    flat = events.flat
    program = flat.program
    values = NumberedValues()
    held = []
    inputs = zip(program.input_rank.tolist(), program.input_chunk.tolist(), strict=True)
    for rank, chunk in inputs:
        held.append(UNDEFINED if rank < 0 else values.input(rank, chunk))

    fifos: list[deque[list[int]]] = [deque() for _ in program.fifos]
    writer: dict[int, int] = {}
    add = values.add
    step_of = events.step.tolist()
    for event in run.sequence:
        index = step_of[event]
        step = flat.steps[index]
        low, high = events.span(event)
        if low == high:
            continue

        operands = [held[start + low : start + high] for start in step.sources]
        if step.receives != NONE:
            operands.append(fifos[step.receives].popleft())
        total = operands[0] if operands else []
        for operand in operands[1:]:
            total = [add(a, b) for a, b in zip(total, operand, strict=True)]

        for start in step.targets:
            held[start + low : start + high] = total
            for address in range(start + low, start + high):
                writer[address] = index
        if step.sends != NONE:
            fifos[step.sends].append(total)
    return _Outcome(values, held, writer)


def _wrong_rows(program: BlockProgram, demand: Demand, outcome: _Outcome) -> list[int]:
    """The rows of a demand that are not met."""
    columns = (demand.address.tolist(), demand.rank.tolist(), demand.chunk.tolist())
    wrong_rows = []
    for row, (address, rank, chunk) in enumerate(zip(*columns, strict=True)):
        if rank == ALL_RANKS:
            wanted = outcome.values.of_all(program.ranks, chunk)
        else:
            wanted = outcome.values.input(rank, chunk)
        if outcome.held[address] != wanted:
            wrong_rows.append(row)
    return wrong_rows


def _counterexample(
    flat: FlatProgram, outcome: _Outcome, demand: Demand, wrong_rows: list[int]
) -> Counterexample:
    """The output chunk that differs least from what it is to be."""
    program = flat.program
    differences_of = {row: _differences(program, outcome, demand, row) for row in wrong_rows}
    row = min(wrong_rows, key=lambda row: len(differences_of[row]))
    address = int(demand.address[row])
    rank = int(demand.rank[row])

    of_rank = "every rank's" if rank == ALL_RANKS else f"rank {rank}'s"
    chunk_there = program.name_of(address)
    expected = f"{chunk_there} to be {of_rank} input chunk {demand.chunk[row]}, once"
    if demand.name:
        expected += f" ({demand.name})"

    differences = differences_of[row]
    found = ", ".join(differences[:MOST_DIFFERENCES])
    if len(differences) > MOST_DIFFERENCES:
        found += f" and {len(differences) - MOST_DIFFERENCES} more"
    found += f" ({len(wrong_rows)} of {len(demand.address)} output chunks are wrong)"

    position = None
    action = None
    actions: tuple[str, ...] = ()
    last_writer = outcome.writer.get(address)
    if last_writer is not None:
        block = flat.blocks[int(flat.block[last_writer])]
        step = flat.steps[last_writer]
        position = step.position
        action = f"{block.name}: {step.text}"
        actions = (f"written last by {flat.describe(last_writer)}",)
    owner = next(b.rank for b in program.buffers if b.start <= address < b.start + b.chunks)
    return Counterexample(
        property="right_values",
        rank=owner,
        chunk=int(demand.chunk[row]),
        position=position,
        action=action,
        expected=expected,
        found=found,
        actions=actions,
    )


def _differences(program: BlockProgram, outcome: _Outcome, demand: Demand, row: int) -> list[str]:
    """What is missing from a row of a demand, and what is there too much."""
    value = outcome.held[int(demand.address[row])]
    if value == UNDEFINED:
        return ["nothing defined: no input has got there, or what was never written"]
    if value == TOO_MANY:
        return [f"2**{BITS} contributions or more"]

    wanted_rank = int(demand.rank[row])
    wanted_chunk = int(demand.chunk[row])
    wanted_ranks = range(program.ranks) if wanted_rank == ALL_RANKS else [wanted_rank]
    wanted = {(rank, wanted_chunk): 1 for rank in wanted_ranks}
    counts = outcome.values.counts(value)
    differences = []
    for rank, chunk in sorted(counts.keys() | wanted.keys()):
        count = counts.get((rank, chunk), 0)
        if count != wanted.get((rank, chunk), 0):
            differences.append(f"rank {rank}'s input chunk {chunk} {_times(count)}")
    return differences


def _times(count: int) -> str:
    return {0: "missing", 1: "where it does not belong", 2: "twice"}.get(count, f"{count} times")
