"""One simulated execution of replicas, and what must hold of it.

Gradients are small integers over a power of two, so their averages are exact in whatever order they
are summed: each step's parameters follow from the plan alone, and a microbatch that is left out, or
counted twice, shows. They are compared on every replica after every step.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import msgspec
import torch

from latecomer.runtime.elastic import job as job_module
from latecomer.runtime.elastic.connecting import Connector
from latecomer.runtime.elastic.gradients import buckets_of
from latecomer.runtime.elastic.group import Group
from latecomer.runtime.elastic.job import Job
from latecomer.runtime.elastic.meeting import Meeting
from latecomer.runtime.elastic.succession import Succession
from latecomer.runtime.elastic.view import View
from latecomer.runtime.host import host
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.simulation.job import Job as Hosts
from latecomer.runtime.simulation.job import Outcome
from latecomer.runtime.simulation.meeting import Store
from latecomer.runtime.simulation.network import Weather
from latecomer.runtime.simulation.world import SimulationError
from latecomer.verify.errors import RankFailure
from tests.runtime.simulated import known_to_torch
from tests.simulation.elastic.plan import CutOff, Die, Fault, LoseStore, Place, Plan, Raise, Stop
from tests.simulation.executed import Executed
from tests.simulation.execution import made_once

NEVER_S = 1e6
LEARNING_RATE = 0.125
MOMENTUM = 0.5
LARGEST = 64  # of a gradient's elements, before the average
LIFE_SHARE = 0.4  # of the time of silence: who is still for less shows life in time
NOTICED = 3  # times of silence until a death is known to all, on a network that loses little
CHANGE_S = 1.0  # to agree on a view, and to connect
STOPPED_S = 5.0  # for longer a process may be stopped when its threads are looked at
LOOK_S = 0.05  # between two looks whether a replica has died
NO_OUTCOME = ("silent, and not proved dead", "the others have not agreed")

FUNCTIONS: tuple[tuple[Any, str, Place], ...] = (
    (Job, "_average", "sums"),
    (Succession, "_agreed", "agrees"),
    (Group, "_choose", "chooses"),
    (Connector, "_meet", "meets"),
    (Connector, "_make", "connects"),
    (Job, "_begins", "begins"),
    (job_module, "give", "gives"),
    (Meeting, "apply", "applies"),
    (job_module, "receive", "fetches"),
)
"""Where the places are in the code that ships."""


class OwnTrouble(Exception):
    """What a training loop of the user's own has raised."""


@dataclass
class Told:
    """What one process went through."""

    committed: dict[int, str] = field(default_factory=dict)  # by step, what is wrong; empty: right
    times_s: list[float] = field(default_factory=list)  # of these, in the world's time
    replicas: tuple[int, ...] = ()  # as of the last step
    times_left_behind: int = 0
    was_in: bool = False  # it has begun to train
    ended_s: float = math.inf  # when its training was over, done or not


@dataclass
class Execution(Executed):
    """What became of a plan."""

    plan: Plan
    told: dict[int, Told] = field(default_factory=dict)
    fired: list[tuple[float, Fault]] = field(default_factory=list)  # when, in the world's time
    killed_s: dict[int, float] = field(default_factory=dict)  # by process

    def describe(self) -> str:
        """What each process went through, a line each; then the faults."""
        lines = []
        for process, says in self.told.items():
            outcome = self.outcomes.get(process, Outcome())
            end = "died" if process in self.killed_s else repr(outcome.error or "finished")
            lines.append(
                f"process {process} (replica {self.plan.replica_of(process)}): "
                f"{len(says.committed)} steps, left behind {says.times_left_behind} times, {end}"
            )
        lines += [f"{at_s:.6f} s: {fault}" for at_s, fault in self.fired]
        return "\n".join(lines)


def execute(plan: Plan) -> Execution:
    """Run a plan and judge it."""
    weather = Weather(latency_s=plan.latency_s, lost=plan.lost)
    hosts = Hosts(
        plan.processes,
        plan.seed,
        weather,
        switch=plan.switch,
        pause=plan.pause,
        pause_s=plan.pause_s,
    )
    execution = Execution(plan)
    execution.told = {process: Told() for process in range(plan.processes)}
    befalling = _Befalling(plan, hosts, execution)
    try:
        with made_once(), befalling.in_places(), known_to_torch(hosts):
            execution.outcomes = hosts.run(
                lambda process, processes, store: _process(execution, befalling, process, store),
                longest_s=_longest_s(plan),
            )
    except SimulationError as error:
        execution.problems.append(f"{type(error).__name__}: {error}")

    execution.take_measures(hosts)
    execution.killed_s = dict(hosts.killed_s)
    for task in hosts.world.tasks:
        if task.error is not None and task.name != "main" and task.rank not in hosts.killed_s:
            execution.problems.append(f"{task!r} broke: {task.error!r}")
    for process in execution.outcomes:
        execution.problems += _problems_of(execution, process, hosts.unfinished.get(process, []))
    return execution


