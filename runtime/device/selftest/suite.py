"""``python -m runtime selftest --device cuda``: are this machine's GPUs right, and how fast.

One process per rank (where GPUs are few, several on each, as far as NCCL and symmetric memory let
them) reports what the machine is, checks all ways case by case, and times them. The first failure
of a rank ends it: one that raises, dies, or hangs is named within :attr:`Plan.limit_s` and a grace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import Any

import torch
import torch.distributed as dist

import synth
from runtime.device import predict
from runtime.device.selftest import cases, measure
from runtime.device.selftest.cases import Case, every
from runtime.device.selftest.environment import Environment, look
from runtime.device.selftest.methods import FLOATS, Make, Method, NotTried
from runtime.device.selftest.place import Place, stand
from runtime.device.selftest.report import Checked, Report, Row, head
from runtime.device.selftest.watch import Stuck, behind, watched
from runtime.executor.load import Verified, load
from runtime.selftest.processes import RanksFailed, Say, talk
from runtime.torch_versions import Store
from verify.core.schedule import Schedule

KIB, MIB, GIB = 2**10, 2**20, 2**30
GRACE_S = 5.0  # from the first rank that says it hangs: the others' time to say where they are
LATE_S = 0.002  # how long late ranks are held up in a case
MUCH = 3, 0.0005  # and in the table: times what an operation takes when none is late, and seconds
ROOM = 4, GIB  # times the buffer, and bytes, that must be free for each rank of a GPU
OURS = "kernel", "transfers"


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
        few = zip(FLOATS, (1, 99, 7), (False, True, False), strict=True)
        return cls("simulated", ways, tuple(starmap(Case, few)), (KIB,), repetitions=1)


def run(plan: Plan, report: Report, say: Callable[[str], None]) -> None:
    """Try all of it; ``report`` grows with what was found, lines for people go to ``say``."""
    hang, until_s = dict[int, Stuck](), float("inf")
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
        tried = dict(plan.ways)

        def each(of: Callable[[str, Make], Iterator[Any]]) -> None:
            for way, make in list(tried.items()):
                try:
                    for found in of(way, make):
                        tell(found)
                except NotTried as reason:
                    tell((way, str(reason)))
                    del tried[way]

        each(lambda way, make: _checks(way, make, place, plan))
        closing_s = measure.barrier_s(place)
        for nbytes in plan.table_sizes:
            if reason := place.agree(_no_room(place, nbytes)):
                tell((f"{nbytes} bytes", reason))
            else:
                each(partial(_rows, place=place, plan=plan, nbytes=nbytes, closing_s=closing_s))
    dist.destroy_process_group()


def _checks(way: str, make: Make, place: Place, plan: Plan) -> Iterator[Checked]:
    """A way on all its schedules; each rank late in turn where a schedule has a late rank."""
    if way not in OURS:
        return  # what is wrong with others' ways, the table shows
    schedules = {
        "halving-doubling": synth.rhd(place.size),
        "direct": synth.direct(place.size),
        "one late": synth.generate(place.size, chunks=3),
    }
    for name, schedule in schedules.items():
        verified = load(schedule)
        for rank in range(place.size) if verified.late else (place.size - 1,):
            late = (rank,) if verified.late else ()
            with _made(make, place, verified, late) as method:
                what = f"{name}, rank {rank} held up"
                yield cases.check(way, method, place, plan.cases, {rank: LATE_S}, what)


def _rows(
    way: str, make: Make, place: Place, plan: Plan, nbytes: int, closing_s: float
) -> Iterator[Row]:
    """A way at one size: first with no rank late, which tells how late is late."""
    dtype, size = torch.float32, place.size
    machine = None if place.shared else predict.machine_of(torch.cuda.get_device_name())
    took_s = 0.0
    for late in (None, size - 1):
        verified = load(schedule_for(way, size, nbytes, machine, late=late is not None))
        late_s = MUCH[0] * took_s + MUCH[1] if late == place.rank else 0.0
        ranks = () if late is None else (late,)
        with _made(make, place, verified, ranks) as method:
            tensor = method.buffer(nbytes // dtype.itemsize, dtype)
            times = plan.repetitions if nbytes <= 16 * MIB else max(2, plan.repetitions // 4)
            how = method, place, tensor, late_s, times, closing_s
            took_s, wrong = measure.time_s(*how, by_host=False)
            host_s = None
            if way in OURS:
                host_s, more = measure.time_s(*how, by_host=True)
                wrong += more
            del tensor, how
        chunks = verified.schedule.chunks if way in OURS else None
        known = predicted(way, verified.schedule, nbytes, machine, late=late is not None)
        where = nbytes, str(dtype).removeprefix("torch."), way, size, late, chunks
        yield Row(*where, took_s, host_s, times, wrong, place.shared, known)


def schedule_for(
    way: str, n: int, nbytes: int, machine: predict.Machine | None, *, late: bool
) -> Schedule:
    """What ours runs: the best number of chunks for a late rank, halving-doubling for none."""
    if not late:
        return synth.rhd(n)
    return synth.generate(n, chunks=predict.chunks(way, n, nbytes, machine or predict.H100))


def predicted(
    way: str, schedule: Schedule, nbytes: int, machine: predict.Machine | None, *, late: bool
) -> predict.Range | None:
    """What is predicted for a row; nothing for machines without public numbers."""
    if machine is None:
        return None
    if way in OURS:
        return predict.ours(way, schedule, nbytes, machine, late=late)
    return predict.others(way, schedule.ranks, nbytes, machine)


@contextmanager
def _made(make: Make, place: Place, verified: Verified, late: tuple[int, ...]) -> Iterator[Method]:
    place.advance("makes a way")
    place.device.made.clear()
    with closing(make(place, verified, late)) as method:
        yield method


def _no_room(place: Place, nbytes: int) -> str:
    if place.kind != "cuda":
        return ""
    free, _ = torch.cuda.mem_get_info()
    each = -(-place.size // torch.cuda.device_count())
    short = free < (ROOM[0] * nbytes + ROOM[1]) * each
    return f"{free / GIB:.1f} GiB free on the GPU" if short else ""
