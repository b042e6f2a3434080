"""A plan of one execution of replicas: who they are, and what befalls them at which moment.

A moment is a place in the code that ships: before, in, or after the n-th time that a process comes
there. So faults come in every phase of every change, however short it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from latecomer.runtime.policy.options import Mode
from latecomer.runtime.samebits.option import Bits
from latecomer.runtime.simulation.world import Dice

Place = Literal[
    "computes",  # a microbatch
    "sums",  # the step's gradients
    "agrees",  # on the next view
    "chooses",  # it, as the agreement's owner
    "meets",  # the members of a view
    "connects",  # the executor to them
    "begins",  # a view, with who is behind in it
    "gives",  # its state to newcomers
    "applies",  # to be taken in
    "fetches",  # the state
]
PLACES: tuple[Place, ...] = get_args(Place)

FIRST_FAULT: tuple[Place, ...] = ("computes", "computes", "sums", "sums", "meets", "connects")
"""Where the first fault comes: the others are places of a change that it brings about."""

MOST_STEPS = 12
MODES: tuple[Mode, ...] = ("native", "auto", "eager", "predict")
ELEMENTS = ((5,), (1500, 3), (40, 1, 2000))
STOPS = (0.2, 0.5, 2.0, 8.0, 40.0)  # of the time of silence


class Moment(msgspec.Struct, frozen=True):
    """When something befalls a process."""

    place: Place
    time: int  # the n-th time that the process is there, from 0 on
    is_after: bool  # it has been there; else it comes there
    delay_s: float  # from then on; 0: nothing of the process comes between


class Die(msgspec.Struct, frozen=True, tag=True):
    """Its process ends; its kernel closes what it had open, or resets it."""

    process: int
    moment: Moment
    resets: bool


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Its process stops for a while."""

    process: int
    moment: Moment
    for_s: float


class Raise(msgspec.Struct, frozen=True, tag=True):
    """Its own training loop raises an exception: it closes its job, and ends."""

    process: int
    moment: Moment


class CutOff(msgspec.Struct, frozen=True, tag=True):
    """Nothing passes between it and some others for a while."""

    process: int
    moment: Moment
    others: tuple[int, ...]
    for_s: float


class LoseStore(msgspec.Struct, frozen=True, tag=True):
    """The store in which replicas find each other is gone for good."""

    process: int
    moment: Moment


Fault = Die | Stop | Raise | CutOff | LoseStore


class Return(msgspec.Struct, frozen=True):
    """A process that takes the place of a replica, so long after that has died."""

    replica: int
    after_s: float


class Plan(msgspec.Struct, frozen=True):
    """One execution. Processes are numbered: the replicas at the start, then those that return."""

    seed: int
    replicas: int
    steps: int
    microbatches: int
    elements: tuple[int, ...]  # of the model's parameters
    bucket_bytes: int
    bits: Bits
    mode: Mode
    has_profile: bool  # else the first view measures one
    compute_s: float  # for a microbatch
    late_s: tuple[float, ...]  # by replica, on top of that
    silence_s: float
    join_timeout_s: float
    timeout_s: float
    returns: tuple[Return, ...]
    faults: tuple[Fault, ...]
    latency_s: float
    lost: float
    switch: float
    pause: float
    pause_s: float

    @property
    def processes(self) -> int:
        """All that there will ever be."""
        return self.replicas + len(self.returns)

    def replica_of(self, process: int) -> int:
        """The number of the replica whose part a process takes."""
        if process < self.replicas:
            return process
        return self.returns[process - self.replicas].replica

    def as_json(self) -> str:
        """In one line."""
        return msgspec.json.encode(self).decode()


def read(text: str) -> Plan:
    """The plan that was printed so."""
    return msgspec.json.decode(text, type=Plan)


