"""The executor: the conformance suite, operations in flight, what is refused."""

from __future__ import annotations

import random
import time

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from runtime import Executor, Observer, load
from runtime.selftest import conformance
from tests.runtime import schedules
from tests.runtime.spawning import spawn, values
from verify.core.schedule import Phase, Schedule
from verify.errors import ArgumentError, RankFailure, ScheduleRefused, TensorError


def _conformance(rank, size, store, schedule, lates):
    """How many cases passed, with each of ``lates`` the late rank in turn."""
    counts = []
    for late in lates:
        place = PrefixStore(f"{late}", store)
        executor = Executor(load(schedule), place, rank, size, late=late, timeout_s=30)

        def all_reduce(tensor, average, executor=executor, late=late):
            if rank == late:
                time.sleep(random.random() * 0.002)
            return executor.submit(tensor, average=average).wait()

        sizes = (0, 1, 7, 1000, 40_000)
        cases = PrefixStore("cases", place)
        counts.append(conformance.run(all_reduce, cases, rank, size, sizes=sizes))
        executor.close()
    return counts


@pytest.mark.parametrize(
    ("size", "lates"),
    [
        (2, range(2)),
        (3, range(3)),
        (5, range(5)),
        (8, (0, 3, 7)),
        pytest.param(8, range(8), marks=pytest.mark.long),
    ],
)
def test_conformance_with_every_late_rank(size, lates):
    schedule = schedules.straggler(size, m=2)
    for counts in values(spawn(_conformance, size, schedule, lates)):
        assert counts == [85] * len(lates)


@pytest.mark.parametrize("size", [2, 5, 8])
@pytest.mark.parametrize("make", [schedules.ring, schedules.direct])
def test_conformance_when_all_are_on_time(make, size):
    for counts in values(spawn(_conformance, size, make(size), [None])):
        assert counts == [85]


def test_conformance_when_chunks_must_be_staged():
    assert load(schedules.swapping()).report.staging == 1
    assert values(spawn(_conformance, 2, schedules.swapping(), [None])) == [[85]] * 2


def _wrong_sums(rank, size, store):
    executor = Executor(load(schedules.ring(size)), store, rank, size, timeout_s=5)

    def all_reduce(tensor, average):
        result = executor.submit(tensor, average=average).wait()
        if rank == 1 and result.numel() == 1000 and result.dtype is torch.float32:
            result[17] += 1
        return result

    try:
        conformance.run(all_reduce, PrefixStore("cases", store), rank, size)
    except conformance.ConformanceError as error:
        return str(error)
    except RankFailure:
        return "the other rank stopped"
    return "passed"


def test_conformance_suite_sees_one_wrong_element():
    texts = values(spawn(_wrong_sums, 2))
    assert "element 17" in texts[1]


def _many_in_flight(rank, size, store, seed):
    executor = Executor(load(schedules.straggler(size)), store, rank, size, timeout_s=30)
    dice, shared = random.Random(f"{seed}{rank}"), random.Random(seed)
    operations = []
    for step in range(12):
        executor.late = shared.randrange(size)
        time.sleep(dice.random() * 0.02)
        numel = shared.choice([0, 1, 50, 3000])
        data = torch.full((numel,), float(rank + step))
        operations.append((step, numel, executor.submit(data)))
    for step, numel, operation in reversed(operations):
        expected = float(sum(r + step for r in range(size)))
        assert torch.equal(operation.wait(), torch.full((numel,), expected))
    executor.close()
    return True


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_operations_in_flight_with_random_lateness(seed):
    assert all(values(spawn(_many_in_flight, 5, seed)))


def _changing_schedules(rank, size, store):
    """Every operation by another schedule, with other late ranks; several in flight."""
    made = [schedules.straggler(size), schedules.ring(size), schedules.straggler(size, m=3)]
    executor = Executor([load(s) for s in made], store, rank, size, late=1, timeout_s=30)
    shared, operations = random.Random(7), []
    for step in range(20):
        schedule = shared.randrange(3)
        late = None if schedule == 1 else shared.choice([None, 0, size - 1])
        data = torch.full((shared.choice([2, 700]),), float(rank * step))
        operations.append(executor.submit(data, schedule=schedule, late=late))
    results = {operation.wait().sum().item() / operation.flat.numel() for operation in operations}
    for schedule, late, name in [(3, None, "schedule"), (-1, None, "schedule"), (1, 0, "late")]:
        with pytest.raises(ArgumentError, match=name):
            executor.submit(torch.ones(2), schedule=schedule, late=late)
    executor.close()
    return results


