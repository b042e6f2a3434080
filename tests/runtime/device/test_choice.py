"""The user's ways in on a device: what runs operations, decided by all ranks, and said.

Triton's interpreter runs the kernels, and a simulated device takes the place of the CPU.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from latecomer import runtime
from latecomer.runtime import ddp, load
from latecomer.runtime.device import choice
from latecomer.runtime.device.choice import make_executor
from latecomer.runtime.device.option import resolved
from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.on_device import AUTO_PREDICTS
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import PrefixStore
from latecomer.synth import generate
from latecomer.verify.errors import ArgumentError, KernelUnavailable, RankFailure
from tests.runtime.device.logged import logged_from_now_on
from tests.runtime.device.test_kernel import polls_are_patient
from tests.runtime.schedules import ring, straggler
from tests.runtime.spawning import default_group, on_ranks, spawn, together, values

pytestmark = pytest.mark.gpu_logic  # they start ranks, several times

LIMIT = timedelta(seconds=120)


def begin(rank, size, store, backend="gloo", interpreted=True):
    """A default group, kernels that are small, and a device to run them."""
    os.environ["TRITON_INTERPRET"] = "1" if interpreted else "0"
    from latecomer.runtime.device.allreduce import KernelAllReduce

    polls_are_patient()
    KernelAllReduce.__init__.__kwdefaults__.update(
        blocks=2,
        staging=1 << 19,
        dtypes=(torch.float32,),
    )
    device = SimulatedDevice()
    choice.device_of = lambda of: device  # also where users name none
    default_group(backend, rank, size, store, timeout_s=LIMIT.total_seconds())
    return device


@on_ranks(3)
def test_the_hook_runs_kernels_and_gives_the_same_gradients(rank, size, store):
    begin(rank, size, store)
    messages = logged_from_now_on()
    torch.manual_seed(rank)
    attached = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3))
    plain = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 3))
    plain.load_state_dict(attached.state_dict())
    attachment = ddp.attach(attached, straggler(3), late=1, timeout_s=60.0)
    works = _note_works(attachment.engine)

    for step in range(3):
        data = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))
        for model in (attached, plain):
            model.zero_grad()
            model(data).sum().backward()
        for ours, expected in zip(attached.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad)

    assert {work.by for work in works} == {"kernel"}
    announcements = [text for _, text in messages if "run as one kernel each" in text]
    assert len(announcements) == (1 if rank == 0 else 0)
    attachment.close()


def _note_works(engine):
    """All that the engine is given to do from now on."""
    works = []
    submit = engine.submit

    def noted(*args, **kwargs):
        work = submit(*args, **kwargs)
        works.append(work)
        return work

    engine.submit = noted
    return works


@on_ranks(2)
def test_the_backend_runs_kernels_and_what_they_can_not_by_transfers(rank, size, store):
    os.environ["LATECOMER_DEVICE"] = "kernel"
    runtime.configure(ring(2))
    device = begin(rank, size, store, "latecomer")
    group = dist.group.WORLD
    engine = group.engine

    for dtype, by in {
        torch.float32: "kernel",
        torch.float64: "transfers: no kernel is compiled for torch.float64",
        torch.int32: "transfers: no kernel is compiled for torch.int32",
    }.items():
        tensor = torch.ones(9, dtype=dtype)
        dist.all_reduce(tensor)
        device.synchronize()
        assert tensor.tolist() == [2] * 9
        work = engine.submit(torch.ones(9, dtype=dtype))
        work.wait(LIMIT)
        assert work.by == by

    average = torch.full((9,), float(rank))
    handle = dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True)
    handle.wait(LIMIT)
    assert average.tolist() == [0.5] * 9
    assert group.paths == {"schedule": 4}
    with device.capture("thread_local"), pytest.raises(ArgumentError, match="device='transfers'"):
        engine.submit(torch.ones(9))


@on_ranks(2)
def test_fallback_force_and_forbid(rank, size, store):
    device = begin(rank, size, store, interpreted=rank == 0)
    messages = logged_from_now_on()
    schedule = load(ring(2))

    def executor_by(by, store_name):
        own_store = PrefixStore(store_name, store)
        return make_executor(schedule, own_store, rank, size, by=by, device=device, timeout_s=60.0)

    with pytest.raises(KernelUnavailable, match=r"rank 1: a CPU.*device='auto'"):
        executor_by("kernel", "forced")

    reason = "rank 1: a CPU runs kernels in triton's interpreter alone: set TRITON_INTERPRET=1"
    for by, expected in (("auto", f"transfers: {reason}"), ("transfers", "transfers")):
        executor = executor_by(by, store_name=by)
        work = executor.submit(torch.ones(7))
        assert work.wait(LIMIT).tolist() == [2.0] * 7
        assert work.by == expected
        executor.close()
    warnings = [text for level, text in messages if level == logging.WARNING]
    assert [reason in text for text in warnings] == ([True] if rank == 0 else [])

    with pytest.raises(ArgumentError, match="same on all ranks; rank"):
        executor_by(("auto", "transfers")[rank], "mixed")
    device.close()


@on_ranks(2)
def test_a_program_that_is_too_long_to_be_proved_goes_by_transfers(rank, size, store):
    device = begin(rank, size, store)
    from latecomer.runtime.device import proofs

    short = load(ring(2))
    long = load(generate(2, chunks=6))
    proofs.MOST_ROWS = proofs.rows_of(short.schedule)

    def executor_of(schedules, store_name):
        own_store = PrefixStore(store_name, store)
        return make_executor(schedules, own_store, rank, size, device=device, timeout_s=60.0)

    both = executor_of([short, long], "a")
    works = [both.submit(torch.ones(5), schedule=number) for number in (0, 1)]
    assert [work.wait(LIMIT)[4].item() for work in works] == [2.0, 2.0]
    assert works[0].by == "kernel"
    assert "rows are more than are proved" in works[1].by
    both.close()

    alone = executor_of(long, "b")
    assert "rows are more than are proved" in alone.engine.transfers
    alone.close()
    device.close()


@pytest.mark.parametrize("by", ["kernel", "transfers"])
def test_no_host_waits(by):
    values(spawn(_no_host_waits, 2, by))


def _no_host_waits(rank, size, store, by):
    """Rank 1's device comes only when rank 0 has its tensor; its host would never get there."""
    device = begin(rank, size, store)
    executor = make_executor(load(ring(2)), store, rank, size, device=device, by=by)
    if rank == 1:
        device.current().launch(lambda: store.wait(["had", "future"], LIMIT))
    tensor = torch.full((9,), rank + 1.0)
    copied_after_wait = torch.zeros(9)

    work = executor.submit(tensor)
    future = work.future()
    assert work.wait() is tensor
    device.current().launch(lambda: copied_after_wait.copy_(tensor))
    if rank == 0:
        store.set("future", "")
        store.set("had", "")
    device.current().synchronize()

    assert copied_after_wait.tolist() == [3.0] * 9
    assert future.wait() is tensor
    executor.close()
    device.close()
    dist.destroy_process_group()


