"""Which schedule is best on a machine of two levels with one late rank; all are proved.

Candidates:

    two-level           :mod:`latecomer.synth.twolevel.waiting`, then
                        :mod:`latecomer.synth.twolevel.completion`, for some numbers of chunks and
                        both extremes of ``burst``; needs mates at home
    flat                the schedule for n equal ranks, its rounds split to keep to the ports
    hierarchical ring   no use of the wait; likewise split where ports are few
    stages              :mod:`latecomer.synth.twolevel.staged`, only where asked for: GPUs run it,
                        and the hierarchical ring, by kernels inside the nodes

The winner has the least time with barriers (:func:`latecomer.synth.twolevel.cost.completion_s`);
the time without is told beside it and may prefer another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from latecomer.synth.answer import Answer, Basis, checked
from latecomer.synth.cost import best_chunks
from latecomer.synth.solvers.choice import SolverName
from latecomer.synth.standard import require_chunks, require_rank
from latecomer.synth.straggler.generate import StragglerAnswer
from latecomer.synth.straggler.generate import search as search_flat
from latecomer.synth.straggler.search import Progress
from latecomer.synth.twolevel import bound
from latecomer.synth.twolevel.completion import completion
from latecomer.synth.twolevel.cost import completion_s, network_rounds, overlapped_s, waiting_s
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.network import fitted, network_ports
from latecomer.synth.twolevel.ring import hierarchical_ring
from latecomer.synth.twolevel.staged import staged
from latecomer.synth.twolevel.waiting import waiting
from latecomer.verify.core.schedule import Phase, Schedule
from latecomer.verify.core.verdict import Report, Verdict
from latecomer.verify.errors import ArgumentError, SearchTimeout, SynthesisError

LARGEST = 2**14
"""Ranks times chunks of a two-level schedule: the rounds are built one by one, in seconds."""

MOST_SHARD_CHUNKS = 16
"""Of the schedule in stages: a message inside a node is a chunk, too."""
MOST_FLAT_M = 8
"""Chunks per helper of the flat schedule."""
# The bound is balanced without its ceilings, and no schedule is at it: the best number is near the
# one that balances it (docs/explanation/twolevel.md).
AROUND = (0.5, 1.0, 2.0)
"""Numbers of chunks that are tried, relative to the one that balances the lower bound."""


@dataclass(frozen=True)
class CostedSchedule:
    """A proved schedule that keeps to the network ports, and what it costs.

    ``bound_s`` is for so many chunks; None where it does not apply (a message of several chunks).
    """

    name: str
    schedule: Schedule
    report: Report
    seconds: float
    overlapped_s: float
    waiting_s: float
    network_rounds: int
    bound_s: float | None


@dataclass(frozen=True, kw_only=True)
class TwoLevelAnswer(Answer[Schedule, Report]):
    """The fastest of all candidates, the best first; ``left_out`` says what was not made, and why.

    Attributes:
        bound: seconds; no duplex schedule is faster with barriers, whatever its number of
            chunks (on paper).
        bytes_s: no schedule is faster at all (on paper).
    """

    machine: Machine
    late: int
    buffer_bytes: int
    candidates: tuple[CostedSchedule, ...]
    bytes_s: float
    left_out: tuple[str, ...]

    @property
    def winner(self) -> CostedSchedule:
        """The least time with barriers."""
        return self.candidates[0]

    @property
    def value(self) -> float:
        """Seconds with barriers."""
        return self.winner.seconds


def search(
    machine: Machine,
    buffer_bytes: int,
    *,
    late: int | None = None,
    m: int | None = None,
    chunks: int | None = None,
    stages: bool = False,
    seed: int = 0,
    effort: float = 1.0,
    time_limit_s: float | None = None,
    solver: SolverName = "z3",
    progress: Progress = lambda text: None,
) -> TwoLevelAnswer:
    """All candidates for a buffer of ``buffer_bytes``, proved, checked against the ports, costed.

    Args:
        machine: nodes, ranks, network ports, and the links of both levels.
        buffer_bytes: size of the whole buffer.
        late: the late rank; the last one by default.
        m: chunks per helper, (n - 1) * m in all, of every candidate that uses the wait (stages:
            (M - 1) * m of each shard),
        chunks: or this many. By default some numbers of chunks are tried (two-level), or the one
            that is best for the outer link (flat; stages, of each shard).
        stages: only candidates of which every round of a rank is inside its node or between nodes.
        seed, effort, time_limit_s, solver: of the search for the flat schedule.
        progress: is told what is being made.

    Raises:
        ArgumentError: an argument is out of its range.

    Examples:
        Two nodes of four ranks; 1 MiB:

        >>> from latecomer.synth.cost import Link
        >>> from latecomer.synth.twolevel.machine import Machine
        >>> from latecomer.synth.twolevel.search import search
        >>> inner = Link(alpha_s=3e-6, bandwidth=450e9)
        >>> outer = Link(alpha_s=10e-6, bandwidth=50e9)
        >>> machine = Machine(nodes=2, per_node=4, network_ports=4, inner=inner, outer=outer)
        >>> answer = search(machine, 2**20)  # a TwoLevelAnswer
        >>> answer.winner.name, answer.bound < answer.value  # seconds
        ('two-level, burst 4', True)
    """
    if late is None:
        late = machine.ranks - 1
    if chunks is None and m is not None:
        chunks = ((machine.nodes if stages else machine.ranks) - 1) * m
    _require(machine, late, buffer_bytes, m, chunks)

    find_flat = partial(
        search_flat,
        seed=seed,
        effort=effort,
        time_limit_s=time_limit_s,
        solver=solver,
        progress=progress,
    )
    left_out: list[str] = []
    if stages:
        schedules = _in_stages(machine, buffer_bytes, late, chunks, find_flat, progress)
    else:
        schedules = _schedules(machine, buffer_bytes, late, chunks, find_flat, progress, left_out)
    candidates = [_costed(name, schedule, machine, buffer_bytes) for name, schedule in schedules]
    candidates.sort(key=lambda candidate: candidate.seconds)
    return _answer(machine, late, buffer_bytes, candidates, left_out)


def _answer(
    machine: Machine,
    late: int,
    buffer_bytes: int,
    best_first: Sequence[CostedSchedule],
    left_out: Sequence[str],
) -> TwoLevelAnswer:
    """The best of the candidates beside the bounds on time."""
    winner = best_first[0]
    return TwoLevelAnswer(
        schedule=winner.schedule,
        report=winner.report,
        bound=bound.bound_any_chunks_s(machine, buffer_bytes),
        basis=Basis.UNKNOWN,
        reason="the best of the candidates; the bound on time is hardly ever reached",
        machine=machine,
        late=late,
        buffer_bytes=buffer_bytes,
        candidates=tuple(best_first),
        bytes_s=bound.bytes_s(machine, buffer_bytes),
        left_out=tuple(left_out),
    )


def two_level(machine: Machine, late: int, chunks: int, burst: int) -> Schedule:
    """One two-level schedule, not yet proved; the late rank has at least one mate."""
    phases = [Phase("completion", (), completion(machine, late, chunks, burst))]
    wait = waiting(machine, late, chunks)
    if wait:
        phases.insert(0, Phase("hierarchical_reduce", (late,), wait))
    return Schedule(
        ranks=machine.ranks,
        chunks=chunks,
        late=(late,),
        phases=tuple(phases),
        meta={
            "method": "two-level",
            "nodes": machine.nodes,
            "network_ports": machine.network_ports,
            "burst": burst,
        },
    )


def _schedules(
    machine: Machine,
    buffer_bytes: int,
    late: int,
    given_chunks: int | None,
    find_flat: Callable[..., StragglerAnswer],
    progress: Progress,
    left_out: list[str],
) -> Iterator[tuple[str, Schedule]]:
    """Names and schedules; what can't be made is told in ``left_out``."""
    n = machine.ranks
    ports = machine.network_ports

    if machine.per_node == 1:
        left_out.append("two-level: the late rank is alone in its node")
        numbers_of_chunks = []
    elif given_chunks is None:
        numbers_of_chunks = _tried_chunks(machine, buffer_bytes)
    else:
        numbers_of_chunks = [given_chunks]
    for chunks in numbers_of_chunks:
        if n * chunks > LARGEST:
            left_out.append(f"two-level, {chunks} chunks: too large")
            continue
        # One chunk suits slow exchanges, as many as there are ports save network rounds.
        for burst in sorted({1, ports}):
            progress(f"two-level, {chunks} chunks, burst {burst}")
            yield f"two-level, burst {burst}", two_level(machine, late, chunks, burst)

    progress("hierarchical ring")
    yield "hierarchical ring", fitted(hierarchical_ring(machine), machine.node_of, ports)

    # Equal ranks send over the network as often as inside a node, and a round is as long as its
    # slowest message.
    slowest_link = machine.outer if machine.nodes > 1 else machine.inner
    chunks = given_chunks or best_chunks(n, buffer_bytes, slowest_link, MOST_FLAT_M * (n - 1))
    try:
        flat = find_flat(n, late=late, chunks=chunks).schedule
        yield "flat", fitted(flat, machine.node_of, ports)
    except (ArgumentError, SearchTimeout) as error:
        left_out.append(f"flat: {error}")


