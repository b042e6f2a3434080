"""One simulated execution of a plan, and what must hold of it.

What each rank submits tells, in the sum, who has contributed how often: rank r's numbers are
multiples of 8^r. So a result is right if it is that of all ranks once, and nothing needs an oracle
that adds up as the schedule does.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import torch

from latecomer import synth
from latecomer.runtime.collective import ALL_REDUCE, Collective
from latecomer.runtime.executor import closed_form
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.load import Runnable, load
from latecomer.runtime.health.checks import CONFIRM_SHARE, Limits
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.policy import candidates
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.runtime.samebits import conversion
from latecomer.runtime.samebits.engine import SameBitsEngine
from latecomer.runtime.samebits.repetition import NativeRepetition
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.simulation.job import Job, Outcome
from latecomer.runtime.simulation.meeting import Store
from latecomer.runtime.simulation.network import REPEAT_S, Weather
from latecomer.runtime.simulation.world import BEGIN_S, SimulationError
from latecomer.synth import candidates as synth_candidates
from latecomer.verify.errors import LatecomerError, RankFailure
from tests.runtime.simulated import known_to_torch
from tests.simulation import optireduce
from tests.simulation.executed import Executed
from tests.simulation.invariants import Watched
from tests.simulation.optireduce import Lossy
from tests.simulation.pipelines import Steps
from tests.simulation.places import LARGEST, bending, most_elements
from tests.simulation.plan import Cut, Kill, Plan, Stop, StoreTrouble

BASE = 8  # more than the ranks of a plan: each rank's share of a sum is a digit of it
NOTICED_S = 2.0  # after it a rank has noticed the end of a connection, if the network loses much
MARGIN = 0.2  # of a time-out: who waits for one that waits begins later, and clocks drift
CLOSING_S = 40.0  # a rank that closes waits this long at most, all its waits together
ASKER = "latecomer-store"  # a thread that waits for a store for as long as that does not answer
STORE_S = 5.0  # see store_exchange.ANSWER_S


@dataclass
class Told:
    """What one rank was told by its operations."""

    results: dict[int, str] = field(default_factory=dict)  # by operation: right, or what is wrong
    errors: dict[int, str] = field(default_factory=dict)
    failure: RankFailure | None = None
    waited_from_s: float = 0.0  # for the operation with which it failed, in the world's time
    failed_s: float = 0.0
    longest_wait: tuple[float, int] = (0.0, 0)  # seconds, and the operation
    ways: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)  # operations taken after an error
    lossy: Lossy = field(default_factory=Lossy)  # of OptiReduce


@dataclass
class Execution(Executed):
    """What became of a plan."""

    plan: Plan
    told: dict[int, Told] = field(default_factory=dict)

    def describe(self) -> str:
        """What each rank was told, a line each."""
        lines = []
        for rank, says in self.told.items():
            right = sum(not wrong for wrong in says.results.values())
            first = f"; first error: {next(iter(says.errors.values()))}" if says.errors else ""
            lines.append(f"rank {rank}: {right} right, {len(says.errors)} failed{first}")
        return "\n".join(lines)


def execute(plan: Plan) -> Execution:
    """Run a plan and judge it."""
    weather = Weather(
        rate=plan.rate,
        latency_s=plan.latency_s,
        lost=plan.lost,
        doubled=plan.doubled,
        delayed=plan.delayed,
        short=plan.short,
        buffer=plan.buffer,
    )
    job = Job(
        plan.ranks,
        plan.seed,
        weather,
        plan.drifts,
        switch=plan.switch,
        pause=plan.pause,
        pause_s=plan.pause_s,
    )
    execution = Execution(plan)
    told = {rank: Told() for rank in range(plan.ranks)}
    execution.told = told
    _arrange(job, plan)
    watched = Watched(job, clocks_are_good=plan.clocks_are_good)
    outcomes: dict[int, Outcome] = {}
    try:
        with made_once(), bending(plan.bent), watched.looking(), known_to_torch(job):
            outcomes = job.run(
                lambda rank, size, store: _rank(job, plan, told[rank], rank, store),
                longest_s=_longest_s(plan),
            )
    except SimulationError as error:
        execution.problems.append(f"{type(error).__name__}: {error}")

    execution.outcomes = outcomes
    execution.take_measures(job)
    watched.look_at_tensors()
    execution.problems += watched.problems
    execution.problems += _problems(plan, job, outcomes, told)
    return execution


def _arrange(job: Job, plan: Plan) -> None:
    """Faults happen at their time."""
    world = job.world
    for fault in plan.faults:
        at_s = BEGIN_S + fault.at_s
        if isinstance(fault, Kill):
            if fault.operation is not None:
                continue  # see _operate
            world.at(at_s, lambda kill: job.kill(kill.rank, resets=kill.resets), fault)
        elif isinstance(fault, Stop):
            world.at(at_s, lambda stop: job.stop(stop.rank, stop.for_s), fault)
        elif isinstance(fault, Cut):
            world.at(at_s, lambda cut: _cut(job, cut), fault)
        else:
            world.at(at_s, lambda trouble: _trouble(job, trouble), fault)


def _cut(job: Job, cut: Cut) -> None:
    until_s = job.world.now_s + cut.for_s
    for sender, receiver in itertools.product(cut.senders, cut.receivers):
        job.network.cut(sender, receiver, until_s)
        if cut.both_ways:
            job.network.cut(receiver, sender, until_s)


def _trouble(job: Job, trouble: StoreTrouble) -> None:
    shared = job.store.shared
    shared.is_gone = trouble.is_gone
    shared.is_stopped = not trouble.is_gone
    shared.waiters.wake()


def _longest_s(plan: Plan) -> float:
    """By then every rank that lives must have returned from all its calls."""
    stopped_s = sum(fault.for_s for fault in plan.faults if isinstance(fault, Stop | Cut))
    busy_s = sum(plan.lateness_s) * len(plan.sizes)
    nbytes = sum(plan.sizes) * 4
    moving_s = 20 * plan.ranks * nbytes / plan.rate
    hops_s = 100 * len(plan.sizes) * plan.ranks * plan.latency_s
    starting_s = 6 * (plan.timeout_s + STORE_S)
    return starting_s + busy_s + moving_s + hops_s + stopped_s + 6 * plan.timeout_s + CLOSING_S


def _moving_s(plan: Plan, operation: int) -> float:
    """How long operations in flight with ``operation`` may go on before one of them stands still.

    On a network that loses much nearly all of it is the time until TCP sends again what was lost:
    of the data, in the smallest pieces, and of as many credits for it.
    """
    nbytes = 4 * sum(plan.sizes[operation : operation + plan.window])
    pieces = nbytes / min(Weather().pieces)
    return 2 * pieces * plan.lost * REPEAT_S


def _longest_wait_s(plan: Plan, rank: int, operation: int) -> float:
    """What a rank may wait for one operation: others have to be heard of within the time-out.

    What goes on, or is over, before that comes on top, since the wait begins anew after it, and the
    rank's own stop.
    """
    if plan.kind == "optireduce":
        return optireduce.longest_s(plan)
    if most_elements(plan.bent) < LARGEST:
        return math.inf  # so many round trips take what they take
    pauses_s = 0.0
    for fault in plan.faults:
        is_own = isinstance(fault, Stop) and fault.rank == rank
        if is_own or (isinstance(fault, Stop | Cut) and fault.for_s < plan.timeout_s):
            pauses_s += fault.for_s
    timeout_s = plan.timeout_s
    if plan.kind == "pipeline":  # whose agreement on a schedule goes through the store
        timeout_s = max(timeout_s, STORE_S)
    moving_s = _moving_s(plan, operation)
    return (1 + MARGIN) * timeout_s + pauses_s + moving_s + NOTICED_S


def _rank(job: Job, plan: Plan, told: Told, rank: int, store: Store) -> None:
    """What a rank does; its engine is closed in any case."""
    engine = _engine(plan, rank, store, told.lossy)
    running: AnyEngine = engine
    try:
        if plan.bits == "same":
            running = _with_same_bits(plan, rank, store, engine)
        _operate(job, plan, told, rank, running)
    finally:
        running.close()
        if isinstance(engine, OptiReduceEngine):
            optireduce.tell(engine, told.lossy)
        elif isinstance(engine, AllReduceDispatcher):
            told.ways = {record.operation: (record.way, record.late) for record in engine.records}


def _operate(job: Job, plan: Plan, told: Told, rank: int, engine: Any) -> None:
    flying: list[tuple[int, Any]] = []  # operations, and their works

    def failed(operation: int, error: LatecomerError) -> None:
        told.errors[operation] = str(error)
        if isinstance(error, RankFailure) and told.failure is None:
            told.failure = error
            told.failed_s = job.world.now_s

    def wait_for_oldest() -> None:
        operation, work = flying.pop(0)
        began_s = job.world.now_s
        if told.failure is None:
            told.waited_from_s = began_s
        try:
            result = work.wait()
        except LatecomerError as error:
            failed(operation, error)
        else:
            told.results[operation] = ""
            if plan.kind == "optireduce":
                told.lossy.results[operation] = result.clone()
            elif plan.kind == "pipeline":
                told.results[operation] = result
                if told.errors:
                    told.silent.append(operation)
            else:
                told.results[operation] = _wrong(plan, rank, operation, result)
        told.longest_wait = max(told.longest_wait, (job.world.now_s - began_s, operation))

    for operation in range(len(plan.sizes)):
        late_s = plan.late_s(rank, operation)
        if late_s:
            host.sleep(late_s)
        had_error = bool(told.errors)
        try:
            work = _submit(engine, plan, rank, operation)
        except LatecomerError as error:
            failed(operation, error)
            continue
        _perhaps_die(job, plan, rank, operation)
        if had_error and plan.kind != "pipeline":  # whose steps begin when they are waited for
            told.silent.append(operation)
        flying.append((operation, work))
        if len(flying) >= plan.in_flight(rank):
            wait_for_oldest()
    while flying:
        wait_for_oldest()


def _perhaps_die(job: Job, plan: Plan, rank: int, operation: int) -> None:
    """The end of a rank that comes with an operation of its own."""
    for fault in plan.faults:
        if isinstance(fault, Kill) and (fault.rank, fault.operation) == (rank, operation):
            job.world.after(fault.at_s, lambda kill: job.kill(kill.rank, resets=kill.resets), fault)


def _submit(engine: AnyEngine, plan: Plan, rank: int, operation: int) -> Any:
    if isinstance(engine, Steps):
        return engine.submit(operation)
    collective = plan.collective(operation)
    if collective != ALL_REDUCE:
        assert isinstance(engine, AllReduceDispatcher)
        return _submit_half(engine, plan, rank, operation, collective)
    tensor = _contribution(rank, plan.sizes[operation])
    options: dict[str, Any] = {}
    executor = engine.engine if isinstance(engine, SameBitsEngine) else engine
    if isinstance(executor, Executor):
        schedule = operation % len(executor.schedules)
        late = None if schedule == 0 and operation % 3 else _late(plan, executor, schedule)
        options = {"schedule": schedule, "late": late}
    return engine.submit(tensor, average=False, **options)


def _submit_half(
    engine: AllReduceDispatcher, plan: Plan, rank: int, operation: int, half: Collective
) -> Any:
    part = plan.part(operation)
    if half == "reduce_scatter":
        return engine.reduce_scatter(
            torch.full((part,), -1.0), _contribution(rank, part * plan.ranks)
        )
    whole = torch.full((part * plan.ranks,), -1.0)
    given = _contribution(rank, part)
    if operation % 2:  # in place
        place = whole[rank * part : (rank + 1) * part]
        place.copy_(given)
        given = place
    return engine.all_gather(whole, given)


def _late(plan: Plan, engine: Executor, schedule: int) -> int | None:
    """Another late rank each time, where the schedule is for one."""
    if len(engine.schedules[schedule].late_ranks(None)) != 1:
        return None
    return (plan.seed + schedule) % plan.ranks


Engine = Executor | AllReduceDispatcher | OptiReduceEngine | Steps
AnyEngine = Engine | SameBitsEngine


def _engine(plan: Plan, rank: int, store: Store, lossy: Lossy) -> Engine:
    if plan.kind == "optireduce":
        return optireduce.engine(plan, rank, store, lossy)
    if plan.kind == "pipeline":
        return Steps(plan, rank, store)
    if plan.kind == "executor":
        runnable = [made(name, plan.ranks) for name in plan.schedules]
        return Executor(runnable, store, rank, plan.ranks, timeout_s=plan.timeout_s)  # type: ignore[arg-type]
    beta_s = 1.0 / plan.rate
    profile = Profile(
        plan.ranks,
        native=AlphaBeta(2 * plan.latency_s, beta_s),
        schedule=AlphaBeta(plan.latency_s, beta_s),
    )
    return AllReduceDispatcher(
        store,  # type: ignore[arg-type]
        rank,
        plan.ranks,
        options=_options(plan),
        profile=profile,
        timeout_s=plan.timeout_s,
    )


def _with_same_bits(plan: Plan, rank: int, store: Store, engine: Engine) -> SameBitsEngine:
    """The engine, which sums integers in place of floats."""
    assert isinstance(engine, Executor | AllReduceDispatcher)
    executor = engine if isinstance(engine, Executor) else engine.executor
    group = StoreExchange(host.prefixed("repetition", store), rank, plan.ranks, plan.timeout_s)
    repetition = NativeRepetition(group, executor.watchdog)
    sums = SameBits(plan.ranks, torch.device("cpu"), repetition, executor.watchdog)
    return SameBitsEngine(engine, sums)


def _options(plan: Plan) -> Options:
    """Of the dispatchers of a plan."""
    assert plan.kind not in ("executor", "optireduce", "pipeline")
    late = (plan.seed % plan.ranks,) if plan.kind == "static" else ()
    return Options(plan.kind, late=late)


PROGRAMS = cache(closed_form.proved_programs)
CANDIDATES = cache(candidates._proved)


@contextlib.contextmanager
def made_once() -> Iterator[None]:
    """What ranks search for, make and prove at a start is made once for this whole process.

    It is the same each time and takes seconds. A search has as long as it needs: else it would
    depend on the processor whether it comes to an end.
    """
    conversion.on_cpu()
    with (
        mock.patch.object(synth_candidates, "SEARCH_S", 600.0),
        mock.patch.object(closed_form, "proved_programs", PROGRAMS),
        mock.patch.object(candidates, "_proved", CANDIDATES),
    ):
        yield


@cache
def made(name: str, ranks: int) -> Runnable:
    """A schedule, proved once for all executions."""
    makers: dict[str, Callable[[int], Any]] = {
        "straggler": synth.generate,
        "ring": synth.ring,
        "rhd": synth.rhd,
        "direct": synth.direct,
        "doubling": synth.doubling,
        "tree": synth.tree,
    }
    return load(makers[name](ranks))


def _contribution(rank: int, elements: int) -> torch.Tensor:
    """Rank r's numbers: 8^r times 1, 2 or 3."""
    return _pattern(elements) * BASE**rank