def drawn(seed: int) -> Plan:
    """The plan of a seed."""
    dice = Dice(seed, "elastic")
    replicas = 2 + dice.below(4)
    silence_s = dice.one_of((0.3, 0.5, 1.0))
    compute_s = dice.one_of((0.002, 0.02, 0.1))
    victim = dice.below(replicas)
    returns = tuple(
        Return(
            victim if dice.happens(0.8) else dice.below(replicas),
            after_s=dice.random() * dice.one_of((0.1, 1.0, 4.0)),
        )
        for _ in range(dice.one_of((0, 1, 1, 2)))
    )
    plan = Plan(
        seed=seed,
        replicas=replicas,
        steps=4 + dice.below(MOST_STEPS),
        microbatches=dice.one_of((4, 8, 16)),
        elements=dice.one_of(ELEMENTS),
        bucket_bytes=dice.one_of((64, 2**20)),
        bits=dice.one_of(("same", "same", "any")),
        mode=dice.one_of(MODES),
        has_profile=dice.happens(0.9),
        compute_s=compute_s,
        late_s=_lateness(dice, replicas, compute_s),
        silence_s=silence_s,
        join_timeout_s=10 * silence_s,
        timeout_s=60.0,
        returns=returns,
        faults=(),
        latency_s=dice.one_of((5e-6, 2e-4, 2e-3)),
        lost=dice.one_of((0.0, 0.0, 0.0, 0.01)),
        switch=dice.one_of((0.0, 0.1, 0.5)),
        pause=dice.one_of((0.0, 0.002, 0.01)),
        pause_s=dice.one_of((0.0005, 0.005)),
    )
    return msgspec.structs.replace(plan, faults=_faults(dice, plan, victim))


def _lateness(dice: Dice, replicas: int, compute_s: float) -> tuple[float, ...]:
    late_s = [0.0] * replicas
    if dice.happens(0.5):
        late_s[dice.below(replicas)] = compute_s * dice.one_of((1.0, 10.0, 50.0))
    return tuple(late_s)


def _faults(dice: Dice, plan: Plan, victim: int) -> tuple[Fault, ...]:
    """The first one befalls the victim, whose place others take, if any do."""
    count = dice.one_of((0, 1, 1, 2, 2, 2, 3))
    faults: list[Fault] = []
    for number in range(count):
        places = FIRST_FAULT if number == 0 else PLACES
        process = victim if number == 0 else dice.below(plan.processes)
        moment = _moment(dice, dice.one_of(places), plan)
        faults.append(_fault(dice, process, moment, plan))
    return tuple(faults)


def _moment(dice: Dice, place: Place, plan: Plan) -> Moment:
    times = {"computes": plan.steps, "sums": plan.steps}.get(place, 2)
    return Moment(
        place=place,
        time=dice.below(times),
        is_after=dice.happens(0.3),
        delay_s=dice.one_of((0.0, 10.0 ** dice.between(-5.0, -2.0), dice.random())),
    )


def _fault(dice: Dice, process: int, moment: Moment, plan: Plan) -> Fault:
    kind = dice.random()
    resets = dice.happens(0.5)
    share = dice.one_of(STOPS)
    others = tuple(
        other for other in range(plan.processes) if other != process and dice.happens(0.5)
    )
    if kind < 0.5:
        return Die(process, moment, resets)
    if kind < 0.75:
        return Stop(process, moment, plan.silence_s * share)
    if kind < 0.85:
        return Raise(process, msgspec.structs.replace(moment, place="computes"))
    if kind < 0.95:
        return CutOff(process, moment, others, plan.silence_s * share)
    return LoseStore(process, moment)


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the most promising ones first."""
    for index in range(len(plan.faults)):
        yield _with(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    if plan.returns and all(fault.process < plan.processes - 1 for fault in plan.faults):
        yield _with(plan, returns=plan.returns[:-1])
    last = plan.replicas - 1
    is_last_touched = any(fault.process >= last for fault in plan.faults)
    if plan.replicas > 2 and not plan.returns and not is_last_touched:
        faults = tuple(_without(fault, last) for fault in plan.faults)
        yield _with(plan, replicas=last, late_s=plan.late_s[:last], faults=faults)
    for steps in (plan.steps // 2, plan.steps - 1):
        if steps > 0:
            yield _with(plan, steps=steps)
    calm = {"lost": 0.0, "pause": 0.0, "switch": 0.0, "mode": "native", "bits": "any"}
    for name, value in calm.items():
        if getattr(plan, name) != value:
            yield _with(plan, **{name: value})
    if any(plan.late_s):
        yield _with(plan, late_s=(0.0,) * plan.replicas)
    if plan.elements != ELEMENTS[0]:
        yield _with(plan, elements=ELEMENTS[0])


def _without(fault: Fault, process: int) -> Fault:
    if not isinstance(fault, CutOff):
        return fault
    others = tuple(other for other in fault.others if other != process)
    return msgspec.structs.replace(fault, others=others)


def _with(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, **changes)
