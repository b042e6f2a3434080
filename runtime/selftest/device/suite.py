"""``latecomer selftest --device cuda``: are this machine's GPUs right, and how fast.

One process per rank (where GPUs are few, several on each, as far as NCCL and symmetric memory let
them) reports what the machine is, checks all methods case by case, and times them. The first
failure of a rank ends it: one that raises, dies, or hangs is named within :attr:`Plan.limit_s` and
a grace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from latecomer.runtime.device import predict
from latecomer.runtime.host import host
from latecomer.runtime.network.processes import RanksFailed, Say, talk
from latecomer.runtime.selftest.device import cases, measure
from latecomer.runtime.selftest.device.cases import OperationCase, all_cases
from latecomer.runtime.selftest.device.environment import Environment, inspect
from latecomer.runtime.selftest.device.methods import MakeMethod, Method, NotTried
from latecomer.runtime.selftest.device.rank import RankContext, join_group
from latecomer.runtime.selftest.device.report import (
    OURS,
    CheckedMethod,
    GpuReport,
    TimedRow,
    size_text,
    table_head,
)
from latecomer.runtime.selftest.device.schedules import TestedSchedules
from latecomer.runtime.selftest.device.watch import Stuck, name_hanging, watched
from latecomer.runtime.torch_versions import Store

KIB = 2**10
MIB = 2**20
GIB = 2**30
GRACE_S = 5.0  # from the first rank that says it hangs: the others' time to say where they are
LATE_S = 0.002  # how long late ranks are held up in a case
LATE_FACTOR = 3  # and in the table, at least: times what an operation takes when none is late
BUFFERS_FREE = 4  # times the buffer, and
BYTES_FREE = GIB  # so many bytes, must be free for each rank of a GPU
MANY_REPETITIONS = 16 * MIB  # larger tensors are timed a quarter as often


@dataclass(frozen=True)
class SelftestPlan:
    """What is tried: methods, cases, bytes of the table, and the most time a step may take.

    Ranks are taken for those of so many ``machines``.
    """

    kind: str
    methods: Mapping[str, MakeMethod]
    cases: tuple[OperationCase, ...] = all_cases(1, 7, 1000, 65537, 8 * MIB + 3)
    table_sizes: tuple[int, ...] = tuple(64 * KIB * 4**i for i in range(8))
    repetitions: int = 20
    limit_s: float = 120.0  # the first operation compiles its kernel
    deadline_s: float = 3600.0  # for all of it
    machines: int = 1

    @classmethod
    def simulated(cls, methods: Mapping[str, MakeMethod], machines: int) -> SelftestPlan:
        """What the simulated device does within a minute or so: the interpreter is slow."""
        few_cases = (
            OperationCase(torch.float32, 1, average=False),
            OperationCase(torch.float16, 999, average=True),
            OperationCase(torch.bfloat16, 7, average=False),
        )
        return cls(
            "simulated", methods, few_cases, table_sizes=(KIB,), repetitions=1, machines=machines
        )


def run(plan: SelftestPlan, report: GpuReport, say: Callable[[str], None]) -> None:
    """Try all of it; ``report`` grows with what is found, lines for people go to ``say``."""
    report.error = "it did not come to its end"
    stuck_ranks = dict[int, Stuck]()
    grace_ends_s = float("inf")
    messages: Any = talk(
        _run_on_rank, report.ranks, plan, timeout_s=plan.limit_s, deadline_s=plan.deadline_s
    )
    try:
        with closing(messages):
            for message in messages:
                if isinstance(message, Stuck):
                    stuck_ranks[message.rank] = message
                    grace_ends_s = min(grace_ends_s, host.monotonic() + GRACE_S)
                else:
                    _add_to_report(report, message, say)
                all_stuck = len(stuck_ranks) == report.ranks
                if stuck_ranks and (all_stuck or host.monotonic() > grace_ends_s):
                    raise RanksFailed(name_hanging(stuck_ranks, report.ranks))
        report.error = ""
    except RanksFailed as failure:
        report.error = str(failure)
        say(f"FAILED: {failure}")


def _add_to_report(report: GpuReport, message: Any, say: Callable[[str], None]) -> None:
    """Keep what rank 0 says, and print it."""
    if isinstance(message, Environment):
        report.environment = message
        for line in message.lines():
            say(line)
    elif isinstance(message, CheckedMethod):
        report.checked.append(message)
        verdict = f"{message.wrong} WRONG ({message.first})" if message.wrong else "right"
        say(f"{message.way:<10} {message.schedule:<28} {message.cases:>3} cases  {verdict}")
    elif isinstance(message, TimedRow):
        if not report.rows:
            for line in table_head(message.shared):
                say(line)
        report.rows.append(message)
        say(message.line())
    else:
        name, reason = message
        report.not_tried[name] = reason
        say(f"not tried: {name}: {reason}")


def _run_on_rank(store: Store, rank: int, world_size: int, say: Say, plan: SelftestPlan) -> None:
    """What each process does; rank 0 says what was found, all say if they hang."""
    context = join_group(plan.kind, store, rank, world_size, plan.limit_s, plan.machines)
    with watched(context, say, plan.limit_s):
        tell = say if rank == 0 else _say_nothing
        tell(inspect())
        suite = _SuiteOnRank(context, plan, tell)
        suite.make_methods()
        suite.check_ours()
        suite.time_all()
        suite.close()
    dist.destroy_process_group()


def _say_nothing(message: Any) -> None:
    """Of ranks other than 0: they found the same."""


class _SuiteOnRank:
    """One rank's part; all ranks call the same methods in the same order."""

    def __init__(self, context: RankContext, plan: SelftestPlan, tell: Say) -> None:
        machine = None
        if not context.shared:
            machine = predict.machine_of(torch.cuda.get_device_name())
        self._context = context
        self._plan = plan
        self._tell = tell
        self._schedules = TestedSchedules(
            context.world_size, plan.table_sizes, machine or predict.H100, plan.machines
        )
        self._methods = dict[str, Method]()

    def make_methods(self) -> None:
        """All that can be tried here."""
        for name, make in self._plan.methods.items():
            self._context.advance(f"makes {name}")
            try:
                self._methods[name] = make(self._context, self._schedules.verified)
            except NotTried as reason:
                self._tell((name, str(reason)))

    def check_ours(self) -> None:
        """Ours, on schedules of each kind; where one is for a late rank, all are it in turn."""
        for name in OURS:
            if name in self._methods:
                for checked in self._check(name):
                    self._tell(checked)

    def _check(self, name: str) -> Iterator[CheckedMethod]:
        method = self._methods[name]
        for schedule_name, choice, late in self._schedules.cases(name):
            wrong, first = cases.check(
                method, self._context, self._plan.cases, choice, late_s={late: LATE_S}
            )
            yield CheckedMethod(
                way=name,
                schedule=f"{schedule_name}, rank {late} held up",
                cases=len(self._plan.cases),
                wrong=wrong,
                first=first,
            )

    def time_all(self) -> None:
        """The table, size by size; what can't take a size is not tried with those after it."""
        closing_s = measure.barrier_s(self._context)
        for nbytes in self._plan.table_sizes:
            if reason := self._context.agree(_lack_of_memory(self._context, nbytes)):
                self._tell((size_text(nbytes), reason))
                continue
            for name in list(self._methods):
                try:
                    for row in self._time(name, nbytes, closing_s):
                        predicted = self._schedules.predicted(row)
                        self._tell(msgspec.structs.replace(row, predicted=predicted))
                except NotTried as error:
                    self._tell((name, str(error)))
                    self._methods.pop(name).close()

    def _time(self, name: str, nbytes: int, closing_s: float) -> Iterator[TimedRow]:
        """A method at one size: first with no rank late, which tells how late is late."""
        context = self._context
        method = self._methods[name]
        dtype = torch.float32
        tensor = method.buffer(nbytes // dtype.itemsize, dtype)
        repetitions = self._plan.repetitions
        if nbytes > MANY_REPETITIONS:
            repetitions = max(2, repetitions // 4)

        median_s = 0.0
        for late in (None, context.world_size - 1):
            choice = self._schedules.best(name, nbytes, late)
            late_s = 0.0
            if late is None:
                late_s = measure.LEAD_S
            elif late == context.rank:
                late_s = LATE_FACTOR * median_s + measure.LEAD_S

            time_s = partial(
                measure.time_s,
                method,
                context,
                tensor,
                choice,
                late_s=late_s,
                repetitions=repetitions,
                closing_s=closing_s,
            )
            median_s, wrong = time_s(by_host=False)
            host_s = None
            chunks = None
            if name in OURS:
                host_s, wrong_by_host = time_s(by_host=True)
                wrong += wrong_by_host
                chunks = self._schedules.chunks(choice)
            yield TimedRow(
                nbytes=nbytes,
                dtype=str(dtype).removeprefix("torch."),
                way=name,
                ranks=context.world_size,
                late=late,
                chunks=chunks,
                time_s=median_s,
                host_s=host_s,
                repetitions=repetitions,
                wrong=wrong,
                shared=context.shared,
            )

    def close(self) -> None:
        """Close all methods."""
        for method in self._methods.values():
            self._context.advance("closes")
            method.close()


def _lack_of_memory(context: RankContext, nbytes: int) -> str:
    """Why tensors of ``nbytes`` can't be timed on this rank's GPU; "" if they can."""
    if context.kind != "cuda":
        return ""
    ranks_per_gpu = -(-context.world_size // torch.cuda.device_count())
    needed = (BUFFERS_FREE * nbytes + BYTES_FREE) * ranks_per_gpu
    free, _ = torch.cuda.mem_get_info()
    return f"needs {needed / GIB:.1f} GiB of free memory on each GPU" if free < needed else ""