def _in_stages(
    machine: Machine,
    buffer_bytes: int,
    late: int,
    given_chunks: int | None,
    find_flat: Callable[..., StragglerAnswer],
    progress: Progress,
) -> Iterator[tuple[str, Schedule]]:
    """Names and schedules of those whose rounds are inside the nodes or between them."""
    if machine.nodes == 1 or machine.per_node == 1:
        shown = f"{machine.nodes} nodes of {machine.per_node} ranks"
        requirement = "is for two nodes or more, of two ranks or more"
        raise ArgumentError("--stages", shown, requirement, "Leave it out")
    ports = machine.network_ports
    yield "hierarchical ring", fitted(hierarchical_ring(machine), machine.node_of, ports)

    progress("stages")
    chunks = given_chunks
    if chunks is None:
        shard_bytes = max(1, buffer_bytes // machine.per_node)
        chunks = best_chunks(machine.nodes, shard_bytes, machine.outer, MOST_SHARD_CHUNKS)
    home = late // machine.per_node
    between = find_flat(machine.nodes, late=home, chunks=chunks).schedule
    yield "stages", fitted(staged(machine, late, between), machine.node_of, ports)


def _tried_chunks(machine: Machine, buffer_bytes: int) -> list[int]:
    """Multiples of the network ports, so that no network round is partly filled."""
    ports = machine.network_ports
    most = max(1, LARGEST // machine.ranks // ports)
    balanced = bound.balanced_chunks(machine, buffer_bytes)
    groups = {max(1, round(min(most, balanced * factor / ports))) for factor in AROUND}
    return [ports * count for count in sorted(groups)]


def _costed(name: str, schedule: Schedule, machine: Machine, buffer_bytes: int) -> CostedSchedule:
    """Proved, checked against the network ports, and costed.

    Raises:
        SynthesisError: it is not proved, or over the ports; a fault of this package.
    """
    report = checked(schedule)
    crossing = network_ports(schedule, machine.node_of, machine.network_ports)
    if crossing.verdict is not Verdict.PROVED:
        raise SynthesisError(f"internal error: {name} is over the ports: {crossing.counterexample}")

    bound_s = None
    if schedule.ports == "duplex":
        bound_s = bound.bound_s(machine, buffer_bytes, schedule.chunks)
    return CostedSchedule(
        name=name,
        schedule=schedule,
        report=report,
        seconds=completion_s(schedule, machine, buffer_bytes),
        overlapped_s=overlapped_s(schedule, machine, buffer_bytes),
        waiting_s=waiting_s(schedule, machine, buffer_bytes),
        network_rounds=network_rounds(schedule, machine),
        bound_s=bound_s,
    )


def _require(
    machine: Machine, late: int, buffer_bytes: int, m: int | None, chunks: int | None
) -> None:
    require_rank("--late", late, machine.ranks)
    if buffer_bytes < 1:
        raise ArgumentError("--bytes", buffer_bytes, "must be 1 or more")
    require_chunks(chunks, m)
