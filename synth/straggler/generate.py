"""Schedules with one late rank: both phases put together, and how good the result is.

What is made here is proved by the verifier before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latecomer.synth.answer import Answer, Basis, basis_of, checked
from latecomer.synth.solvers.choice import SolverName, Solving
from latecomer.synth.standard import require_chunks, require_rank, require_ranks
from latecomer.synth.straggler.completion import FORMS
from latecomer.synth.straggler.instance import (
    OWNERS,
    PORT_MODELS,
    Instance,
    Owners,
    PortModel,
    real_names,
)
from latecomer.synth.straggler.search import CONSTRUCTIVE, Attempt, Progress, Result, Search
from latecomer.verify.arrays import phase, with_table
from latecomer.verify.core.schedule import Scalar, Schedule
from latecomer.verify.core.verdict import Report
from latecomer.verify.errors import ArgumentError, SearchTimeout
from latecomer.verify.renaming import renamed

# The same as MAX_RANKS of latecomer.verify.core.format: a file with more would not be read.
MOST_RANKS = 2**14
"""The most that a file may have."""

LARGEST = 2**22
"""Ranks times chunks: about as many transfers in each phase, and a file has to be read again."""


@dataclass(frozen=True, kw_only=True)
class StragglerAnswer(Answer[Schedule, Report]):
    """The schedule with one late rank, and the search that found it."""

    solver: SolverName
    attempts: tuple[Attempt, ...]
    winner: Attempt

    @property
    def seconds(self) -> float:
        """Search time over all attempts."""
        return sum(attempt.seconds for attempt in self.attempts)

    @property
    def method(self) -> str:
        """How the schedule was found."""
        return {
            "closed form": "closed form: broadcast on a hypercube of pairs",
            "greedy": "greedy, minimum-cost flows",
            "pairing": "pairing, maximum-weight matchings",
        }.get(self.winner.method, f"{self.solver}, {self.winner.method} form")


def failures(report: Report, attempts: Sequence[Attempt]) -> str:
    """For each number of rounds below those of the schedule, how the search for it ended."""
    failures = []
    constructive = CONSTRUCTIVE.values()
    tried = sum(attempt.method in constructive for attempt in attempts)
    for rounds in range(report.lower_bound, report.completion_rounds):
        tries = [a for a in attempts if a.rounds == rounds and a.method not in constructive]
        if any((a.method, a.result) == ("general", "exhausted") for a in tries):
            why = "no schedule of this normal form, search exhausted"
        elif tries:
            why = f"search gave up after {sum(a.seconds for a in tries):.1f} s"
        else:
            why = "not searched"
        found_none = f", none in {tried} constructive tries" if tried else ""
        failures.append(f"{rounds} rounds: {why}{found_none}")
    return "; ".join(failures)


def generate(
    n: int,
    *,
    late: int | None = None,
    m: int = 1,
    chunks: int | None = None,
    ports: PortModel = "duplex",
    owners: Owners = "auto",
    seed: int = 0,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    solver: SolverName = "z3",
) -> Schedule:
    """A proved AllReduce schedule of ``n`` ranks of which ``late`` (default: the last) is late.

    Arguments and errors are those of ``latecomer.synth.straggler.generate.search``, which tells
    more.

    Examples:
        >>> from latecomer import synth, verify
        >>> schedule = synth.generate(8, late=3)
        >>> for phase in schedule.phases:
        ...     print(f"{phase.name}: {len(phase.rounds)} rounds without {phase.absent}")
        reduce_scatter: 6 rounds without (3,)
        completion: 9 rounds without ()
        >>> verify.write(schedule, "late3.json")
    """
    return search(
        n,
        late=late,
        m=m,
        chunks=chunks,
        ports=ports,
        owners=owners,
        seed=seed,
        effort=effort,
        time_limit_s=time_limit_s,
        solver=solver,
    ).schedule


def search(
    n: int,
    *,
    late: int | None = None,
    m: int = 1,
    chunks: int | None = None,
    ports: PortModel = "duplex",
    owners: Owners = "auto",
    seed: int = 0,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    solver: SolverName = "z3",
    progress: Progress = lambda text: None,
) -> StragglerAnswer:
    """Search for a schedule with as few completion rounds as possible, and prove it.

    Args:
        n: ranks, 2 or more.
        late: the late rank, 0 .. n-1; the last one by default.
        m: chunks per helper: the buffer has (n - 1) * m chunks,
        chunks: or this many, whatever ``m`` is.
        ports: ``duplex`` (one send and one receive per rank and round) or ``matching`` (disjoint
            pairs).
        owners: ``balanced`` (chunk c belongs to helper c mod (n - 1), as after a library's
            ReduceScatter), ``free`` (chosen by the method; the waiting phase reduces to them), or
            ``auto``: balanced where a short search finds a schedule at the bound, else free.
        seed: of all that is random. Equal arguments give equal schedules, on any machine.
        effort: search so many times as long, in work and not in seconds, before giving way.
        time_limit_s: for all tries together; with one, the result may depend on the machine.
        solver: ``z3`` or ``cp-sat``.
        progress: is told what is being tried.

    Raises:
        ArgumentError: an argument is out of its range.
        SearchTimeout: no schedule was found with so much work, or in time.

    Examples:
        >>> from latecomer.synth.straggler.generate import search
        >>> answer = search(8, chunks=4)  # a StragglerAnswer
        >>> answer.value, answer.bound, answer.optimal, answer.basis  # rounds after the arrival
        (6, 6, True, <Basis.THEOREM: 'theorem'>)
        >>> print(answer.claim)
        optimal (theorem: at the lower bound for so many chunks, which verify recomputes)
    """
    late = n - 1 if late is None else late
    _require(n, late, m, chunks, ports, owners)
    instance = Instance(n, (n - 1) * m if chunks is None else chunks, ports)

    tries = Search(instance, owners, Solving(solver, seed, effort, time_limit_s), progress)
    result = tries.run()
    if result is None:
        raise _nothing_found(instance, tries.attempts, has_time_limit=time_limit_s is not None)

    schedule = _assemble(instance, late, result, solver, seed)
    report = checked(schedule)
    basis, reason = basis_of(report)
    return StragglerAnswer(
        schedule=schedule,
        report=report,
        bound=report.lower_bound,
        basis=basis,
        reason=failures(report, tries.attempts) if basis is Basis.UNKNOWN else reason,
        solver=solver,
        attempts=tuple(tries.attempts),
        winner=result.attempt,
    )


def _nothing_found(
    instance: Instance, attempts: Sequence[Attempt], *, has_time_limit: bool
) -> SearchTimeout:
    """The error that says what was tried, and which option to change."""
    rounds_tried = sorted({attempt.rounds for attempt in attempts})
    tried = ", ".join(str(rounds) for rounds in rounds_tried)
    option = "--time-limit" if has_time_limit else "--effort"
    return SearchTimeout(
        f"no schedule found for n = {instance.ranks}, {instance.chunks} chunks, {instance.ports} "
        f"ports (tried {tried} completion rounds; the lower bound is {instance.bound}). "
        f"Whether one exists is unknown. Raise {option}, or lower --n or --chunks"
    )


def _assemble(
    instance: Instance, late: int, result: Result, solver: SolverName, seed: int
) -> Schedule:
    """Both phases as one schedule, with the ranks' real names: helpers are the others, in order."""
    n = instance.ranks
    completion = result.rounds
    waiting = result.waiting
    winner = result.attempt
    phases = [phase("completion", (), completion)]
    if waiting:
        phases.insert(0, phase("reduce_scatter", (instance.helpers,), waiting))
    gap = len(completion) - instance.bound
    method = solver if winner.method in FORMS else winner.method
    meta: dict[str, Scalar] = {
        "method": method,
        "owners": winner.owners,
        "seed": seed,
        "lower_bound": instance.bound,
    }
    meta |= {"gap": gap} if gap else {"optimal": True}
    schedule = Schedule(
        ranks=n,
        chunks=instance.chunks,
        late=(instance.helpers,),
        ports=instance.ports,
        phases=tuple(phases),
        meta=meta,
    )
    if late == instance.helpers:
        return with_table(schedule)
    return renamed(schedule, dict(enumerate(real_names(np.arange(n), n, late).tolist())))


def _require(
    n: int,
    late: int,
    m: int,
    chunks: int | None,
    ports: str,
    owners: str,
) -> None:
    require_ranks(n, MOST_RANKS)
    require_rank("--late", late, n)
    require_chunks(chunks, m)
    if chunks is None and n * (n - 1) * m > LARGEST:
        requirement = f"n * (n - 1) * m must be at most {LARGEST}"
        raise ArgumentError("--n, --m", (n, m), requirement, "Lower --m or --n, or use --chunks")
    if chunks is not None and n * chunks > LARGEST:
        requirement = f"n * chunks must be at most {LARGEST}"
        raise ArgumentError("--n, --chunks", (n, chunks), requirement, "Lower one of them")
    if owners not in OWNERS:
        raise ArgumentError("--owners", owners, f"must be one of {', '.join(OWNERS)}")
    if ports not in PORT_MODELS:
        raise ArgumentError("--ports", ports, f"must be one of {', '.join(PORT_MODELS)}")
    if (owners, ports) == ("free", "matching") and n & (n - 1):
        raise ArgumentError(
            "--owners",
            owners,
            f"needs n to be a power of two with matching ports, not {n}",
            "Use --owners balanced",
        )
