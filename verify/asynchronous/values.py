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

import numpy as np

from verify.asynchronous.model import ALL_RANKS, NONE, Demand, Program
from verify.asynchronous.order import Flat, Run
from verify.core.verdict import PROVED, Counterexample, Result, refuted

BITS = 32
"""For how often a rank's chunk is contained."""

UNDEFINED = 0
"""The value of a chunk that holds nothing, and of every sum with it."""

TOO_MANY = 1
"""The value of a sum of 2**32 terms or more: something is in it twice, and stays."""

Parts = tuple[tuple[int, int], ...]
"""(chunk number, packed counts) by chunk number."""


class Values:
    """All values that come up, numbered from 2."""

    def __init__(self) -> None:
        self.parts: list[Parts] = [(), ()]
        self.terms = [0, 0]
        self._numbers: dict[Parts, int] = {}
        self._sums: dict[tuple[int, int], int] = {}

    def number(self, parts: Parts, terms: int) -> int:
        """The number of a value of so many terms."""
        known = self._numbers.get(parts)
        if known is None:
            known = self._numbers[parts] = len(self.parts)
            self.parts.append(parts)
            self.terms.append(terms)
        return known

    def input(self, rank: int, chunk: int) -> int:
        """The value of one rank's input chunk."""
        return self.number(((chunk, 1 << BITS * rank),), 1)

    def of_all(self, ranks: int, chunk: int) -> int:
        """The value of every rank's input chunk, once."""
        once = ((1 << BITS * ranks) - 1) // ((1 << BITS) - 1)
        return self.number(((chunk, once),), ranks)

    def add(self, one: int, other: int) -> int:
        """The value of a sum."""
        key = (one, other) if one < other else (other, one)
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = self._add(*key)
        return known

    def _add(self, one: int, other: int) -> int:
        if one <= TOO_MANY:  # of an undefined and a too large one: undefined
            return one
        terms = self.terms[one] + self.terms[other]
        if terms >> BITS:
            return TOO_MANY
        counts = dict(self.parts[one])
        for chunk, packed in self.parts[other]:
            counts[chunk] = counts.get(chunk, 0) + packed
        return self.number(tuple(sorted(counts.items())), terms)

    def counts(self, value: int) -> dict[tuple[int, int], int]:
        """How often (rank, chunk) is contained, for those that are."""
        mask = (1 << BITS) - 1
        return {
            (rank, chunk): packed >> BITS * rank & mask
            for chunk, packed in self.parts[value]
            for rank in range(-(-packed.bit_length() // BITS))
            if packed >> BITS * rank & mask
        }


def right_values(run: Run) -> Result:
    """Whether some demand of the program is met; the run ends, and there is no race."""
    values, held, writer = _execute(run)
    flat, program = run.events.flat, run.events.flat.program
    best: tuple[int, Demand, list[int]] | None = None
    for demand in program.demands:
        wanted = _wanted(values, program, demand)
        wrong = [
            row
            for row, address in enumerate(demand.address.tolist())
            if held[address] != wanted[row]
        ]
        if not wrong:
            return PROVED
        if best is None or len(wrong) < best[0]:
            best = len(wrong), demand, wrong
    assert best is not None
    return refuted(_wrong(flat, values, best[1], best[2], held, writer))


def _execute(run: Run) -> tuple[Values, list[int], dict[int, int]]:
    """What every chunk holds at the end, and which step wrote it last."""
    events, flat = run.events, run.events.flat
    program = flat.program
    values = Values()
    held = [
        UNDEFINED if rank < 0 else values.input(rank, chunk)
        for rank, chunk in zip(
            program.input_rank.tolist(), program.input_chunk.tolist(), strict=True
        )
    ]
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
        terms = [held[start + low : start + high] for start in step.sources]
        if step.receives != NONE:
            terms.append(fifos[step.receives].popleft())
        total = terms[0] if terms else []
        for term in terms[1:]:
            total = [add(a, b) for a, b in zip(total, term, strict=True)]
        for start in step.targets:
            held[start + low : start + high] = total
            for address in range(start + low, start + high):
                writer[address] = index
        if step.sends != NONE:
            fifos[step.sends].append(total)
    return values, held, writer


def _wanted(values: Values, program: Program, demand: Demand) -> list[int]:
    return [
        values.of_all(program.ranks, chunk) if rank == ALL_RANKS else values.input(rank, chunk)
        for rank, chunk in zip(demand.rank.tolist(), demand.chunk.tolist(), strict=True)
    ]


def _wrong(
    flat: Flat,
    values: Values,
    demand: Demand,
    rows: list[int],
    held: list[int],
    writer: dict[int, int],
) -> Counterexample:
    """The output chunk that differs least from what it is to be."""
    program = flat.program

    def differences(row: int) -> list[str]:
        rank = int(demand.rank[row])
        chunk = int(demand.chunk[row])
        ranks = range(program.ranks) if rank == ALL_RANKS else [rank]
        expected = {(r, chunk): 1 for r in ranks}
        value = held[int(demand.address[row])]
        if value == UNDEFINED:
            return ["nothing defined: no input has got there, or what was never written"]
        if value == TOO_MANY:
            return [f"2**{BITS} contributions or more"]
        got = values.counts(value)
        return [
            f"rank {r}'s input chunk {c} {_times(got.get((r, c), 0))}"
            for r, c in sorted(got.keys() | expected.keys())
            if got.get((r, c), 0) != expected.get((r, c), 0)
        ]

    row = min(rows, key=lambda row: len(differences(row)))
    address = int(demand.address[row])
    rank = int(demand.rank[row])
    of = "every rank's" if rank == ALL_RANKS else f"rank {rank}'s"
    shown = differences(row)
    found = ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
    last = writer.get(address)
    block = None if last is None else flat.blocks[int(flat.block[last])]
    owner = next(b.rank for b in program.buffers if b.start <= address < b.start + b.chunks)
    return Counterexample(
        property="right_values",
        rank=owner,
        chunk=int(demand.chunk[row]),
        position=None if last is None else flat.steps[last].place,
        action=None if last is None or block is None else f"{block.name}: {flat.steps[last].text}",
        expected=f"{program.name_of(address)} to be {of} input chunk {demand.chunk[row]}, once"
        + (f" ({demand.name})" if demand.name else ""),
        found=f"{found} ({len(rows)} of {len(np.asarray(demand.address))} output chunks are wrong)",
        actions=() if last is None else (f"written last by {flat.describe(last)}",),
    )


def _times(count: int) -> str:
    return {0: "missing", 1: "where it does not belong", 2: "twice"}.get(count, f"{count} times")
