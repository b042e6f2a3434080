"""What the user chooses, and what decisions are made from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Literal, NamedTuple, get_args

import msgspec

from latecomer.runtime.collective import ALL_REDUCE, Collective
from latecomer.runtime.device.option import OnDevice
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.arrivals import size_class
from latecomer.runtime.policy.cost_model import Profile, ScheduleCandidate, Times, times
from latecomer.runtime.policy.history import History, ModelCorrection
from latecomer.runtime.policy.on_time import OnTimeTimes, on_time_of, tried
from latecomer.runtime.samebits.option import Bits
from latecomer.verify.errors import ArgumentError

Mode = Literal["native", "static", "predict", "eager", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode)
OFF = "off"
"""What users call mode native while another mode is switched off, or before one is switched on."""
DETERMINISTIC: tuple[Mode, ...] = ("native", "static")
"""Modes that run the same buffer sizes by the same schedules in every step: the same bits."""
LEARNING: tuple[Mode, ...] = ("predict", "eager", "auto")
MOST_ALONE = 32  # ranks that each speak to the coordinator; more do through a tree of heads
FAN_IN = 8
"""Ranks, or heads, to a head. So no rank hears more than some 8 messages for each level of the tree
and operation: 23 at 1,024 ranks (docs/explanation/auto.md)."""


@dataclass(frozen=True)
class Options:
    """Options of the modes, the same on all ranks; :func:`latecomer.configure` has the errors."""

    mode: Mode = "auto"
    late: tuple[int, ...] = ()
    threshold_s: float | None = None
    most_late: int | None = None
    device: OnDevice = "auto"
    bits: Bits = "any"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ArgumentError("mode", self.mode, f"must be one of {', '.join(MODES)}")
        if self.mode == "static" and not self.late:
            raise ArgumentError("late", self.late, "must name who is late", "Or use mode='auto'")
        if self.mode != "static" and self.late:
            remedy = "Leave it out, or use mode='static'"
            raise ArgumentError("late", self.late, f"mode {self.mode} finds out by itself", remedy)
        if self.threshold_s is not None and self.mode != "eager":
            raise ArgumentError("threshold_s", self.threshold_s, "is for mode='eager' only")
        if self.threshold_s is not None and not self.threshold_s >= 0:
            raise ArgumentError("threshold_s", self.threshold_s, "must be 0 or more")
        if self.most_late is not None and self.most_late < 1:
            raise ArgumentError("most_late", self.most_late, "must be 1 or more")

    def at_most_late(self, ranks: int) -> int:
        """Q: how many may be missing when an operation is started; 0 for fewer than 3 ranks."""
        if self.mode in DETERMINISTIC:
            return len(self.late)
        wanted = min(3, max(1, ranks // 4)) if self.most_late is None else self.most_late
        return max(0, min(wanted, ranks - 2))  # one rank alone has nothing to sum up meanwhile


class Chosen(NamedTuple):
    """What a user asks for: options and, where it is known, the profile."""

    options: Options
    profile: Profile | None


def in_mode(options: Options, mode: Mode) -> Options:
    """The same options in another mode, without those that only go with the one before.

    ArgumentError if the mode needs what they do not have.
    """
    late = options.late if mode == "static" else ()
    threshold_s = options.threshold_s if mode == "eager" else None
    return replace(options, mode=mode, late=late, threshold_s=threshold_s)


def require_equal(options: Options, group: StoreExchange) -> None:
    """Raise ArgumentError, with the ranks that differ, unless all have the same options."""
    text = msgspec.json.encode(options).decode()
    differing = group.differing("options", text)
    if differing:
        ranks = ", ".join(map(str, differing))
        theirs = next(iter(differing.values()))
        requirement = f"must be the same on all ranks; rank(s) {ranks}: {theirs}"
        raise ArgumentError("options", text, requirement)


@dataclass
class PolicyInputs:
    """What all decisions are made from; ranks share what history and correction do not enter."""

    options: Options
    world_size: int
    candidates: tuple[ScheduleCandidate, ...]
    profile: Profile
    correction: ModelCorrection = field(default_factory=ModelCorrection)
    head_of: int = 0  # how many ranks, or heads, have a head, itself included; 0: see FAN_IN
    made: int = field(init=False)  # bits: the candidates that, by what is known here, all have made

    def __post_init__(self) -> None:
        self._times = lru_cache(1024)(partial(times, self.candidates, self.profile))
        # by class of sizes: the ways on time that are tried
        self.ways_on_time = cache(partial(tried, candidates=self.candidates, profile=self.profile))
        self.settled_before = on_time_of(self.profile.on_time, self.candidates)
        self.has_ways_on_time = any(candidate.late == 0 for candidate in self.candidates)
        self.speaks_for = cache(lambda rank: self.headed(rank)[2])  # by rank: for these it speaks
        self.made = 0
        for index, candidate in enumerate(self.candidates):
            if not candidate.on_demand:
                self.made |= 1 << index
        self.head_of = self.head_of or (FAN_IN if self.world_size > MOST_ALONE else 1)
        self.stride = self.head_of  # of the ranks that speak to coordinators themselves
        while 1 < self.head_of < self.world_size / self.stride:
            self.stride *= self.head_of

    @cached_property
    def history(self) -> History:
        """The arrivals of the last operations."""
        return History(self.world_size)

    @cached_property
    def on_time(self) -> OnTimeTimes:
        """What operations took for which all ranks were waited for."""
        return OnTimeTimes()

    @cached_property
    def most_late(self) -> int:
        """How many ranks may be missing when an operation is started."""
        most_of_any = max((candidate.late for candidate in self.candidates), default=0)
        return min(most_of_any, self.options.at_most_late(self.world_size))

    def headed(self, rank: int) -> tuple[int | None, list[int], range]:
        """The head above a rank, if any; who speaks to this rank, and for whom it speaks."""
        heard = [rank]
        stride = 1
        above = None
        n = self.world_size
        while stride < self.stride and above is None:
            wider = stride * self.head_of
            if rank % wider:
                above = rank - rank % wider
            else:
                heard += range(rank + stride, min(rank + wider, n), stride)
                stride = wider
        return above, heard, range(rank, min(rank + stride, n))

    def native_s(self, nbytes: int, *, corrected: bool = True) -> float:
        """N: the native all-reduce of ``nbytes`` bytes."""
        predicted_s = self.profile.native_s(nbytes)
        if not corrected:
            return predicted_s
        return self.correction.factor(size_class(nbytes), native=True) * predicted_s

    def together_s(self, nbytes: int) -> float:
        """What an operation takes from the last arrival on if all are waited for, as known here."""
        native_s = self.native_s(nbytes)
        if not self.has_ways_on_time:
            return native_s
        return min(native_s, self.on_time.least_s(nbytes, default_s=native_s))

    def times(
        self,
        late: int,
        nbytes: int,
        corrected: bool = True,
        made: int = -1,
        collective: Collective = ALL_REDUCE,
    ) -> list[Times]:
        """W and C of the candidates in ``made`` (bits) for ``late`` late ranks."""
        predicted = [
            schedule
            for schedule in self._times(late, nbytes, collective)
            if made >> schedule.candidate & 1
        ]
        if not corrected:
            return predicted
        factor = self.correction.factor(size_class(nbytes, collective), native=False)
        return [
            Times(schedule.candidate, factor * schedule.waiting_s, factor * schedule.completion_s)
            for schedule in predicted
        ]

    def wanted(self, nbytes: int) -> Times | None:
        """What ``nbytes`` bytes would run by with one late rank that is late enough, if made."""
        schedules = self.times(1, nbytes, corrected=False)
        return min(schedules, key=lambda schedule: schedule.completion_s, default=None)
