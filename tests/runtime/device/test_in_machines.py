"""Kernels inside machines and transfers between them, on simulated devices that play machines.

A rank is a process, and says on which machine it plays to be. Sums of small integers are exact: all
ranks are compared with the sum itself, which shares no code with what runs. Other sums must be
within rounding, and the same bits on all ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from latecomer.runtime import ddp
from latecomer.runtime.device import choice
from latecomer.runtime.device.allreduce import KernelExecutor
from latecomer.runtime.device.choice import make_executor
from latecomer.runtime.device.in_machines import IN_STAGES
from latecomer.runtime.device.several_machines import KernelsInMachines
from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.executor.load import load
from latecomer.runtime.torch_versions import PrefixStore
from latecomer.runtime.work import Observer
from latecomer.verify.errors import ArgumentError, KernelUnavailable, RankFailure
from tests.runtime.device.logged import logged_from_now_on
from tests.runtime.device.machines import hierarchical, in_stages, mixed
from tests.runtime.device.test_kernel import polls_are_patient
from tests.runtime.schedules import ring, straggler
from tests.runtime.spawning import PATIENCE, default_group, spawn, together, values

pytestmark = pytest.mark.gpu_logic  # they start ranks, several times

LIMIT = timedelta(seconds=300)  # a wait with a limit holds up the host
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
SIZES = (301, 1, 2000, 33, 0, 5000)


def begin(rank, size, store, per_machine, interpreted=True):
    """A default group, and a device on the machine to which the rank is to belong."""
    os.environ["TRITON_INTERPRET"] = "1" if interpreted else "0"
    polls_are_patient()
    default_group("gloo", rank, size, store, timeout_s=LIMIT.total_seconds())
    return SimulatedDevice(machine=f"machine {rank // per_machine}")


def staged(schedules, store, rank, size, device, per_machine, **options):
    """Small kernels: the interpreter is slow. Tensors of 2000 elements go in several pieces."""
    defaults = {"blocks": 2, "staging": 1 << 13, "dtypes": DTYPES, "timeout_s": 60.0}
    loaded = [load(schedule) for schedule in schedules]
    return KernelsInMachines(
        loaded,
        PrefixStore("staged", store),
        rank,
        size,
        device=device,
        ranks_per_machine=per_machine,
        **(defaults | options),
    )


def contribution(rank, operation, numel, dtype, exact):
    """The data of a rank, the same on whichever rank it is made."""
    numbers = np.random.default_rng((rank, operation))
    data = numbers.integers(-9, 9, numel) if exact else numbers.standard_normal(numel)
    return torch.from_numpy(data).to(dtype)


@pytest.mark.parametrize(("machines", "per_machine"), [(2, 2), (3, 2), (2, 3)])
def test_every_rank_late_in_turn(machines, per_machine):
    outcomes = spawn(_all_late, machines * per_machine, per_machine, timeout_s=200)
    values(outcomes)


def _all_late(rank, size, store, per_machine):
    device = begin(rank, size, store, per_machine)
    machines = size // per_machine
    schedules = [
        in_stages(machines, per_machine),
        hierarchical(machines, per_machine),
        in_stages(machines, per_machine, late=0, chunks=2),
    ]
    engine = staged(schedules, store, rank, size, device, per_machine)
    cases = itertools.product(range(len(schedules)), range(size))
    for number, (schedule, late) in enumerate(cases):
        numel = SIZES[number % len(SIZES)]
        dtype = DTYPES[number // 2 % len(DTYPES)]
        exact = number % 3 != 2
        average = number % 5 == 3
        inputs = [contribution(peer, number, numel, dtype, exact) for peer in range(size)]
        offset = number % 2  # every other tensor begins between two multiples of 16 bytes
        tensor = torch.zeros(numel + offset, dtype=dtype)[offset:]
        tensor.copy_(inputs[rank])
        if rank == late:
            device.current().launch(lambda: time.sleep(0.1))
        named = late if engine.schedules[schedule].late else None
        work = engine.submit(tensor, schedule=schedule, late=named, average=average)
        work.wait(LIMIT)

        assert work.by == IN_STAGES
        if average:
            inputs = [data / size for data in inputs]
        total = torch.stack([data.double() for data in inputs]).sum(0)
        if exact and not average:
            assert torch.equal(tensor.double(), total)
        tolerance = 0.1 if dtype in (torch.bfloat16, torch.float16) else 1e-4
        torch.testing.assert_close(tensor.double(), total, rtol=tolerance, atol=tolerance)
        store.set(f"{number} {rank}", tensor.view(torch.uint8).numpy().tobytes().hex())
        assert store.get(f"{number} 0") == store.get(f"{number} {rank}")
    together(store, rank, size, "done")
    engine.close()
    device.close()
    dist.destroy_process_group()


def test_no_host_waits():
    values(spawn(_no_host_waits, 4, timeout_s=120))


def _no_host_waits(rank, size, store):
    """Rank 3's device comes only when rank 0 has its future; its host would never get there."""
    device = begin(rank, size, store, per_machine=2)
    engine = staged([in_stages(2, 2)], store, rank, size, device, 2)
    if rank == 3:
        device.current().launch(lambda: _wait_for(store, "rank 0 has its future"))
    tensor = torch.full((9,), rank + 1.0)
    copied_after_wait = torch.zeros(9)

    work = engine.submit(tensor)
    future = work.future()
    assert work.wait() is tensor
    device.current().launch(lambda: copied_after_wait.copy_(tensor))
    if rank == 0:
        store.set("rank 0 has its future", "")
    device.current().synchronize()

    assert copied_after_wait.tolist() == [10.0] * 9
    assert future.wait() is tensor
    together(store, rank, size, "done")
    engine.close()
    device.close()
    dist.destroy_process_group()