@pytest.mark.parametrize("by", ["kernel", "transfers"])
def test_a_failure_reaches_those_who_have_gone_on(by):
    outcomes = spawn(_fails, 2, by)
    assert values(outcomes) == [True, False]


def _fails(rank, size, store, by):
    """Rank 1 does not come. Rank 0's stream goes on with what is marked, its host hears of it."""
    device = begin(rank, size, store)
    messages = logged_from_now_on()
    executor = make_executor(load(ring(2)), store, rank, size, device=device, by=by, timeout_s=15.0)
    together(store, rank, size, "begun")
    if rank == 1:
        store.wait(["over"], LIMIT)
        return False

    if by == "transfers":
        aborted = threading.Event()
        for group in executor.engine._groups:
            group.transfer = lambda ends: aborted.wait()  # as NCCL: what is aborted ends,
            group.abort = aborted.set  # and its stream goes on

    tensor = torch.ones(9)
    copied_after_wait = torch.zeros(9)
    work = executor.submit(tensor)
    work.wait()
    device.current().launch(lambda: copied_after_wait.copy_(tensor))

    deadline_s = time.monotonic() + 100

    def wait_for(condition):
        while not condition() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    wait_for(lambda: work.is_done)  # the failure is known before operations end with it
    device.current().synchronize()
    assert copied_after_wait[0].isnan()
    for call in (work.wait, lambda: executor.submit(tensor)):
        with pytest.raises(RankFailure) as error:
            call()
        assert error.value.ranks == (1,)

    wait_for(lambda: any(level == logging.ERROR for level, _ in messages))
    store.set("over", "")
    executor.close()
    return any("all-reduces have failed" in text for _, text in messages)


