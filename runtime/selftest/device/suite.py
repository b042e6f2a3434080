"""``python -m runtime selftest --device cuda``: are this machine's GPUs right, and how fast.

One process per rank (where GPUs are few, several on each, as far as NCCL and symmetric memory let
them) reports what the machine is, checks all ways case by case, and times them. The first failure
of a rank ends it: one that raises, dies, or hangs is named within :attr:`Plan.limit_s` and a grace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from runtime.device import predict
from runtime.network.processes import RanksFailed, Say, talk
from runtime.selftest.device import cases, measure
from runtime.selftest.device.cases import Case, every
from runtime.selftest.device.environment import Environment, look
from runtime.selftest.device.methods import FLOATS, Make, Method, NotTried, What
from runtime.selftest.device.place import Place, stand
from runtime.selftest.device.report import OURS, Checked, Report, Row, head, size_text
from runtime.selftest.device.schedules import CASE_CHUNKS, Schedules
from runtime.selftest.device.watch import Stuck, behind, watched
from runtime.torch_versions import Store

KIB = 2**10
MIB = 2**20
GIB = 2**30
GRACE_S = 5.0  # from the first rank that says it hangs: the others' time to say where they are
LATE_S = 0.002  # how long late ranks are held up in a case
MUCH = 3  # and in the table, at least: times what an operation takes when none is late
ROOM = 4, GIB  # times the buffer, and bytes, that must be free for each rank of a GPU


@dataclass(frozen=True)
class Plan:
    """What is tried: ways, cases, bytes of the table, and the most time that a step may take."""

    kind: str
    ways: Mapping[str, Make]
    cases: tuple[Case, ...] = every(1, 7, 1000, 65537, 8 * MIB + 3)
    table_sizes: tuple[int, ...] = tuple(64 * KIB * 4**i for i in range(8))
    repetitions: int = 20
    limit_s: float = 120.0  # the first operation compiles its kernel
    whole_s: float = 3600.0

    @classmethod
    def simulated(cls, ways: Mapping[str, Make]) -> Plan:
        """What the simulated device does within a minute or so: the interpreter is slow."""
        few = zip(FLOATS, (1, 999, 7), (False, True, False), strict=True)
        return cls("simulated", ways, tuple(starmap(Case, few)), (KIB,), repetitions=1)


def run(plan: Plan, report: Report, say: Callable[[str], None]) -> None:
    """Try all of it; ``report`` grows with what was found, lines for people go to ``say``."""
    report.error = "it did not come to its end"
    hang = dict[int, Stuck]()
    until_s = float("inf")
    limits = {"timeout_s": plan.limit_s, "deadline_s": plan.whole_s}
    words: Any = talk(_rank, report.ranks, plan, **limits)
    try:
        with closing(words):
            for word in words:
                if isinstance(word, Stuck):
                    hang[word.rank] = word
                    until_s = min(until_s, time.monotonic() + GRACE_S)
                else:
                    _take(report, word, say)
                if hang and (len(hang) == report.ranks or time.monotonic() > until_s):
                    raise RanksFailed(behind(hang, report.ranks))
        report.error = ""
    except RanksFailed as failure:
        report.error = str(failure)
        say(f"FAILED: {failure}")


def _take(report: Report, word: Any, say: Callable[[str], None]) -> None:
    if isinstance(word, Environment):
        report.environment = word
        for line in word.lines():
            say(line)
    elif isinstance(word, Checked):
        report.checked.append(word)
        verdict = f"{word.wrong} WRONG ({word.first})" if word.wrong else "right"
        say(f"{word.way:<10} {word.schedule:<28} {word.cases:>3} cases  {verdict}")
    elif isinstance(word, Row):
        if not report.rows:
            for line in head(word.shared):
                say(line)
        report.rows.append(word)
        say(word.line())
    else:
        way, reason = word
        report.not_tried[way] = reason
        say(f"not tried: {way}: {reason}")


def _rank(store: Store, rank: int, size: int, say: Say, plan: Plan) -> None:
    place = stand(plan.kind, store, rank, size, plan.limit_s)
    tell = say if rank == 0 else lambda word: None
    with watched(place, say, plan.limit_s):
        tell(look())
        machine = None if place.shared else predict.machine_of(torch.cuda.get_device_name())
        known = Schedules(size, plan.table_sizes, machine or predict.H100)
        made: dict[str, Method] = {}
        for way, make in plan.ways.items():
            place.advance(f"makes {way}")
            try:
                made[way] = make(place, known.verified)
            except NotTried as reason:
                tell((way, str(reason)))
        for way in OURS:
            if way in made:
                for found in _checks(way, made[way], place, plan, known):
                    tell(found)
        closing_s = measure.barrier_s(place)
        for nbytes in plan.table_sizes:
            if short := place.agree(_no_room(place, nbytes)):
                tell((size_text(nbytes), short))
                continue
            for way in list(made):
                try:
                    for row in _rows(way, made[way], place, plan, known, nbytes, closing_s):
                        tell(msgspec.structs.replace(row, predicted=known.predicted(row)))
                except NotTried as reason:
                    tell((way, str(reason)))
                    made.pop(way).close()
        for method in made.values():
            place.advance("closes")
            method.close()
    dist.destroy_process_group()


def _checks(
    way: str, method: Method, place: Place, plan: Plan, known: Schedules
) -> Iterator[Checked]:
    """One of ours on schedules of each kind; where one is for a late rank, all are it in turn."""
    last = place.size - 1
    runs = [("halving-doubling", What(0), last), ("direct", What(1), last)]
    runs += [("one late", known.one_late(CASE_CHUNKS, rank), rank) for rank in range(place.size)]
    for name, what, rank in runs:
        wrong, first = cases.check(method, place, plan.cases, what, {rank: LATE_S})
        yield Checked(way, f"{name}, rank {rank} held up", len(plan.cases), wrong, first)


def _rows(
    way: str,
    method: Method,
    place: Place,
    plan: Plan,
    known: Schedules,
    nbytes: int,
    closing_s: float,
) -> Iterator[Row]:
    """A way at one size: first with no rank late, which tells how late is late."""
    dtype = torch.float32
    took_s = 0.0
    tensor = method.buffer(nbytes // dtype.itemsize, dtype)
    for late in (None, place.size - 1):
        what = known.best(way, nbytes, late)
        much_s = MUCH * took_s + measure.LEAD_S
        late_s = measure.LEAD_S if late is None else much_s if late == place.rank else 0.0
        times = plan.repetitions if nbytes <= 16 * MIB else max(2, plan.repetitions // 4)
        how = method, place, tensor, what, late_s, times, closing_s
        took_s, wrong = measure.time_s(*how, by_host=False)
        host_s = None
        if way in OURS:
            host_s, more = measure.time_s(*how, by_host=True)
            wrong += more
        chunks = known.verified[what.schedule].schedule.chunks if way in OURS else None
        where = nbytes, str(dtype).removeprefix("torch."), way, place.size, late, chunks
        yield Row(*where, took_s, host_s, times, wrong, place.shared)


def _no_room(place: Place, nbytes: int) -> str:
    if place.kind != "cuda":
        return ""
    needed = (ROOM[0] * nbytes + ROOM[1]) * -(-place.size // torch.cuda.device_count())
    is_short = torch.cuda.mem_get_info()[0] < needed
    return f"needs {needed / GIB:.1f} GiB of free memory on each GPU" if is_short else ""