def _wait_for(store, key):
    """Without holding on to the store, which other threads use meanwhile."""
    while not store.check([key]):
        time.sleep(0.01)


class DiesAt(Observer):
    """Ends the process at a place between machines: as a round begins, or when it has ended."""

    def __init__(self, operation, place):
        self._operation = operation
        self._place = place

    def step_begins(self, operation, phase, round):
        if (self._place, self._operation) == ("before transfers", operation):
            os._exit(1)

    def step_ends(self, operation, phase, round):
        if (self._place, self._operation) == ("after transfers", operation):
            os._exit(1)


@pytest.mark.parametrize("place", ["before", "before transfers", "after transfers"])
@pytest.mark.parametrize("victim", [0, 3])
def test_a_lost_rank_is_named_on_all_machines(place, victim):
    """In the kernel of the first stage, between machines, and in the kernel of the last one."""
    outcomes = spawn(_loses, 4, place, victim, timeout_s=120, victims=(victim,))
    values([outcome for rank, outcome in enumerate(outcomes) if rank != victim])


def _loses(rank, size, store, place, victim):
    device = begin(rank, size, store, per_machine=2)
    observer = DiesAt(1, place) if rank == victim else None
    engine = staged(
        [in_stages(2, 2)], store, rank, size, device, 2, observer=observer, timeout_s=20.0
    )
    engine.submit(torch.ones(40)).wait(LIMIT)
    together(store, rank, size, "one operation is done")
    if place == "before" and rank == victim:
        os._exit(1)

    began_s = time.monotonic()

    def submit():
        tensor = engine.submit(torch.ones(40)).wait(LIMIT)
        assert tensor.tolist() == [4.0] * 40

    if place == "after transfers" and victim // 2 != rank // 2:
        with contextlib.suppress(RankFailure):  # this machine may have its sum before
            submit()
    with pytest.raises(RankFailure) as failure:
        submit()
    assert failure.value.ranks == (victim,)
    assert time.monotonic() - began_s < 60 * PATIENCE
    engine.close()
    device.close()


class TellsWhenItGaveUp(Observer):
    """Of operation 1: transfers begin behind the kernel of the first stage, which has ended."""

    def __init__(self, store):
        self._store = store

    def step_begins(self, operation, phase, round):
        if operation == 1:
            self._store.set("gave up", "")


