"""Many instances in one go: for each (n, m) a search, proved, and how far from the bound it ends.

Deviation from one ``synth generate`` per row: nothing is written, a row that finds nothing does
not end the run, and rows are handed out as they are done, so that what was found is never lost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from latecomer.synth.answer import Basis
from latecomer.synth.solvers.choice import SolverName, Solving
from latecomer.synth.standard import require_chunks, require_ranks
from latecomer.synth.straggler import generate
from latecomer.synth.straggler.generate import StragglerAnswer
from latecomer.synth.straggler.instance import Instance, Owners, PortModel
from latecomer.synth.straggler.search import Progress
from latecomer.verify.errors import ArgumentError, SynthesisError

_PART = re.compile(r"([0-9]{1,9})(?:\.\.([0-9]{1,9}))?", re.ASCII)

HEADER = "    n  chunks  rounds  bound  gap  seconds  owners    method                      verdict"


@dataclass(frozen=True)
class Row:
    """One instance; ``rounds`` and ``gap`` are None where nothing was found, ``note`` says why.

    ``m`` is None where the number of chunks was given.

    ``seconds`` is wall-clock time of the whole row, the proof included. ``verdict`` is the
    verifier's, or ``not found``.
    """

    n: int
    m: int | None
    chunks: int
    ports: PortModel
    bound: int
    seconds: float
    verdict: str = "not found"
    rounds: int | None = None
    gap: int | None = None
    owners: str = "-"
    method: str = "-"
    note: str = ""
    basis: Basis = Basis.UNKNOWN

    def __str__(self) -> str:
        rounds, gap = ("-" if value is None else value for value in (self.rounds, self.gap))
        note = f": {self.note}" if self.note else ""
        return (
            f"{self.n:5}{self.chunks:8}{rounds:>8}{self.bound:>7}{gap:>5}"
            f"{self.seconds:>9.2f}  {self.owners:<8}  {self.method:<26}  {self.verdict}{note}"
        )


def parse_range(name: str, text: str, low: int, high: int) -> list[int]:
    """The numbers of ``2..64`` or ``2,3,8..12``, in order, each once.

    Raises:
        ArgumentError: not of that form, or a number outside ``low``..``high``.
    """
    numbers: dict[int, None] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ArgumentError(
                name, text, "must be numbers and ranges", "For example: 2..64 or 2,3,8..12"
            )
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if not low <= first <= last <= high:
            raise ArgumentError(name, text, f"{part.strip()} must be upwards and in {low}..{high}")
        numbers |= dict.fromkeys(range(first, last + 1))
    return list(numbers)


def survey(
    ns: Sequence[int],
    ms: Sequence[int],
    *,
    chunks: Sequence[int] = (),
    ports: PortModel = "duplex",
    owners: Owners = "auto",
    seed: int = 0,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    solver: SolverName = "z3",
    progress: Progress = lambda text: None,
) -> Iterator[Row]:
    """For each n and each m, or each number of chunks, a row, as soon as it is done.

    Args:
        ns, ms: ranks, and chunks per helper,
        chunks: or, where there are any, numbers of chunks of the whole buffer.
        effort, time_limit_s: for the search of each row.
        ports, owners, seed, solver, progress: as in ``latecomer.synth.straggler.generate.search``.

    Raises:
        ArgumentError: an argument that no row could use, before the first row.

    Examples:
        >>> from latecomer.synth.survey import survey
        >>> for row in survey([4, 8], [1, 2]):  # each a Row
        ...     print(row.n, row.chunks, row.rounds, row.bound, row.verdict)
        4 3 4 4 proved
        4 6 7 7 proved
        8 7 9 9 proved
        8 14 16 16 proved
    """
    for n in ns:
        require_ranks(n)
    for m in ms:
        require_chunks(None, m)
    for k in chunks:
        require_chunks(k)
    Solving(solver, seed, effort, time_limit_s)
    search = partial(
        generate.search,
        ports=ports,
        owners=owners,
        seed=seed,
        effort=effort,
        time_limit_s=time_limit_s,
        solver=solver,
        progress=progress,
    )
    asked: list[tuple[int, int | None, int]] = [(n, None, k) for n in ns for k in chunks]
    if not chunks:
        asked = [(n, m, (n - 1) * m) for n in ns for m in ms]
    return (_row(n, m, k, ports, search) for n, m, k in asked)


def _row(
    n: int, m: int | None, chunks: int, ports: PortModel, search: Callable[..., StragglerAnswer]
) -> Row:
    start = time.monotonic()
    row = Row(n, m, chunks, ports, Instance(n, chunks, ports).bound, 0.0)
    try:
        found = search(n, chunks=chunks)
    except (SynthesisError, ArgumentError) as error:  # too large to search, or nothing found
        return replace(row, seconds=time.monotonic() - start, note=str(error))
    report = found.report
    return replace(
        row,
        bound=report.lower_bound,
        seconds=time.monotonic() - start,
        verdict=report.verdict.value,
        rounds=report.completion_rounds,
        gap=report.completion_rounds - report.lower_bound,
        owners=found.winner.owners,
        method=found.method,
        note="" if found.gap == 0 else found.claim,
        basis=found.basis,
    )


def summary(rows: Sequence[Row], asked: int) -> str:
    """How many of ``asked`` rows are at the bound, which not and by how much, what is missing."""
    at_bound = sum(row.gap == 0 for row in rows)
    lines = [f"{at_bound} of {asked} at the lower bound"]
    gaps: dict[int, list[str]] = {}
    for row in rows:
        if row.gap:
            gaps.setdefault(row.gap, []).append(_instance(row))
    lines += [f"bound + {gap}: {', '.join(names)}" for gap, names in sorted(gaps.items())]
    missing = [_instance(row) for row in rows if row.rounds is None]
    if missing:
        lines.append(f"nothing found: {', '.join(missing)}")
    if len(rows) < asked:
        lines.append(f"not tried: {asked - len(rows)}")
    return "\n".join(lines)


def summary_json(rows: Sequence[Row], asked: int) -> dict[str, Any]:
    """The facts of :func:`summary`, as one object."""
    return {
        "asked": asked,
        "tried": len(rows),
        "at_bound": sum(row.gap == 0 for row in rows),
        "above": [_facts(row) | {"gap": row.gap} for row in rows if row.gap],
        "not_found": [_facts(row) for row in rows if row.rounds is None],
    }


def _facts(row: Row) -> dict[str, Any]:
    return {"n": row.n, "m": row.m, "chunks": row.chunks}


def _instance(row: Row) -> str:
    return f"n={row.n}" + (f" chunks={row.chunks}" if row.m != 1 else "")