def test_each_operation_may_have_another_schedule_and_other_late_ranks():
    for results in values(spawn(_changing_schedules, 4)):
        assert results == {6.0 * step for step in range(20)}


class _Steps(Observer):
    def __init__(self):
        self.seen = []

    def step_begins(self, operation, phase, round):
        self.seen.append((operation, phase))


def _helpers_go_ahead(rank, size, store):
    steps = _Steps()
    executor = Executor(
        load(schedules.straggler(size)), store, rank, size, timeout_s=30, observer=steps
    )
    if rank == size - 1:
        store.wait(["helpers are through"])
    operations = [executor.submit(torch.ones(64)) for _ in range(3)]
    if rank == 0:
        want = {(number, "reduce_scatter") for number in range(3)}
        while not want <= set(steps.seen):
            time.sleep(0.01)
        completed = any(operation.done_s for operation in operations)
        store.set("helpers are through", "1")
        assert not completed
    results = [operation.wait().sum().item() for operation in operations]
    executor.close()
    return results


def test_helpers_reduce_all_buckets_before_the_late_rank_comes():
    assert values(spawn(_helpers_go_ahead, 4, timeout_s=40)) == [[256.0] * 3] * 4


def _another_schedule(rank, size, store):
    schedule = schedules.ring(size) if rank else schedules.straggler(size)
    try:
        Executor(load(schedule), store, rank, size, timeout_s=10)
    except ScheduleRefused as error:
        return str(error)
    return "accepted"


def test_ranks_with_different_schedules_refuse_to_start():
    assert all("another schedule" in text for text in values(spawn(_another_schedule, 3)))


def _bad_tensors(rank, size, store):
    executor = Executor(load(schedules.straggler(size)), store, rank, size, timeout_s=10)
    found = {}
    for name, tensor, average in [
        ("strided", torch.zeros(8, 8).t(), False),
        ("sparse", torch.eye(3).to_sparse(), False),
        ("bool", torch.zeros(3, dtype=torch.bool), False),
        ("complex", torch.zeros(3, dtype=torch.complex64), False),
        ("meta", torch.zeros(3, device="meta"), False),
        ("average", torch.zeros(3, dtype=torch.int32), True),
    ]:
        with pytest.raises(TensorError) as caught:
            executor.submit(tensor, average=average)
        found[name] = str(caught.value)
    for late in (-1, size):
        with pytest.raises(ArgumentError, match="late"):
            executor.late = late
    after = executor.submit(torch.ones(4)).wait()
    executor.close()
    return found, after.tolist()


def test_bad_tensors_are_refused_and_leave_the_executor_usable():
    for found, after in values(spawn(_bad_tensors, 2)):
        assert after == [2.0] * 4
        assert "contiguous" in found["strided"]
        assert "dense" in found["sparse"]
        assert "torch.bool" in found["bool"]
        assert "torch.complex64" in found["complex"]
        assert "meta" in found["meta"]
        assert "integer" in found["average"]


def test_refuted_schedules_are_refused():
    good = schedules.ring(3)
    bad = Schedule(ranks=3, chunks=3, phases=(good.phases[0], Phase("gather", (), ())))
    with pytest.raises(ScheduleRefused, match="exactly_once fails"):
        load(bad)


def test_schedules_that_stay_undecided_are_refused():
    straggler = schedules.straggler(5)
    claiming = Schedule(
        ranks=5, chunks=4, late=(4,), phases=straggler.phases, meta={"optimal": True}
    )
    with pytest.raises(ScheduleRefused, match="claims"):
        load(claiming)


def test_a_schedule_for_another_number_of_ranks_is_refused():
    with pytest.raises(ScheduleRefused, match="synth generate --n 4"):
        Executor(load(schedules.ring(3)), None, 0, 4)  # type: ignore[arg-type]