class _Befalling:
    """Lets the plan's faults come at their moments."""

    def __init__(self, plan: Plan, hosts: Hosts, execution: Execution) -> None:
        self._plan = plan
        self._hosts = hosts
        self._execution = execution
        self._times: Counter[tuple[int, Place]] = Counter()  # that a process was at a place

    @contextlib.contextmanager
    def in_places(self) -> Iterator[None]:
        """Notice in the block when a process is at a place."""
        with contextlib.ExitStack() as stack:
            for owner, name, place in FUNCTIONS:
                noticed = self._noticed(getattr(owner, name), place)
                stack.enter_context(mock.patch.object(owner, name, noticed))
            if self._plan.has_profile:
                stack.enter_context(
                    mock.patch.object(Group, "join", self._with_profile(Group.join))
                )
            yield

    def at(self, place: Place) -> None:
        """The current process has come to a place that is no function's."""
        time = self._count(place)
        self._befall(place, time, is_after=False)
        self._befall(place, time, is_after=True)

    def _with_profile(self, join: Callable[[Group], View]) -> Callable[[Group], View]:
        """What a network is like needs not be measured, which takes most of an execution."""
        plan = self._plan
        link = AlphaBeta(plan.latency_s, 1.0 / Weather().rate)
        profile = Profile(plan.replicas, native=link, schedule=link)

        def joined(group: Group) -> View:
            known = group._connector.known
            group._connector.known = msgspec.structs.replace(known, profile=profile)
            return join(group)

        return joined

    def _noticed(self, call: Callable[..., Any], place: Place) -> Callable[..., Any]:
        def noticed(*args: Any, **named: Any) -> Any:
            time = self._count(place)
            self._befall(place, time, is_after=False)
            try:
                return call(*args, **named)
            finally:
                self._befall(place, time, is_after=True)

        return noticed

    def _count(self, place: Place) -> int:
        key = self._hosts.world.rank, place
        self._times[key] += 1
        return self._times[key] - 1

    def _befall(self, place: Place, time: int, *, is_after: bool) -> None:
        process = self._hosts.world.rank
        if self._hosts.world.is_dead(process):
            return  # its threads are being ended
        for fault in self._plan.faults:
            moment = fault.moment
            is_now = (moment.place, moment.time, moment.is_after) == (place, time, is_after)
            if fault.process != process or not is_now:
                continue
            if isinstance(fault, Raise):
                self._note(fault)
                raise OwnTrouble
            if moment.delay_s > 0:
                self._hosts.world.after(moment.delay_s, self._act, fault)
                continue
            self._act(fault)
            if isinstance(fault, Die):
                host.sleep(NEVER_S)
            host.sleep(1e-6)

    def _act(self, fault: Fault) -> None:
        self._note(fault)
        hosts = self._hosts
        if isinstance(fault, Die):
            hosts.kill(fault.process, resets=fault.resets)
        elif isinstance(fault, Stop):
            hosts.stop(fault.process, fault.for_s)
        elif isinstance(fault, CutOff):
            until_s = hosts.world.now_s + fault.for_s
            for other in fault.others:
                hosts.network.cut(fault.process, other, until_s)
                hosts.network.cut(other, fault.process, until_s)
        elif isinstance(fault, LoseStore):
            hosts.store.shared.is_gone = True
            hosts.store.shared.waiters.wake()

    def _note(self, fault: Fault) -> None:
        self._execution.fired.append((self._hosts.world.now_s, fault))

    def wait_for_place(self, process: int) -> bool:
        """Wait until a returning process's replica has died; whether it has."""
        plan = self._plan
        replica = plan.replica_of(process)
        before = [each for each in range(process) if plan.replica_of(each) == replica]
        while not all(each in self._hosts.killed_s for each in before):
            if all(self._is_out(each) for each in range(process)):
                return False
            host.sleep(LOOK_S)
        host.sleep(plan.returns[process - plan.replicas].after_s)
        return True

    def _is_out(self, process: int) -> bool:
        return process in self._hosts.killed_s or self._hosts.mains[process].is_over

    def end(self, process: int) -> None:
        """The current process ends after its own exception."""
        self._hosts.kill(process)
        host.sleep(NEVER_S)


