"""How an operation runs for which all ranks are waited for: natively, or by a schedule on time.

Which way is fastest depends on the network, the size and the processors, so it is found out with
the job's own operations, for each collective and class of sizes (powers of two) by itself:

    operations of a class   │ 1, 2, 3, ... some dozens            │ from then on
    run                     │ by each way that might be fastest,  │ by the one that was; to compare,
                            │ mixed                               │ one in 48 runs natively, and
                            │                                     │ one in 48 by any of the ways

The coordinator learns how long each took, from the last arrival to the last result. What it settles
on is part of the next epoch, so all ranks change over at the same operation; and it settles anew
where another way turns out to be faster. No operation waits for any of it.

Where processors are busy the same way takes half or twice its time from one operation to the next,
so few of them would say little.
"""

from __future__ import annotations

import statistics
import zlib
from collections import deque
from collections.abc import Callable, Mapping

from latecomer.runtime.collective import COLLECTIVES
from latecomer.runtime.policy.arrivals import CLASSES, of_size_class, size_class
from latecomer.runtime.policy.cost_model import Profile, ScheduleCandidate, times
from latecomer.runtime.policy.messages import NATIVE, Epoch, OnTime

ENOUGH = 16  # operations by each way, before one is settled on
KEPT = 32  # last operations by each way
MOST_SCHEDULES = 3  # that are tried for a class: the fastest by the profile,
HOPELESS = 2.0  # unless they are predicted to take so many times the fastest one's time,
FAR = 4.0  # or so many times the native all-reduce's
LEAST_GAIN = 0.05  # what a way has to take less than the native all-reduce, or the one in use
SELDOM = 3  # native operations for each one by a schedule, where none is predicted to gain that
LIBRARY = "native"  # in a profile: the library's all-reduce
TRIED_FOR = 4000
"""Operations of an epoch in which ways are tried: a model may have dozens of classes. Where the
coordinator hears nothing, since a firewall stops UDP, nothing is ever settled, and what is slow
must not be tried for ever."""
COMPARED = 48
"""Of so many operations one runs natively, and one by any of the ways, so that it is known what
they take by now."""
TO_COMPARE = f"to compare: one in {COMPARED} runs natively where a schedule might be faster"
TRYING_AGAIN = f"to compare: one in {COMPARED} runs by any of the ways that may be fastest on time"
TRYING = "one of the ways that may be fastest on time, each of which is tried"
FASTEST = "the fastest of the ways on time that were tried"
NOT_FOUND = "natively, since it was not found out in time how it is fastest"


def is_to_compare(operation: int) -> bool:
    """Whether an operation runs natively in any case, to measure what that takes.

    Which ones looks random, but all ranks find the same. Every 48th one would not do: of a training
    step of 8 buckets that is always the same bucket.
    """
    return _mixed(operation) % COMPARED == 0


def is_tried_again(operation: int) -> bool:
    """Whether an operation runs by any of the ways, though one of them is settled on."""
    return _mixed(operation) % COMPARED == 1


def are_tried(epoch: Epoch, operation: int, of_class: int) -> bool:
    """Whether it is still being found out how operations of a class are fastest."""
    is_settled = any(each == of_class for each, _ in epoch.on_time)
    return not is_settled and operation < epoch.first + TRIED_FOR


def tried(
    of_class: int, candidates: tuple[ScheduleCandidate, ...], profile: Profile
) -> tuple[int, ...]:
    """The ways among which the fastest for a class is looked for; alike on all ranks.

    Each is tried as often as it is in it: where the profile promises no gain by any schedule, the
    native way most of the time.
    """
    collective, middle = of_size_class(of_class)
    known = times(candidates, profile, 0, middle, collective)
    schedules = sorted(known, key=lambda each: each.waiting_s)
    native_s = profile.native_s(middle)
    limit_s = min([HOPELESS * each.waiting_s for each in schedules] + [FAR * native_s])
    likely = [each.candidate for each in schedules if each.waiting_s <= limit_s][:MOST_SCHEDULES]

    is_promising = any(each.waiting_s < (1 - LEAST_GAIN) * native_s for each in schedules)
    natively = 1 if is_promising else max(1, SELDOM * len(likely))
    return (*[NATIVE] * natively, *likely)