@cache
def _pattern(elements: int) -> torch.Tensor:
    return (torch.arange(elements) % 3 + 1).float()


def _expected(plan: Plan, rank: int, operation: int) -> torch.Tensor:
    """The sum of all contributions, once each, or this rank's part of it; or all of them."""
    collective = plan.collective(operation)
    part = plan.part(operation)
    if collective == "all_gather":
        return torch.cat([_contribution(each, part) for each in range(plan.ranks)])
    factor = sum(BASE**each for each in range(plan.ranks))
    if collective == "reduce_scatter":
        return _pattern(part * plan.ranks)[rank * part : (rank + 1) * part] * factor
    return _pattern(plan.sizes[operation]) * factor


def _wrong(plan: Plan, rank: int, operation: int, result: torch.Tensor) -> str:
    """Empty if the result is what it should be; else what is wrong."""
    expected = _expected(plan, rank, operation)
    if torch.equal(result, expected):
        return ""
    place = int((result != expected).nonzero()[0])
    return f"element {place} is {result[place]} in place of {expected[place]}"


def _problems(
    plan: Plan, job: Job, outcomes: dict[int, Outcome], told: dict[int, Told]
) -> list[str]:
    problems = []
    gone = {rank for rank, outcome in outcomes.items() if outcome.error is not None}
    have_started = not gone
    for rank, outcome in outcomes.items():
        is_dead = job.world.is_dead(rank)
        says = told[rank]
        for operation, wrong in says.results.items():
            if wrong:
                problems.append(f"rank {rank}, operation {operation}: wrong sum: {wrong}")
        if is_dead:
            continue

        if not outcome.is_over:
            waits = job.unfinished.get(rank, [])
            problems.append(f"rank {rank} has not returned after {job.elapsed_s():.1f} s: {waits}")
            continue
        problems += _problems_of_rank(job, plan, rank, outcome, says, gone)
    if plan.kind == "optireduce":
        lossies = {rank: says.lossy for rank, says in told.items()}
        problems += optireduce.problems(plan, lossies, _contribution)
    problems += _blames_at_start(plan, outcomes)
    problems += _disagreements(told)
    if have_started:
        problems += _different_verdicts(plan, told)
    problems += _left_behind(job, outcomes)
    return problems


