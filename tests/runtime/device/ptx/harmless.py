"""Mutants that do what the kernel does, and why; and the judgement on any mutant.

A mutant that the battery does not catch must have a reason here, and be right in all interleavings
of small cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.runtime.device.ptx.allreduce import AllReduces, Case, Operation
from tests.runtime.device.ptx.battery import RING, THERE_AND_BACK, caught, instead
from tests.runtime.device.ptx.explore import explore
from tests.runtime.device.ptx.mutants import Mutant
from tests.runtime.device.ptx.parser import BadText
from tests.runtime.device.ptx.program import Program
from tests.runtime.device.ptx.regions import Wrong

MUTATED = ((90, "bf16", True), (80, "fp32", False))
"""The builds whose mutants are judged: between them they have nearly all instructions."""

REASONS = (
    (
        r"a lost barrier: bar.sync 0; before add.s64 .*",
        "after a receive: each thread goes on with the elements that it has stored itself, and a "
        "barrier comes before the next release, and before the next flag",
    ),
    (
        r"a lost barrier: bar.sync 0; before mov.pred .*",
        "after a wait: the barrier by which one thread tells the others what it has read is enough",
    ),
    (
        r"a lost branch: @%p bra .*",
        "it jumps over what is masked off for all threads then, or never done: there are rows, "
        "ranks, chunks",
    ),
    (
        r"a comparison that is off by one: setp\.(lt|ge)\.s(32|64) %p, %rd?, %rd?; .*",
        "one more turn of a loop, or a tail, of which all threads are masked off",
    ),
    (
        r"(a comparison that is off by one|[+-]1 to a constant): setp\.lt\.s32 %p, %r, 1; .*",
        "whether there are rows, ranks, or chunks: there are at least one, of ranks and rows two",
    ),
    (
        r"[+-]1 to a constant: setp\.eq\.b64 %p, %rd, 0; .*",
        "whether a loop is jumped over of which all threads are masked off",
    ),
    (
        r"\+1 to a constant: (max\.s64 %rd, %rd, 0|mov\.b64 %rd, 0); .*",
        "it is compared with a multiple of 16, or cut to one, before it matters",
    ),
    (
        r"\S+ to a constant: and\.b32 %r, %r, (2044|4088); .*",
        "of the first element of a thread: bits that it does not have, or compared with a multiple "
        "of 16",
    ),
    (
        r"\+1 to a constant: setp\.eq\.b32 %p, %r, 0; \(1\)",
        "thread 1 stamps instead of thread 0",
    ),
    (
        r"-1 to a constant: shr\.u32 %r, %r, 5; .*",
        "thread 0 is the only one of which both are 0, then, too",
    ),
    (
        r"[+-]1 to a constant: mov\.b(16|32) %rs?, (32704|32256|2143289344); .*",
        "another NaN",
    ),
)
"""Names of mutants that may be harmless, and why."""


def reason(mutant: Mutant) -> str:
    """Why a mutant may be harmless; empty if no reason is known."""
    return next((why for names, why in REASONS if re.fullmatch(names, mutant.name)), "")


def small_cases(dtype: str, average: bool) -> Iterator[Case]:
    """Two ranks, a block each: two operations, with a whole vector and a tail."""
    for schedule in (RING, THERE_AND_BACK):
        operations = (
            Operation(schedule, dtype, average, 35),
            Operation(schedule, dtype, average, 3),
        )
        yield Case(2, 1, 1 << 12, 1, operations)


def judge(mutant: Mutant, arch: int, dtype: str, average: bool) -> str:
    """ "caught ..." or "harmless ..."; empty for a mutant that got away."""
    try:
        program = Program(mutant.ptx)
    except BadText as error:
        return f"caught: {error}"
    if how := caught(program, arch, dtype, average):
        return f"caught: {how}"
    why = reason(mutant)
    if not why:
        return ""
    states = 0
    for case in small_cases(dtype, average):
        runs = AllReduces(case, instead(program, arch, dtype, average))
        try:
            states += explore(runs).states
        except Wrong as error:
            return f"caught: in all interleavings: {error}"
    return f"harmless, in all {states} states of small cases: {why}"