def test_a_stop_travels_to_other_machines_where_nobody_takes_what_comes_for_a_sum():
    assert values(spawn(_stops, 4, False, timeout_s=120)) == ["failed"] * 4


def test_without_the_stop_word_that_comes_along_there_would_be_wrong_sums():
    outcomes = values(spawn(_stops, 4, True, timeout_s=120))
    assert outcomes == ["failed", "failed", "wrong sum", "wrong sum"]


def _stops(rank, size, store, is_deaf):
    """Rank 0's kernel gives up while it waits for rank 1, and its host tells nobody of it.

    Rank 1 has from it what it needs, and goes on; so do those of the other machine, if they are
    deaf to the stop word.
    """
    device = begin(rank, size, store, per_machine=2)
    observer = TellsWhenItGaveUp(store) if rank == 0 else None
    options = {"observer": observer, "timeout_s": 20.0, "blocks": 1}
    engine = staged([in_stages(2, 2)], store, rank, size, device, 2, **options)
    memory = engine.engine._kernels.memory
    engine.submit(torch.ones(40)).wait(LIMIT)
    together(store, rank, size, "one operation is done")

    if is_deaf:
        memory.raise_stop_if = lambda words: None
    if rank == 0:
        engine.engine._failed = lambda noticed, error: None
    if rank == 1:
        device.current().launch(lambda: _wait_for(store, "gave up"))
    tensor = torch.ones(40)
    copied_after_wait = torch.zeros(40)
    work = engine.submit(tensor)
    work.wait()  # the stream waits, not the host
    device.current().launch(lambda: copied_after_wait.copy_(tensor))
    if rank == 1:
        while memory.read(memory.flags)[1, 0] != 3:  # the epoch, after two kernels
            time.sleep(0.01)
        store.set("rank 0 has put its data", "")
    if rank == 0:
        store.wait(["rank 0 has put its data"], LIMIT)
        memory.raise_stop()

    try:
        work.wait(LIMIT)
    except RankFailure:
        outcome = "failed"
        if rank == 2:
            assert memory.read(memory.stop).tolist() == [1]
            assert copied_after_wait[0].isnan()
        with pytest.raises(RankFailure):
            engine.submit(torch.ones(40))
    else:
        outcome = "wrong sum" if tensor.tolist() != [4.0] * 40 else "sum"
    together(store, rank, size, "all know")
    engine.close()
    device.close()
    return outcome


def test_a_rank_that_does_not_come_is_named():
    values(spawn(_one_does_not_come, 4, timeout_s=120))


def _one_does_not_come(rank, size, store):
    device = begin(rank, size, store, per_machine=2)
    engine = staged([in_stages(2, 2)], store, rank, size, device, 2, timeout_s=15.0)
    engine.submit(torch.ones(40)).wait(LIMIT)
    if rank != 3:
        with pytest.raises(RankFailure, match="not entered operation 1") as failure:
            engine.submit(torch.ones(40)).wait(LIMIT)
        assert failure.value.ranks == (3,)
    else:
        while engine.failure is None:
            time.sleep(0.05)
    engine.close()
    device.close()


SMALL = {"blocks": 2, "staging": 1 << 13, "dtypes": (torch.float32,), "timeout_s": 60.0}


def test_where_all_can_kernels_run_inside_machines_and_it_is_said():
    values(spawn(_chosen, 4, timeout_s=120))


