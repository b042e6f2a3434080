"""Late ranks, with real sleeps, and lost ones, at named places, which all others name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
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
from tests.runtime.spawning import on_ranks, together

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


class _Slow(Observer):
    def step_begins(self, operation, phase, round):
        time.sleep(1.4)


@pytest.mark.parametrize("schedule", [(4, {3: 2})], indirect=True)
@on_ranks(4, timeout_s=80)
def test_a_wait_for_a_late_rank_is_not_held_against_those_between(rank, size, store, schedule):
    """The late rank needs longer, all in all, than a wait may last; but it is never silent."""
    is_late = rank in schedule.late
    observer = _Slow() if is_late else None
    executor = Executor(load(schedule), store, rank, size, timeout_s=6.0, observer=observer)
    if is_late:
        time.sleep(2.4)

    began_s = time.monotonic()
    assert executor.submit(torch.ones(10)).wait()[0].item() == 4.0
    executor.close()

    if not is_late:
        assert time.monotonic() - began_s > 6.0


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


class Fault(Observer):
    """Does something drastic at a step: (operation, phase, round).

    ``kind`` is a signal, which the rank sends itself, or "stick" or "raise".
    """

    def __init__(self, kind, step):
        self.kind = kind
        self.step = step

    def step_begins(self, operation, phase, round):
        if (operation, phase, round) != self.step:
            return
        if self.kind == "stick":
            time.sleep(600)  # killed before
        elif self.kind == "raise":
            raise RuntimeError("injected")
        else:
            os.kill(os.getpid(), self.kind)


ONE_LATE = straggler(4)
TWO_LATE = arrivals(4, {2: 1, 3: 3})
KILL = signal.SIGKILL
STOP = signal.SIGSTOP
CASES = [
    (ONE_LATE, 0, KILL, (0, "reduce_scatter", 0)),
    (ONE_LATE, 2, KILL, (2, "reduce_scatter", 1)),
    (ONE_LATE, 1, KILL, (2, "completion", 1)),
    (ONE_LATE, 3, KILL, (2, "completion", 0)),
    (ONE_LATE, 2, STOP, (1, "completion", 2)),
    (ONE_LATE, 2, "stick", (1, "completion", 2)),
    (ONE_LATE, 1, "raise", (1, "completion", 1)),
    (ONE_LATE, 3, "raise", (1, "completion", 1)),
    (TWO_LATE, 2, KILL, ()),  # before it arrives
    (TWO_LATE, 3, KILL, ()),
    (TWO_LATE, 2, KILL, (1, "before 3", 1)),  # after it has, before the other late rank
    (TWO_LATE, 3, KILL, (1, "completion", 2)),
]


@pytest.mark.parametrize(
    ("schedule", "culprit", "kind", "step", "victim"),
    # a rank that raises lives on: it is not a victim, which nobody waits for
    [(*case, None if "raise" in case else case[1]) for case in CASES],
)
@on_ranks(4, timeout_s=40)
def test_a_lost_rank_is_named_by_all_others_and_a_new_group_works(
    rank, size, store, schedule, culprit, kind, step, victim
):
    """Without a ``step`` it dies before it arrives at operation 1."""
    fault = Fault(kind, step) if rank == culprit and step else None
    executor = Executor(load(schedule), store, rank, size, timeout_s=TIMEOUT_S, observer=fault)
    late_s = {2: 0.2, 3: 0.6}.get(rank, 0.0) if len(schedule.late) == 2 else 0.0

    def run():
        for number in range(5):
            time.sleep(late_s)
            if rank == culprit and number == 1 and not step:
                os.kill(os.getpid(), kind)
            executor.submit(torch.ones(50_000)).wait()

    with pytest.raises(RankFailure) as failed:
        run()
    assert failed.value.ranks == (culprit,)
    with pytest.raises(RankFailure):
        executor.submit(torch.ones(3))
    executor.close()

    if rank != culprit:
        _start_again(rank, size, store, without=culprit)


def _start_again(rank, size, store, without):
    """The survivors make a group of their own, under a new prefix, and all-reduce."""
    survivors = [survivor for survivor in range(size) if survivor != without]
    executor = Executor(
        load(straggler(size - 1)),
        dist.PrefixStore("again", store),
        survivors.index(rank),
        size - 1,
        timeout_s=30,
    )
    assert executor.submit(torch.full((9,), float(rank))).wait()[0].item() == sum(survivors)
    executor.close()


def _wait_until_dead(process_id):
    """A rank that is asked before its kill has taken effect may answer once more."""
    state = ""
    while state != "Z":  # dead, and not yet fetched by its parent
        time.sleep(0.01)
        try:
            stat = Path(f"/proc/{process_id}/stat").read_text()
        except OSError:
            return
        state = stat.rsplit(")", 1)[1].split()[0]


@on_ranks(4, timeout_s=40, victims={1})
def test_a_rank_that_has_finished_is_not_named_beside_one_that_dies(rank, size, store):
    executor = Executor(load(ONE_LATE), store, rank, size, timeout_s=TIMEOUT_S)
    executor.submit(torch.ones(10)).wait()
    together(store, rank, size, "first is done")

    if rank == 0:
        executor.close()
        store.set("rank 0 has closed", "")
        return

    store.wait(["rank 0 has closed"])
    if rank == 1:
        store.set("process of rank 1", str(os.getpid()))
        os.kill(os.getpid(), KILL)
    _wait_until_dead(int(store.get("process of rank 1")))
    failure = executor.find_silent("asked by the test")
    assert failure.ranks == (1,)
    assert "rank 0 has closed after 1 operation" in str(failure)
    executor.close()


@on_ranks(4, timeout_s=40)
def test_a_late_rank_that_never_comes_is_named_and_learns_it_when_it_does(rank, size, store):
    executor = Executor(load(ONE_LATE), store, rank, size, timeout_s=TIMEOUT_S)
    if rank == 3:
        store.wait([f"{peer} has given up" for peer in range(3)])
    reason = "has not entered operation 0" if rank < 3 else ""
    with pytest.raises(RankFailure, match=reason) as caught:
        executor.submit(torch.ones(10)).wait()
    store.set(f"{rank} has given up", "")
    assert caught.value.ranks == (3,)


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