def _problems_of_rank(
    job: Job, plan: Plan, rank: int, outcome: Outcome, says: Told, gone: set[int]
) -> list[str]:
    """``gone``: ranks that could not start, and ended."""
    problems = []
    error = outcome.error
    if error is not None and not isinstance(error, LatecomerError):
        text = "".join(traceback.format_exception(error)[-3:])
        problems.append(f"rank {rank} was ended by {error!r}: {text}")
    if error is None and len(says.results) + len(says.errors) != len(plan.sizes):
        problems.append(f"rank {rank} has lost operations")
    is_excused = plan.kind == "optireduce" and optireduce.is_excused(plan, says.errors)
    if not plan.may_fail and (says.errors or error is not None) and not is_excused:
        text = next(iter(says.errors.values()), str(error))
        problems.append(f"rank {rank} failed though nothing has happened: {text}")
    # What ended it at the start is judged with the others': who waits for one that does not come is
    # missing, too.
    if says.failure is not None and says.failure is not error:
        problems += _problems_after_kill(job, plan, rank, says, says.failure, have_started=not gone)
        innocent = set(_innocent(plan, rank, says.failure)) - gone
        if innocent:
            named = sorted(innocent)
            problems.append(f"rank {rank} blames {named}, which live: {says.failure}")
    took_s, operation = says.longest_wait
    if took_s > _longest_wait_s(plan, rank, operation):
        text = f"rank {rank} has waited {took_s:.1f} s for operation {operation}"
        problems.append(f"{text}, the time-out is {plan.timeout_s:.1f} s")
    if says.silent:
        problems.append(f"rank {rank} goes on after an error: operations {says.silent}")
    return problems