def named(on_time: OnTime, candidates: tuple[ScheduleCandidate, ...]) -> dict[int, str]:
    """What was settled on, by names: as a profile keeps it."""
    return {
        of_class: LIBRARY if way == NATIVE else candidates[way].name for of_class, way in on_time
    }


def on_time_of(names: Mapping[int, str], candidates: tuple[ScheduleCandidate, ...]) -> OnTime:
    """The reverse; names of schedules that there are no more are left out."""
    ways = {
        (each.collective, each.name): index
        for index, each in enumerate(candidates)
        if each.late == 0
    }
    ways |= {(collective, LIBRARY): NATIVE for collective in COLLECTIVES}

    on_time = []
    for of_class, name in sorted(names.items()):
        if of_class not in CLASSES:
            continue
        collective, _ = of_size_class(of_class)
        if (collective, name) in ways:
            on_time.append((of_class, ways[collective, name]))
    return tuple(on_time)


def way_on_time(
    epoch: Epoch, operation: int, of_class: int, ways: tuple[int, ...]
) -> tuple[int, str]:
    """The candidate by which an operation runs, or NATIVE; and why. ``ways``: of :func:`tried`."""
    settled = dict(epoch.on_time).get(of_class)
    any_way = ways[_mixed(operation) // COMPARED % len(ways)]
    if settled is not None:
        if is_to_compare(operation):
            return NATIVE, TO_COMPARE
        return (any_way, TRYING_AGAIN) if is_tried_again(operation) else (settled, FASTEST)
    if are_tried(epoch, operation, of_class):
        return any_way, TRYING
    return NATIVE, NOT_FOUND


class OnTimeTimes:
    """How long operations took for which all ranks were waited for, by class and way."""

    def __init__(self) -> None:
        self.added = 0  # operations
        self._took_s: dict[int, dict[int, deque[float]]] = {}

    def add(self, of_class: int, candidate: int, took_s: float) -> None:
        """One operation, from the last arrival to the last result."""
        ways = self._took_s.setdefault(of_class, {})
        ways.setdefault(candidate, deque(maxlen=KEPT)).append(took_s)
        self.added += 1

    def least_s(self, nbytes: int, default_s: float) -> float:
        """What all-reduces of this size took by the fastest way of which enough are known."""
        by_way = self._took_s.get(size_class(nbytes), {}).values()
        medians_s = [statistics.median(took_s) for took_s in by_way if len(took_s) >= ENOUGH]
        return min(medians_s, default=default_s)

    def settled(self, before: OnTime, ways_of: Callable[[int], tuple[int, ...]]) -> OnTime:
        """What to settle on, given what was ``before``; ``ways_of``: :func:`tried`, by class."""
        table = dict(before)
        for of_class, took_s in self._took_s.items():
            ways = ways_of(of_class)
            medians_s = {
                way: statistics.median(took_s[way])
                for way in ways
                if len(took_s.get(way, ())) >= ENOUGH
            }
            in_use = table.get(of_class, NATIVE)
            is_known = of_class in table or len(medians_s) == len(set(ways))
            if is_known and in_use in medians_s:
                table[of_class] = _fastest(medians_s, in_use)
        return tuple(sorted(table.items()))


def _fastest(medians_s: Mapping[int, float], in_use: int) -> int:
    """The fastest way, or the one in use if that does not gain enough."""
    way = min(medians_s, key=lambda each: medians_s[each])
    return way if medians_s[way] < (1 - LEAST_GAIN) * medians_s[in_use] else in_use


def _mixed(operation: int) -> int:
    """A number that looks random, and is the same on all ranks."""
    return zlib.crc32(operation.to_bytes(8))