def _process(execution: Execution, befalling: _Befalling, process: int, store: Store) -> None:
    plan = execution.plan
    told = execution.told[process]
    if process >= plan.replicas and not befalling.wait_for_place(process):
        return
    model = _model(plan)
    optimizer = _optimizer(model)
    with mock.patch.object(job_module, "buckets_of", lambda of: buckets_of(of, plan.bucket_bytes)):
        job = Job(
            model,
            optimizer,
            store=store,  # type: ignore[arg-type]
            replica=plan.replica_of(process),
            replicas=plan.replicas,
            microbatches=plan.microbatches,
            bits=plan.bits,
            mode=plan.mode,
            silence_s=plan.silence_s,
            timeout_s=plan.timeout_s,
            join_timeout_s=plan.join_timeout_s,
        )
    told.was_in = True
    come_back = job._come_back

    def left_behind(step: Any) -> None:
        told.times_left_behind += 1
        come_back(step)

    job._come_back = left_behind  # type: ignore[method-assign]
    try:
        _train(execution, befalling, process, job, model, optimizer)
    except OwnTrouble:
        job.close()
        befalling.end(process)
    finally:
        told.ended_s = befalling._hosts.world.now_s
        job.close()


def _train(
    execution: Execution,
    befalling: _Befalling,
    process: int,
    job: Job,
    model: torch.nn.ParameterList,
    optimizer: torch.optim.Optimizer,
) -> None:
    plan = execution.plan
    told = execution.told[process]
    late_s = plan.late_s[plan.replica_of(process)]
    for step in job.steps(plan.steps):
        host.sleep(late_s)
        for microbatch in step:
            befalling.at("computes")
            losses = zip(model, _gradients(plan, step.number, microbatch), strict=True)
            sum((parameter * gradient).sum() for parameter, gradient in losses).backward()
            host.sleep(plan.compute_s)
        optimizer.step()
        is_right = _hash(model) == _expected(plan.elements, plan.microbatches, step.number)
        told.committed[step.number] = "" if is_right else "other parameters than it must have"
        told.times_s.append(befalling._hosts.world.now_s)
        told.replicas = job.view.replicas


def _model(plan: Plan) -> torch.nn.ParameterList:
    return torch.nn.ParameterList(
        torch.nn.Parameter(torch.zeros(elements)) for elements in plan.elements
    )


def _optimizer(model: torch.nn.ParameterList) -> torch.optim.Optimizer:
    return torch.optim.SGD(model, lr=LEARNING_RATE, momentum=MOMENTUM)


def _gradients(plan: Plan, step: int, microbatch: int) -> list[torch.Tensor]:
    return _drawn_gradients(plan.elements, step, microbatch)


@cache
def _drawn_gradients(elements: tuple[int, ...], step: int, microbatch: int) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(1000 * step + microbatch)
    return [
        torch.randint(-LARGEST, LARGEST + 1, (count,), generator=dice).float() for count in elements
    ]


@cache
def _expected(elements: tuple[int, ...], microbatches: int, step: int) -> str:
    """The hash of the parameters after a step, by plain training on all microbatches."""
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(count)) for count in elements)
    optimizer = _optimizer(model)
    for number in range(step + 1):
        drawn = [_drawn_gradients(elements, number, each) for each in range(microbatches)]
        for parameter, parts in zip(model, zip(*drawn, strict=True), strict=True):
            parameter.grad = torch.stack(parts).sum(dim=0) / microbatches
        optimizer.step()
    return _hash(model)


def _hash(model: torch.nn.ParameterList) -> str:
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model)
    return hashlib.sha256(data).hexdigest()


def _longest_s(plan: Plan) -> float:
    """By then every process that lives must have returned from all its calls."""
    work_s = plan.steps * (plan.microbatches * plan.compute_s + sum(plan.late_s))
    pauses_s = sum(fault.for_s for fault in plan.faults if isinstance(fault, Stop | CutOff))
    changes = len(plan.faults) + len(plan.returns) + 1
    return 4 * work_s + pauses_s + 60.0 + changes * 6 * (plan.join_timeout_s + plan.silence_s)