def _problems_after_kill(
    job: Job, plan: Plan, rank: int, says: Told, failure: RankFailure, *, have_started: bool
) -> list[str]:
    """Where one rank was killed, and no more: it alone is named, and soon.

    Its connections end with it, so nobody has to wait for the time-out to ask what is wrong, if all
    had started. (But for who waits for a coordinator's word: datagrams do not end.)
    """
    kill = plan.only_kill
    if kill is None or kill.rank not in job.killed_s:
        return []
    problems = []
    named = set(failure.ranks)
    if plan.kind == "optireduce":
        # One that has closed while it was cut off is as dead to its peer: its goodbye is lost.
        named -= plan.cut_off - {kill.rank}
    if named != {kill.rank}:
        text = f"rank {rank} does not name rank {kill.rank}, which alone was killed"
        problems.append(f"{text}: {failure}")

    limits = Limits(plan.timeout_s)
    most_s = (1 + CONFIRM_SHARE) * limits.grace_s + NOTICED_S + 20 * plan.ranks * plan.latency_s
    took_s = says.failed_s - max(says.waited_from_s, job.killed_s[kill.rank])
    if took_s > most_s and have_started and plan.kind not in ("auto", "eager", "optireduce"):
        text = f"rank {rank} has waited {took_s:.2f} s for rank {kill.rank}, which was killed"
        problems.append(f"{text}, and should have known within {most_s:.2f} s")
    return problems


