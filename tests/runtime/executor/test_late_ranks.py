"""Late ranks, and lost processes, which all others name."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime
from latecomer.runtime import Executor, Observer, load
from latecomer.runtime.executor.program import rank_program
from latecomer.verify.core.check import check
from latecomer.verify.core.programs import Programs, programs
from latecomer.verify.core.schedule import Phase, Schedule, Transfer
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import ArgumentError, RankFailure, ScheduleRefused
from tests.runtime.jobs import start
from tests.runtime.schedules import arrivals, straggler
from tests.runtime.spawning import on_ranks

TIMEOUT_S = 15.0
"""Until a silent rank is named; that all are done before the test's deadline is the check.

With 6 s a busy machine did not always start a group in time.
"""


@pytest.fixture
def schedule(request):
    """One for all ranks: what a search finds may depend on its time."""
    return arrivals(*request.param) if isinstance(request.param, tuple) else request.param


class _Doors(Observer):
    """Sets a key when this rank has ended the last round of a phase in all operations."""

    def __init__(self, store, schedule, operations):
        self.store = store
        self.operations_left = {phase.name: operations for phase in schedule.phases}
        self.last_round = {phase.name: _last_round_of_rank_0(phase) for phase in schedule.phases}

    def step_ends(self, operation, phase, round):
        if round == self.last_round[phase]:
            self.operations_left[phase] -= 1
        if not self.operations_left[phase]:
            self.store.set(f"{phase} is over", "1")


def _last_round_of_rank_0(phase):
    last = None
    for number, transfers in enumerate(phase.rounds):
        if any(0 in (transfer.src, transfer.dst) for transfer in transfers):
            last = number
    return last


@pytest.mark.parametrize("schedule", [(6, {4: 4, 5: 12}), straggler(4)], indirect=True)
@on_ranks(None, timeout_s=40)
def test_nobody_waits_for_a_late_rank_before_it_is_needed(rank, size, store, schedule):
    """Each late rank comes only after the phase without it is over, in all operations."""
    doors = _Doors(store, schedule, 3) if rank == 0 else None
    executor = Executor(load(schedule), store, rank, size, timeout_s=30, observer=doors)

    if rank in schedule.late:
        phases_without = [phase.name for phase in schedule.phases if rank in phase.absent]
        store.wait([f"{phases_without[-1]} is over"])

    operations = [executor.submit(torch.full((500,), float(rank))) for _ in range(3)]
    total = size * (size - 1) / 2
    assert [operation.wait()[0].item() for operation in operations] == [total] * 3
    executor.close()


@given(st.permutations(range(6)), st.integers(1, 3))
def test_late_ranks_take_each_others_places_in_order_of_arrival(order, q):
    rounds = dict(zip((3, 4, 5)[:q], (4, 1, 9), strict=False))
    verified = load(arrivals(6, rounds))
    assert verified.late == tuple(sorted(rounds, key=rounds.get))

    late = tuple(order[:q])
    renamed = verified.for_late(late)

    assert check(renamed).verdict is Verdict.PROVED
    assert load(renamed).late == late
    for phase, renamed_phase in zip(verified.schedule.phases, renamed.phases, strict=True):
        absent = [late[verified.late.index(rank)] for rank in phase.absent]
        assert renamed_phase.absent == tuple(sorted(absent))

    # between ranks that are late in neither, all is as it was
    untouched = set(range(6)) - set(late) - set(verified.late)
    for pair in _links(renamed) ^ _links(verified.schedule):
        assert not untouched.issuperset(pair)


def _links(schedule):
    """The pairs of ranks, source and destination, between which the schedule moves something."""
    links = set()
    for _, _, transfers in schedule.located_rounds():
        links.update((transfer.src, transfer.dst) for transfer in transfers)
    return links


def test_late_ranks_that_do_not_fit_the_schedule_are_refused():
    two_late = load(arrivals(4, {2: 1, 3: 3}))
    for late, message in [
        (1, "is for 2 late rank"),
        ((0, 1, 2), "is for 2 late rank"),
        ((), "is for 2 late rank"),
        ((1, 1), "each once"),
        ((1, 4), "0..3"),
        (-1, "0..3"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            two_late.for_late(late)

    exchange = (Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 0, "reduce"))
    on_time = load(Schedule(ranks=2, chunks=1, phases=(Phase("all", (), (exchange,)),)))
    assert on_time.for_late(()) == on_time.for_late(None) == on_time.schedule
    with pytest.raises(ArgumentError, match="has no late rank"):
        on_time.for_late(1)


@pytest.mark.parametrize("schedule", [(4, {2: 1, 3: 3})], indirect=True)
@on_ranks(4)
def test_ranks_that_disagree_on_who_is_late_refuse_to_start(rank, size, store, schedule):
    late = (1, 2) if rank else (2, 1)
    with pytest.raises(ScheduleRefused, match="to be late") as refused:
        Executor(load(schedule), store, rank, size, late=late, timeout_s=10)
    if rank == 0:
        assert "(2, 1)" in str(refused.value)
        assert "(1, 2)" in str(refused.value)


def test_new_names_whose_programs_are_not_proved_are_refused(monkeypatch):
    """As if only the last rank knew the new names."""
    verified = load(arrivals(6, {5: 2}))
    with_names_of_file = programs(verified.schedule)

    def mixed(schedule):
        with_new_names = programs(schedule)
        of_first_ranks = with_names_of_file.rank < 5
        of_last_rank = with_new_names.rank == 5
        columns = {}
        for name in Programs.__struct_fields__:
            first = getattr(with_names_of_file, name)[of_first_ranks]
            last = getattr(with_new_names, name)[of_last_rank]
            columns[name] = np.concatenate([first, last])
        columns["step"] += len(columns["rank"]) * columns["rank"]  # still growing
        return Programs(**columns)

    assert verified.for_late(0).late == (0,)
    monkeypatch.setattr("latecomer.runtime.executor.load.programs", mixed)
    with pytest.raises(ScheduleRefused, match="as late ranks is not proved"):
        verified.for_late(0)


def test_the_programs_that_are_proved_for_new_names_are_those_that_run(monkeypatch):
    verified = load(arrivals(6, {5: 2}))
    renamed = verified.for_late(0)
    expected = rank_program(renamed, 1)
    made_for = []

    def counted(schedule):
        made_for.append(schedule)
        return programs(schedule)

    monkeypatch.setattr("latecomer.runtime.executor.load.programs", counted)
    monkeypatch.setattr("latecomer.runtime.executor.program.programs", counted)

    program = verified.program(1, (0,))

    assert made_for == [renamed]
    assert program == expected


class Signal(Observer):
    """The rank sends itself a signal at a step: (operation, phase, round)."""

    def __init__(self, number, step):
        self.number = number
        self.step = step

    def step_begins(self, operation, phase, round):
        if (operation, phase, round) == self.step:
            os.kill(os.getpid(), self.number)


ONE_LATE = straggler(4)
KILL = signal.SIGKILL


@pytest.mark.parametrize(
    ("number", "step", "victim"),
    [(KILL, (2, "reduce_scatter", 1), 2), (signal.SIGSTOP, (1, "completion", 2), 2)],
)
@on_ranks(4, timeout_s=40)
def test_a_lost_process_is_named_by_all_others(rank, size, store, number, step, victim):
    """Real processes; tests/runtime/executor/test_lost_ranks.py has all places and faults."""
    observer = Signal(number, step) if rank == victim else None
    executor = Executor(load(ONE_LATE), store, rank, size, timeout_s=TIMEOUT_S, observer=observer)

    def run():
        for _ in range(5):
            executor.submit(torch.ones(50_000)).wait()

    with pytest.raises(RankFailure) as failed:
        run()
    assert failed.value.ranks == (victim,)
    executor.close()


@pytest.mark.parametrize("backend", ["gloo", "latecomer"])
@on_ranks(4, timeout_s=40, victims={1})
def test_backward_raises_and_names_the_rank(rank, size, store, backend):
    """By the hook and by the backend."""
    start(rank, size, store, ONE_LATE, timeout_s=TIMEOUT_S, backend=backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(30, 30))
    if backend == "gloo":
        runtime.ddp.attach(model, ONE_LATE, timeout_s=TIMEOUT_S)
    for _ in range(2):
        model(torch.ones(4, 30)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), KILL)
    with pytest.raises((RuntimeError, RankFailure), match="rank 1: dead or stopped"):
        model(torch.ones(4, 30)).sum().backward()
