"""The executor: the conformance suite, operations in flight, what is refused."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from msgspec.structs import replace

from latecomer.runtime import Executor, load
from latecomer.runtime.host import host
from latecomer.runtime.selftest import conformance
from latecomer.runtime.selftest.suite import late_s, turns
from latecomer.verify.core.schedule import Phase
from latecomer.verify.errors import ArgumentError, ScheduleRefused, TensorError
from tests.runtime import schedules
from tests.runtime.simulated import SEEDS, on_hosts
from tests.runtime.spawning import spawn, values

SIZES = (0, 1, 7, 1000, 40_000)
CASES = 85  # of the conformance suite, with these sizes


def _conformance(rank, size, store, cases):
    """All cases pass by each (schedule, late ranks, who sleeps in which order)."""
    for number, (schedule, late, order) in enumerate(cases):
        own_store = host.prefixed(f"{number}", store)
        executor = Executor(load(schedule), own_store, rank, size, late=late, timeout_s=30)
        count = conformance.run(
            lambda tensor, average, run=executor: run.submit(tensor, average=average).wait(),
            host.prefixed("cases", own_store),
            rank,
            size,
            sizes=SIZES,
            late_s=late_s(rank, order),
        )
        executor.close()
        assert count == CASES


def _all_pass(cases):
    """On as many simulated hosts as the first schedule is for; a seed for each case."""
    for seed, (schedule, late, order) in enumerate(cases):
        proved_case = (load(schedule), late, order)
        body = partial(_conformance, cases=[proved_case])
        on_hosts(schedule.ranks, lambda job, body=body: body, seeds=[seed])


def test_conformance_of_processes():
    """Of real ones; the other tests of conformance run on simulated hosts."""
    schedule = schedules.straggler(3, m=2)
    values(spawn(_conformance, 3, [(schedule, (late,), (late,)) for late in range(3)]))


LONG = pytest.param(8, marks=pytest.mark.long)


@pytest.mark.parametrize("size", [2, 3, 5, LONG])
def test_conformance_with_every_late_rank(size):
    schedule = schedules.straggler(size, m=2)
    _all_pass([(schedule, (late,), (late,)) for late in range(size)])


ON_TIME = [make(size) for size in (2, 5) for make in (schedules.ring, schedules.direct)]


@pytest.mark.parametrize("schedule", [*ON_TIME, schedules.swapping()])
def test_conformance_when_all_are_on_time(schedule):
    _all_pass([(schedule, None, ())])


AT_ONCE = [(4, {3: 0}), (4, {2: 1, 3: 3}), (4, {1: 1, 2: 2, 3: 4}), (6, {3: 1, 4: 2, 5: 9})]
AT_LENGTH = [(4, {3: 1}), (6, {5: 2}), (8, {7: 3}), (8, {6: 3, 7: 9})]


@pytest.mark.parametrize(
    ("n", "rounds"),
    [*AT_ONCE, *(pytest.param(*case, marks=pytest.mark.long) for case in AT_LENGTH)],
)
def test_conformance_with_the_right_ranks_late_and_with_the_wrong_ones(n, rounds):
    schedule = schedules.arrivals(n, rounds)
    late_ranks = turns(load(schedule))
    own = load(schedule).late
    assert len(late_ranks) == n

    right = [(schedule, late, late) for late in late_ranks[:: n // 2]]
    wrong = [(schedule, None, own[::-1]), (schedule, own, (0,)), (schedule, own, ())]
    _all_pass(right + wrong)


def test_operations_in_flight_have_schedules_and_late_ranks_of_their_own():
    kinds = [schedules.straggler(4), schedules.ring(4), schedules.straggler(4, m=3)]
    verified = [load(schedule) for schedule in kinds]
    for seed in SEEDS:
        body = partial(_many_in_flight, verified=verified, seed=seed)
        on_hosts(4, lambda job, body=body: body, seeds=[seed])


def _many_in_flight(rank, size, store, verified, seed):
    executor = Executor(verified, store, rank, size, late=1, timeout_s=30)
    own_dice = random.Random(f"{seed}{rank}")
    shared_dice = random.Random(seed)

    operations = []
    for step in range(20):
        host.sleep(own_dice.random() * 0.02)
        executor.late = shared_dice.randrange(size)
        schedule = shared_dice.randrange(3)
        late = None if schedule == 1 else shared_dice.choice([None, 0, size - 1])
        numel = shared_dice.choice([0, 1, 50, 3000])
        tensor = torch.full((numel,), float(rank * step))
        operations.append(executor.submit(tensor, schedule=schedule, late=late))
    for step, operation in reversed(list(enumerate(operations))):
        assert operation.wait().eq(6.0 * step).all()

    for schedule, late, name in [(3, None, "schedule"), (-1, None, "schedule"), (1, 0, "late")]:
        with pytest.raises(ArgumentError, match=name):
            executor.submit(torch.ones(2), schedule=schedule, late=late)
    executor.close()


def test_ranks_with_different_schedules_refuse_to_start():
    def body(rank, size, store):
        schedule = schedules.ring(size) if rank else schedules.straggler(size)
        with pytest.raises(ScheduleRefused, match="another schedule"):
            Executor(load(schedule), store, rank, size, timeout_s=10)

    on_hosts(3, lambda job: body)


def test_bad_tensors_are_refused_and_leave_the_executor_usable():
    on_hosts(2, lambda job: _offer_bad_tensors)


def _offer_bad_tensors(rank, size, store):
    executor = Executor(load(schedules.straggler(size)), store, rank, size, timeout_s=10)
    for message, tensor, average in [
        ("contiguous", torch.zeros(8, 8).t(), False),
        ("dense", torch.eye(3).to_sparse(), False),
        ("torch.bool", torch.zeros(3, dtype=torch.bool), False),
        ("torch.complex64", torch.zeros(3, dtype=torch.complex64), False),
        ("meta", torch.zeros(3, device="meta"), False),
        ("integer", torch.zeros(3, dtype=torch.int32), True),
    ]:
        with pytest.raises(TensorError, match=message):
            executor.submit(tensor, average=average)

    for late in (-1, size):
        with pytest.raises(ArgumentError, match="late"):
            executor.late = late
    assert executor.submit(torch.ones(4)).wait().tolist() == [2.0] * 4
    executor.close()


GOOD = schedules.ring(3)
STRAGGLER = schedules.straggler(5)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (replace(GOOD, phases=(GOOD.phases[0], Phase("gather", (), ()))), "exactly_once fails"),
        (replace(STRAGGLER, meta={"optimal": True}), "claims"),  # that stays undecided
    ],
)
def test_schedules_that_are_not_proved_are_refused(schedule, reason):
    with pytest.raises(ScheduleRefused, match=reason):
        load(schedule)


def test_a_schedule_for_another_number_of_ranks_is_refused():
    with pytest.raises(ScheduleRefused, match="synth generate --n 4"):
        Executor(load(schedules.ring(3)), None, 0, 4)  # type: ignore[arg-type]