def _innocent(plan: Plan, rank: int, failure: RankFailure) -> list[int]:
    """Ranks that a failure of ``rank`` names without a reason."""
    named = set(failure.ranks)
    has_cut = any(isinstance(fault, Cut) for fault in plan.faults)
    if not plan.may_fail or rank in plan.culprits:
        return []  # one that was stopped, or cut off, comes back to others that have given up
    if any(isinstance(fault, StoreTrouble) for fault in plan.faults):
        return []  # without the store ranks do not start, and those that have wait for them
    if has_cut and named & plan.culprits:
        return []  # those between whom nothing passes hold up all others, in a circle
    return sorted(named - plan.culprits)


def _blames_at_start(plan: Plan, outcomes: dict[int, Outcome]) -> list[str]:
    """Of the ranks that could not start, one at least names who is to blame."""
    named: set[int] = set()
    have_failed = False
    for rank, outcome in outcomes.items():
        # one that was stopped, or cut off, comes back to others that have given up
        if isinstance(outcome.error, RankFailure) and rank not in plan.culprits:
            named |= set(outcome.error.ranks)
            have_failed = True
    has_store = not any(isinstance(fault, StoreTrouble) for fault in plan.faults)  # to tell others
    if plan.culprits and has_store and have_failed and not named & plan.culprits:
        return [f"ranks {sorted(named)} are blamed for the start, and none that did not come"]
    return []