def _chosen(rank, size, store):
    device = begin(rank, size, store, per_machine=2)
    messages = logged_from_now_on()
    schedules = [load(in_stages(2, 2)), load(mixed(2, 2)), load(straggler(4))]
    executor = make_executor(schedules, store, rank, size, by="kernel", device=device, **SMALL)
    reasons = []
    for schedule, dtype in (
        (0, torch.float32),
        (1, torch.float32),
        (2, torch.float32),
        (0, torch.int32),
    ):
        work = executor.submit(torch.full((9,), rank + 1, dtype=dtype), schedule=schedule)
        assert work.wait(LIMIT).tolist() == [10] * 9
        reasons.append(work.by)
    assert reasons[0] == IN_STAGES
    assert "synth generate --stages" in reasons[1]
    assert reasons[2].startswith("transfers: ")
    assert "it has no stages: reduce_scatter round 0" in reasons[2]
    assert reasons[3] == "transfers: no kernel is compiled for torch.int32"
    said = [text for _, text in messages if IN_STAGES in text and "2 machines of 2" in text]
    assert len(said) == (1 if rank == 0 else 0)

    with device.capture("thread_local"), pytest.raises(ArgumentError, match="epoch"):
        executor.submit(torch.ones(9))
    together(store, rank, size, "done")
    executor.close()
    device.close()
    dist.destroy_process_group()


def test_the_hook_runs_stages_and_gives_the_same_gradients():
    values(spawn(_hooked, 4, timeout_s=120))


def _hooked(rank, size, store):
    device = begin(rank, size, store, per_machine=2)
    choice.device_of = lambda of: device  # users name none
    small = {name: SMALL[name] for name in ("blocks", "staging", "dtypes")}
    KernelExecutor.__init__.__kwdefaults__.update(small)
    torch.manual_seed(rank)
    attached = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3))
    plain = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3))
    plain.load_state_dict(attached.state_dict())
    attachment = ddp.attach(attached, in_stages(2, 2), late=1, timeout_s=60.0)
    works = []
    submit = attachment.engine.submit

    def noted(*arguments, **options):
        works.append(submit(*arguments, **options))
        return works[-1]

    attachment.engine.submit = noted
    for step in range(3):
        data = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))
        for model in (attached, plain):
            model.zero_grad()
            model(data).sum().backward()
        for ours, expected in zip(attached.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad)
    assert {work.by for work in works} == {IN_STAGES}
    together(store, rank, size, "done")
    attachment.close()
    device.close()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("machine_of", "interpreted", "schedule", "reason"),
    [
        ((0, 0, 1, 1), (True, True, True, False), "stages", "rank 3: a CPU runs kernels in triton"),
        ((0, 0, 0, 1), (True,) * 4, "stages", "ranks 0 and 3 are on different machines"),
        ((0, 1, 0, 1), (True,) * 4, "stages", "ranks 0 and 1 are on different machines"),
        ((0, 1, 2, 3), (True,) * 4, "stages", "ranks 0 and 1 are on different machines"),
        ((0, 0, 1, 1), (True,) * 4, "ring", "synth generate --stages makes schedules for that"),
    ],
)
def test_all_ranks_take_transfers_if_one_machine_lacks_something(
    machine_of, interpreted, schedule, reason
):
    values(spawn(_falls_back, 4, machine_of, interpreted, schedule, reason, timeout_s=120))


def _falls_back(rank, size, store, machine_of, interpreted, schedule, reason):
    begin(rank, size, store, 2, interpreted[rank]).close()
    device = SimulatedDevice(machine=f"machine {machine_of[rank]}")
    verified = load(in_stages(2, 2) if schedule == "stages" else ring(4))
    with pytest.raises(KernelUnavailable) as error:
        make_executor(
            verified, PrefixStore("a", store), rank, size, by="kernel", device=device, **SMALL
        )
    assert reason in str(error.value)
    together(store, rank, size, "all refused")

    options = {"timeout_s": 60.0}
    executor = make_executor(
        verified, PrefixStore("b", store), rank, size, device=device, **options
    )
    work = executor.submit(torch.full((9,), rank + 1.0))
    assert work.wait(LIMIT).tolist() == [10.0] * 9
    assert work.by.startswith("transfers: ")
    assert reason in work.by
    store.set(f"reason {rank}", work.by)
    assert store.get("reason 0") == store.get(f"reason {rank}")
    together(store, rank, size, "done")
    executor.close()
    device.close()
    dist.destroy_process_group()
