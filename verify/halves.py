"""Properties of half an AllReduce: whether it is a reduce-scatter, or an all-gather, by itself.

Many AllReduce schedules first sum each chunk up at one rank, and then spread the sums. Each half,
run alone, is one of the two collectives that FSDP consists of. Here chunk c of k belongs to rank
c n // k, and n divides k: rank r's part of the buffer is the r-th, as torch.distributed has it.

    reduce_scatter  begins as AllReduce does, with e_r at every chunk of rank r, and must end with
                    the all-ones vector at each chunk's owner; what is elsewhere is of no account
    all_gather      only the owner's content of a chunk counts. What others hold there at first is
                    arbitrary, so it has a count of its own, e_r: it may not be in any result. It
                    must end with e_owner everywhere.

All other properties are those of a schedule (:mod:`latecomer.verify.core.check`); that all ranks
end with the same bits is asked of the all-gather alone, since after a reduce-scatter each sum is in
one place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from latecomer.verify.core.check import PROPERTIES
from latecomer.verify.core.interpreter import Values, run
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.semantics import BLOCK_BYTES, Counts
from latecomer.verify.core.structure import well_formed
from latecomer.verify.core.verdict import (
    PROVED,
    Counterexample,
    Result,
    Verdict,
    refuted,
    unknown,
)

Half = Literal["reduce_scatter", "all_gather"]

WHOLE_ONLY = {"reduce_scatter": ("exactly_once", "same_bits"), "all_gather": ("exactly_once",)}
"""Properties that a half is not asked for, since they are about all ranks' sums."""


def check_half(schedule: Schedule, half: Half) -> dict[str, Result]:
    """Decide every property of ``schedule`` as such a half; by name, in the order of the checks.

    Examples:
        >>> from msgspec.structs import replace
        >>> from latecomer import synth
        >>> from latecomer.verify.halves import check_half
        >>> whole = synth.circulant(5)
        >>> first = replace(whole, phases=whole.phases[:1])
        >>> {result.verdict.value for result in check_half(first, "reduce_scatter").values()}
        {'proved'}
        >>> check_half(first, "all_gather")["gathered"].verdict.value
        'refuted'
    """
    decide_contents = _scattered if half == "reduce_scatter" else _gathered
    name_of_contents = "scattered" if half == "reduce_scatter" else "gathered"
    names = [name for name in PROPERTIES if name not in WHOLE_ONLY[half]]

    results = {"well_formed": well_formed(schedule)}
    if results["well_formed"].verdict is not Verdict.PROVED:
        # the other checks take indices for granted
        meaningless = unknown("the schedule is not well formed")
        return results | dict.fromkeys([name_of_contents, *names], meaningless)

    results[name_of_contents] = decide_contents(schedule)
    for name in names:
        results[name] = PROPERTIES[name](schedule)
    return results


def _scattered(schedule: Schedule) -> Result:
    """Each chunk's owner ends with every rank's contribution, once."""
    n = schedule.ranks
    right = np.packbits([[1] * n, [0] * n], axis=1)  # all are there, none more than once

    def wrong(counts: Values, chunk: int, owner: int) -> int | None:
        return owner if (counts[owner] != right).any() else None

    return _contents(schedule, "scattered", "every rank's contribution once", wrong)


def _gathered(schedule: Schedule) -> Result:
    """All ranks end with what each chunk's owner held at first, and nothing else."""

    def wrong(counts: Values, chunk: int, owner: int) -> int | None:
        right = np.zeros_like(counts[0])
        right[0, owner // 8] = 128 >> owner % 8
        wrong_ranks = np.flatnonzero((counts != right).any((1, 2)))
        return int(wrong_ranks[0]) if len(wrong_ranks) else None

    return _contents(schedule, "gathered", "what the chunk's owner has, once", wrong)


def _contents(
    schedule: Schedule, name: str, expected: str, wrong: Callable[[Values, int, int], int | None]
) -> Result:
    """What is held at the end, chunk by chunk; ``wrong``: which rank holds something else."""
    n = schedule.ranks
    k = schedule.chunks
    if k % n:
        return refuted(
            Counterexample(
                property=name,
                expected=f"a number of chunks that {n} ranks have equal shares of",
                found=f"{k}",
            )
        )
    width = max(1, BLOCK_BYTES // (n * 2 * -(-n // 8)))
    for low in range(0, k, width):
        high = min(k, low + width)
        counts = run(schedule, Counts(), low, high)
        for chunk in range(low, high):
            owner = chunk * n // k
            rank = wrong(counts[:, chunk - low], chunk, owner)
            if rank is not None:
                return refuted(_counterexample(name, rank, chunk, expected, counts, low, n))
    return PROVED


def _counterexample(
    name: str, rank: int, chunk: int, expected: str, counts: Values, low: int, n: int
) -> Counterexample:
    """What ``rank`` ends with at ``chunk``, in words."""
    times = np.unpackbits(counts[rank, chunk - low], axis=1, count=n).sum(0)
    held = [f"rank {r}'s{' twice or more' if times[r] > 1 else ''}" for r in np.flatnonzero(times)]
    return Counterexample(
        property=name,
        rank=rank,
        chunk=chunk,
        expected=expected,
        found=", ".join(held) or "nothing",
    )