def _disagreements(told: dict[int, Told]) -> list[str]:
    """Ranks that have run the same operation in different ways."""
    problems = []
    operations = sorted({operation for says in told.values() for operation in says.ways})
    for operation in operations:
        ways = {rank: says.ways[operation] for rank, says in told.items() if operation in says.ways}
        if len(set(ways.values())) > 1:
            problems.append(f"operation {operation} ran in different ways: {ways}")
    return problems


def _different_verdicts(plan: Plan, told: dict[int, Told]) -> list[str]:
    """Ranks to which nothing has happened, and that blame others than each other do."""
    verdicts = {
        rank: sorted(says.failure.ranks)
        for rank, says in told.items()
        if says.failure is not None and rank not in plan.culprits
    }
    # Of two that are cut off from each other each accuses the other; who is told first believes it.
    if plan.cut_off and all(plan.cut_off & set(named) for named in verdicts.values()):
        return []
    if len({tuple(named) for named in verdicts.values()}) > 1:
        return [f"ranks do not agree on who has failed: {verdicts}"]
    return []


def _left_behind(job: Job, outcomes: dict[int, Outcome]) -> list[str]:
    """Sockets and threads of ranks that have returned."""
    problems = []
    for rank, outcome in outcomes.items():
        if not outcome.is_over or job.world.is_dead(rank):
            continue
        sockets = [each for each in job.network.sockets.values() if each.rank == rank]
        if sockets:
            problems.append(f"rank {rank} leaves {len(sockets)} sockets behind")
        threads = [each for each in job.unfinished.get(rank, []) if ASKER not in each]
        if threads:
            problems.append(f"rank {rank} leaves threads behind: {threads}")
    return problems