SIZE = 3
LATE = 1
PROFILE = Profile(SIZE, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))
"""By it schedules are worth it however small the buffer."""


@on_ranks(SIZE, timeout_s=200.0)
def test_auto_predicts_from_the_kernels_own_stamps(rank, size, store):
    """Nobody looks at events of arrivals: of kernels there are none."""
    device = begin(rank, size, store)
    reducer = AllReduceDispatcher(
        PrefixStore("modes", store),
        rank,
        size,
        timeout_s=60.0,
        options=Options("auto", device="kernel"),
        profile=PROFILE,
        device=device,
    )
    watched = _note_watched(reducer.executor.engine._transfers._watcher)
    arrived = _note_arrivals(reducer.executor)

    for turn in range(60):
        if rank == LATE:
            device.current().launch(lambda: time.sleep(0.2))
        tensor = torch.full((30,), float(rank))
        reducer.submit(tensor).wait(LIMIT)
        assert tensor.tolist() == [3.0] * 30

        by_kernel = [record for record in list(reducer.records) if record.by == "kernel"]
        store.set(f"{turn} {rank}", "enough" if len(by_kernel) >= 4 else "too few")
        if all(store.get(f"{turn} {peer}") == b"enough" for peer in range(size)):
            break

    records = sorted(reducer.records, key=lambda record: record.operation)
    kernels = {record.operation for record in records if record.by == "kernel"}
    natives = {record.operation for record in records if record.by == "library"}
    assert len(kernels) >= 4
    assert {record.late for record in records if record.operation in kernels} == {(LATE,)}
    assert kernels.isdisjoint(watched)
    assert natives <= set(watched)
    assert sorted(arrived) == sorted(kernels | natives)
    for record in records:
        assert record.arrived_s <= record.decided_s <= record.done_s
        assert record.reason.startswith(AUTO_PREDICTS)

    decided = repr([(record.operation, record.way, record.late) for record in records])
    store.set(f"decided {rank}", decided)
    assert store.get("decided 0").decode() == decided
    together(store, rank, size, "over")
    reducer.close()
    device.close()


def _note_watched(watcher):
    """The operations whose events the watcher looks at from now on."""
    operations = []
    add = watcher.add

    def noted(work, *args):
        operations.append(work.number)
        return add(work, *args)

    watcher.add = noted
    return operations


def _note_arrivals(executor):
    """The operations of whose arrivals the executor tells from now on."""
    operations = []
    tell = executor.arrived

    def noted(operation, at_s):
        operations.append(operation)
        return tell(operation, at_s)

    executor.arrived = noted
    return operations


def test_the_option_and_its_variable(monkeypatch):
    monkeypatch.delenv("LATECOMER_DEVICE", raising=False)
    assert resolved(None) == "auto"
    assert resolved("kernel") == "kernel"
    monkeypatch.setenv("LATECOMER_DEVICE", "transfers")
    assert resolved(None) == "transfers"
    assert resolved("auto") == "auto"
    assert runtime.configure(mode="auto").options.device == "transfers"
    monkeypatch.setenv("LATECOMER_DEVICE", "gpu")
    with pytest.raises(ArgumentError, match=r"LATECOMER_DEVICE = 'gpu': must be one of auto, k"):
        resolved(None)
    with pytest.raises(ArgumentError, match="device = 'cuda'"):
        resolved("cuda")