def _problems_of(execution: Execution, process: int, unfinished: list[str]) -> list[str]:
    """What does not hold of one process."""
    plan = execution.plan
    told = execution.told[process]
    name = f"process {process}"
    found = [f"{name}, step {step}: {wrong}" for step, wrong in told.committed.items() if wrong]
    if process in execution.killed_s:
        return found
    outcome = execution.outcomes[process]
    if not outcome.is_over:
        return [*found, f"{name} waits: {unfinished}"]
    if unfinished and not _is_stopped_at_the_end(execution, process):
        found.append(f"{name} has ended, and not its threads: {unfinished}")
    if outcome.error is not None:
        if not isinstance(outcome.error, RankFailure):
            found.append(f"{name} is ended by {outcome.error!r}")
        elif not _may_end(execution, process, outcome.error):
            found.append(f"{name} gives up: {outcome.error}")
    elif told.was_in and max(told.committed, default=-1) != plan.steps - 1:
        found.append(f"{name} has finished after steps {sorted(told.committed)}")
    gaps_s = [after - before for before, after in itertools.pairwise(told.times_s)]
    longest_s = _longest_gap_s(plan, [fault for _, fault in execution.fired])
    if max(gaps_s, default=0.0) > longest_s:
        found.append(f"{name} took {max(gaps_s):.3f} s for a step, {longest_s:.3f} s may pass")
    if told.times_left_behind and not _was_still(execution, process):
        found.append(f"{name} lives, and was left behind {told.times_left_behind} times")
    return found


def _is_stopped_at_the_end(execution: Execution, process: int) -> bool:
    """Whether its threads may still have to end, since it was stopped when all were done."""
    return any(
        isinstance(fault, Stop) and fault.process == process and fault.for_s > STOPPED_S
        for _, fault in execution.fired
    )


def _was_still(execution: Execution, process: int) -> bool:
    """Whether others may take it for dead: it showed no life for a while, at least to some."""
    shows_life_s = LIFE_SHARE * execution.plan.silence_s
    for _, fault in execution.fired:
        if isinstance(fault, Stop) and fault.process == process and fault.for_s > shows_life_s:
            return True
        if isinstance(fault, CutOff) and fault.for_s > shows_life_s:
            return True  # who is cut off from some may be left behind by these, or by the others
    return False


def _may_end(execution: Execution, process: int, failure: RankFailure) -> bool:
    """Whether a process may be ended by this failure, after what has befallen the group."""
    told = execution.told[process]
    comes_from_outside = process >= execution.plan.replicas or told.times_left_behind > 0
    faults = [fault for _, fault in execution.fired]
    if any(isinstance(fault, CutOff) for fault in faults):
        return True  # a part that is no quorum gives up
    if faults and not comes_from_outside and not told.was_in:
        return True  # nobody has begun: a job whose start fails is started again
    # who stood still may have been left behind, and not get to know it
    may_be_outside = comes_from_outside or _was_still(execution, process)
    if may_be_outside and any(isinstance(fault, LoseStore) for fault in faults):
        return True
    others = [other for other in execution.told if other not in (process, *execution.killed_s)]
    if may_be_outside and all(execution.outcomes[other].is_over for other in others):
        return True  # there is no group any more
    is_undecided = any(text in str(failure) for text in NO_OUTCOME)
    return is_undecided and _lacks_quorum(execution, process)


def _lacks_quorum(execution: Execution, process: int) -> bool:
    """Whether half of a group has died or was silent: the rest can't tell that from a cut.

    Who was silent for a while and is left behind takes no part in what the others agree on. All
    replicas at the start are in the first view, even one that has died as it connected.

    Who has finished before this process gave up has left. Where one that is silent had to pass the
    last step's sums on to this one, those who have them are gone.
    """
    lost = {other for other in execution.told if _was_still(execution, other)}
    at_start = range(execution.plan.replicas)
    came_back = {other for other, told in execution.told.items() if told.was_in}
    were_in = {*at_start, *came_back}
    remaining = were_in - lost - set(execution.killed_s)
    if 2 * len(remaining) <= len(were_in):
        return True
    gave_up_s = execution.told[process].ended_s
    finished = {other for other, told in execution.told.items() if told.ended_s < gave_up_s}
    return bool(lost - finished) and 2 * len(remaining - finished) <= len(were_in)


def _longest_gap_s(plan: Plan, fired: list[Fault]) -> float:
    """What may lie between two steps of a process: all that befell the group, one by one.

    A process that dies within a change is waited for until it is proved dead, or for as long as
    replicas have to join.
    """
    work_s = plan.microbatches * plan.compute_s + max(plan.late_s)
    gap_s = 2 * work_s + CHANGE_S * (1 + len(plan.returns))
    for fault in fired:
        gap_s += NOTICED * plan.silence_s + CHANGE_S
        if isinstance(fault, Stop | CutOff):
            gap_s += fault.for_s + 2 * work_s  # it may be left behind, and come back
        if len(fired) > 1 or fault.moment.place not in ("computes", "sums"):
            gap_s += plan.join_timeout_s
    return gap_s
