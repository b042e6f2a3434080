"""A plan: everything about one simulated execution, drawn from its seed and printed as JSON.

Each seed first draws which kinds of trouble there are at all, then how hard each is. (A swarm in
which all are always on finds less: one kind hides what another would show. Groce et al., ISSTA
2012.)
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from latecomer.runtime.collective import ALL_REDUCE, COLLECTIVES, Collective
from latecomer.runtime.network.clock import DRIFT
from latecomer.runtime.samebits.option import Bits
from latecomer.runtime.simulation.world import Dice
from tests.simulation.places import bent, most_elements

Kind = Literal["executor", "auto", "eager", "predict", "static", "native", "optireduce", "pipeline"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCHEDULES = ("straggler", "ring", "rhd", "direct", "doubling", "tree")
SIZES = (0, 1, 5, 100, 3_000, 20_000, 70_000)  # elements
SMALL = (0, 5, 100)
MOST_ELEMENTS = 150_000  # of all operations: few executions would take half of all time
MOST_STEPS = 10  # of a pipeline: each is many messages
LOSSY_ELEMENTS = 20_000  # at most, of OptiReduce: each datagram is several steps of an execution

SHORT = 0.05  # of the time-out: a pause for which no rank gives up another


class Kill(msgspec.Struct, frozen=True, tag=True):
    """A rank's process ends; its kernel closes what it had open, or resets it."""

    rank: int
    at_s: float  # since the start of the job, or since the rank has submitted
    resets: bool
    operation: int | None = None  # this one


class Stop(msgspec.Struct, frozen=True, tag=True):
    """A rank's process stops for a while."""

    rank: int
    at_s: float
    for_s: float


class Cut(msgspec.Struct, frozen=True, tag=True):
    """Nothing passes from some ranks to others for a while, or neither way."""

    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    at_s: float
    for_s: float
    both_ways: bool


class StoreTrouble(msgspec.Struct, frozen=True, tag=True):
    """The store's process is gone, or stopped."""

    at_s: float
    is_gone: bool


Fault = Kill | Stop | Cut | StoreTrouble


class Plan(msgspec.Struct, frozen=True):
    """One execution."""

    seed: int
    ranks: int
    kind: Kind
    schedules: tuple[str, ...]  # of an executor
    sizes: tuple[int, ...]  # elements of each operation; of a pipeline's steps 0
    window: int  # operations in flight
    lateness_s: tuple[float, ...]  # by rank: how long before each operation it is busy
    turns_at: int  # from this operation on each rank is as late as the one before it was
    timeout_s: float
    faults: tuple[Fault, ...]
    # the network's and the world's, as Weather and World have them
    rate: float
    latency_s: float
    lost: float
    doubled: float
    delayed: float
    short: float
    buffer: int
    switch: float
    pause: float
    pause_s: float
    drifts: tuple[float, ...]  # by rank: seconds per second by which its clock runs ahead
    bent: dict[str, int]  # places of the shipped code, see tests.simulation.places
    bits: Bits = "any"  # with "same", what is summed are integers
    halves: bool = False  # two of three operations are reduce-scatters and all-gathers
    waits: int = -1  # the rank that has one operation in flight, whatever the others have; -1: none

    def late_s(self, rank: int, operation: int) -> float:
        """How long the rank is busy before an operation."""
        behind = 1 if operation >= self.turns_at else 0
        return self.lateness_s[(rank - behind) % self.ranks]

    def in_flight(self, rank: int) -> int:
        """How many operations a rank has in flight."""
        return 1 if rank == self.waits else self.window

    def collective(self, operation: int) -> Collective:
        """What an operation is; of another than an all-reduce a rank's part is a share of it."""
        return COLLECTIVES[operation % len(COLLECTIVES)] if self.halves else ALL_REDUCE

    def part(self, operation: int) -> int:
        """Elements of a rank's part of an operation that is no all-reduce."""
        return self.sizes[operation] // self.ranks

    def as_json(self) -> str:
        """In one line."""
        return msgspec.json.encode(self).decode()

    @property
    def culprits(self) -> frozenset[int]:
        """Ranks that may be blamed: killed, stopped, or cut off from another."""
        lost = {fault.rank for fault in self.faults if isinstance(fault, Kill | Stop)}
        return self.cut_off | lost

    @property
    def cut_off(self) -> frozenset[int]:
        """Ranks that are cut off from another."""
        cuts = [fault for fault in self.faults if isinstance(fault, Cut)]
        return frozenset().union(*(cut.senders + cut.receivers for cut in cuts))

    @property
    def only_kill(self) -> Kill | None:
        """The end of a rank's process, if nothing else happens for which a rank may be blamed."""
        serious = [fault for fault in self.faults if not self._is_harmless(fault)]
        if len(serious) == 1 and isinstance(serious[0], Kill):
            return serious[0]
        return None

    @property
    def clocks_are_good(self) -> bool:
        """Whether no two clocks drift apart faster than the code allows for."""
        return max(self.drifts) - min(self.drifts) <= DRIFT

    @property
    def may_fail(self) -> bool:
        """Whether anything happens for which an operation may fail."""
        return not all(self._is_harmless(fault) for fault in self.faults)

    def _is_harmless(self, fault: Fault) -> bool:
        """Whether it is over long before anybody may be given up: see ``health.checks.Limits``."""
        return isinstance(fault, Stop | Cut) and fault.for_s <= SHORT * self.timeout_s


def read(text: str) -> Plan:
    """The plan that was printed so."""
    return msgspec.json.decode(text, type=Plan)


def drawn(seed: int, kinds: tuple[Kind, ...] = KINDS) -> Plan:
    """The plan of a seed."""
    dice = Dice(seed, "plan")
    ranks = 2 + dice.below(5)
    lost = dice.one_of((0.0, 0.0, 0.01, 0.1))
    rate = dice.one_of((2.5e6, 25e6, 1.25e9))
    latency_s = dice.one_of((5e-6, 2e-4, 5e-3))
    operations = 1 + dice.below(12)
    sizes = tuple(dice.one_of(SIZES) for _ in range(operations))
    length = Dice(seed, "length")
    if length.happens(0.15):  # enough for ranks to learn, and to change over
        operations = 20 + length.below(60)
        sizes = tuple(length.one_of(SMALL) for _ in range(operations))
    places = bent(seed)
    most = min(most_elements(places), MOST_ELEMENTS // operations)
    sizes = tuple(min(size, most) for size in sizes)
    has_late = dice.happens(0.6)
    window = 1 + dice.below(4)
    timeout_s = max(
        dice.one_of((1.0, 3.0, 10.0, 30.0)),
        10.0 if lost else 0.0,  # what TCP has to repeat, it may have to repeat again
        20.0 * window * ranks * 4 * max(sizes) / rate,
        100.0 * ranks * latency_s,
    )
    # One that is busy before each operation falls behind by as many as are in flight: that has to
    # stay far below the time-out.
    most_late_s = min(dice.one_of((0.001, 0.02, 0.2)), 0.1 * timeout_s / window)
    lateness_s = [0.0] * ranks
    if has_late:
        for _ in range(1 + dice.below(2)):
            lateness_s[dice.below(ranks)] = dice.random() * most_late_s

    kind = dice.one_of(kinds)
    if kind == "optireduce":
        sizes = tuple(min(size, LOSSY_ELEMENTS) for size in sizes)
    elif kind == "pipeline":
        sizes = (0,) * min(operations, MOST_STEPS)

    bits = _bits(Dice(seed, "bits"), kind)
    can_have_halves = kind in ("auto", "eager", "predict", "native") and bits == "any"
    return Plan(
        seed=seed,
        ranks=ranks,
        kind=kind,
        schedules=tuple(dice.one_of(SCHEDULES) for _ in range(1 + dice.below(2))),
        sizes=sizes,
        window=window,
        lateness_s=tuple(lateness_s),
        turns_at=length.below(2 * operations),
        timeout_s=timeout_s,
        faults=_faults(dice, seed, ranks, operations, timeout_s),
        rate=rate,
        latency_s=latency_s,
        lost=lost,
        doubled=dice.one_of((0.0, 0.0, 0.05)),
        delayed=dice.one_of((0.0, 0.0, 0.05)),
        short=dice.one_of((0.0, 0.1, 0.5)),
        buffer=dice.one_of((4096, 32_768, 262_144)),
        switch=dice.one_of((0.0, 0.1, 0.5)),
        pause=dice.one_of((0.0, 0.0, 0.003, 0.02)),
        pause_s=dice.one_of((0.0005, 0.01)),
        drifts=_drifts(Dice(seed, "drifts"), ranks),
        bent=places,
        bits=bits,
        halves=can_have_halves and Dice(seed, "halves").happens(0.3),
        waits=_waits(Dice(seed, "waits"), kind, ranks),
    )


def _bits(dice: Dice, kind: Kind) -> Bits:
    """For a fifth of all that could have them, the same bits."""
    is_same = kind not in ("optireduce", "pipeline") and dice.happens(0.2)
    return "same" if is_same else "any"


def _waits(dice: Dice, kind: Kind, ranks: int) -> int:
    """A rank in some of the executions in which ranks only wait for each other's operations."""
    can_wait = kind not in ("optireduce", "pipeline")
    return dice.below(ranks) if can_wait and dice.happens(0.3) else -1


def _drifts(dice: Dice, ranks: int) -> tuple[float, ...]:
    """Of clocks as good as the code takes them to be, or of some that are far worse."""
    most = dice.one_of((0.0, DRIFT / 2, DRIFT / 2, 0.02))
    return tuple(dice.between(-most, most) for _ in range(ranks))


def _faults(
    dice: Dice, seed: int, ranks: int, operations: int, timeout_s: float
) -> tuple[Fault, ...]:
    faults: list[Fault] = []
    if dice.happens(0.25):
        kill = Kill(dice.below(ranks), _moment_s(dice), dice.happens(0.5))
        faults.append(_perhaps_at_operation(kill, Dice(seed, "kill"), operations))
    if dice.happens(0.15):
        for_s = timeout_s * dice.one_of((SHORT, 0.4, 3.0))
        faults.append(Stop(dice.below(ranks), _moment_s(dice), for_s))
    if dice.happens(0.15):
        sender = dice.below(ranks)
        receiver = (sender + 1 + dice.below(ranks - 1)) % ranks
        senders, receivers = _sides(sender, receiver, Dice(seed, "sides"), ranks)
        for_s = timeout_s * dice.one_of((SHORT, 0.3, 3.0))
        faults.append(Cut(senders, receivers, _moment_s(dice), for_s, dice.happens(0.5)))
    if dice.happens(0.05):
        faults.append(StoreTrouble(_moment_s(dice), dice.happens(0.5)))
    return tuple(faults)


def _sides(
    sender: int, receiver: int, dice: Dice, ranks: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two ranks that are cut off from each other, in a third of all cases with all others."""
    if not dice.happens(0.35):
        return (sender,), (receiver,)
    senders, receivers = [sender], [receiver]
    for rank in set(range(ranks)) - {sender, receiver}:
        dice.one_of((senders, receivers)).append(rank)
    return tuple(sorted(senders)), tuple(sorted(receivers))


def _perhaps_at_operation(kill: Kill, dice: Dice, operations: int) -> Kill:
    """The same, in every other case soon after the rank has submitted an operation."""
    delay_s = 10.0 ** dice.between(-5.0, -1.0)
    operation = dice.below(operations)
    if dice.happens(0.5):
        return msgspec.structs.replace(kill, at_s=delay_s, operation=operation)
    return kill


def _moment_s(dice: Dice) -> float:
    """A moment of a job, early ones as often as late ones: 1 ms to 3 s after its start."""
    exponent = dice.between(-3.0, 0.5)
    return float(10.0**exponent)
