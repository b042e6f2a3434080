"""Kernels in triton's interpreter, a process for each rank, against rounds one after the other.

Sums of small integers are exact, so all ranks are compared with the sum itself; other sums with the
schedule's own order of additions, bit by bit. The interpreter rounds bfloat16 in a way of its own:
there ranks are compared with each other, and with the sum within rounding.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from latecomer.runtime.device import layout
from latecomer.runtime.device.layout import cut
from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.device.variants import Launch
from latecomer.runtime.executor.load import load
from latecomer.runtime.work import AllReduceWork
from latecomer.synth import generate
from latecomer.verify.device.program import DeviceAction
from latecomer.verify.errors import ArgumentError, RankFailure, TensorError
from tests.runtime.kinds import kinds
from tests.runtime.schedules import by_rounds, ring, straggler
from tests.runtime.spawning import PATIENCE, on_ranks, spawn, values

pytestmark = pytest.mark.gpu_logic  # they start ranks, several times

LIMIT = timedelta(seconds=300)  # a wait with a limit holds up the host
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32]
WRAPS = 2**31 - 3  # an epoch just before they turn negative
ADDED = 2**30  # epochs in which a program with more slots did not run


def kernels(schedules, store, rank, size, device, **options):
    """A KernelAllReduce for tests: the interpreter is slow and asked for little."""
    os.environ["TRITON_INTERPRET"] = "1"
    from latecomer.runtime.device.allreduce import KernelAllReduce

    polls_are_patient()
    defaults = {"blocks": 2, "staging": 1 << 14, "dtypes": DTYPES, "timeout_s": 60.0}
    loaded = [load(schedule) for schedule in schedules]
    return KernelAllReduce(loaded, store, rank, size, device=device, **(defaults | options))


def polls_are_patient():
    """Kernels that wait leave the processors to those for whom they wait."""
    from triton.runtime.interpreter import InterpreterBuilder

    original = InterpreterBuilder.create_atomic_rmw
    if not hasattr(original, "is_patient"):

        def create_atomic_rmw(*arguments):
            result = original(*arguments)
            time.sleep(1e-4)
            return result

        create_atomic_rmw.is_patient = True
        InterpreterBuilder.create_atomic_rmw = create_atomic_rmw


def contribution(rank, operation, numel, dtype, exact):
    """The data of a rank, the same on whichever rank it is made."""
    numbers = np.random.default_rng((rank, operation))
    data = numbers.integers(-9, 9, numel) if exact else numbers.standard_normal(numel)
    return torch.from_numpy(data).to(dtype)


def expected(schedule, inputs, size):
    """What the rounds of the schedule make of it; chunks take turns every ``size`` elements."""
    chunk_of_element = np.arange(len(inputs[0])) // size % schedule.chunks
    elements = [np.flatnonzero(chunk_of_element == chunk) for chunk in range(schedule.chunks)]
    start = {}
    for rank, tensor in enumerate(inputs):
        for chunk, of_chunk in enumerate(elements):
            start[rank, chunk] = tensor.numpy()[of_chunk]

    sums = by_rounds(schedule, start, np.add)

    result = np.empty_like(inputs[0].numpy())
    for chunk, of_chunk in enumerate(elements):
        result[of_chunk] = sums[0, chunk]
    return torch.from_numpy(result)


def run_and_compare(engine, number, schedule, late, numel, dtype, *, exact, average=False):
    """One operation on all ranks, compared with the rounds."""
    size = engine.size
    rank = engine.rank
    inputs = [contribution(peer, number, numel, dtype, exact) for peer in range(size)]
    offset = number % 2  # every other tensor begins between two multiples of 16 bytes
    tensor = torch.zeros(numel + offset, dtype=dtype)[offset:]
    tensor.copy_(inputs[rank])
    if rank == number % size:
        time.sleep(0.2)  # a late rank, as often as not another one than the schedule takes
    work = engine.submit(tensor, schedule=schedule, late=late, average=average)
    work.wait(LIMIT)

    runnable = engine.schedules[schedule]
    loaded = engine._load(schedule, runnable.late_ranks(late))
    part = cut(numel, tensor.itemsize, loaded.program, engine._kernels._memory.layout).part
    if average:
        inputs = [data / size for data in inputs]
    total = torch.stack([data.double() for data in inputs]).sum(0)
    if exact and not average:
        assert torch.equal(tensor.double(), total)
    if dtype is torch.bfloat16:
        torch.testing.assert_close(tensor.double(), total, rtol=0.1, atol=0.1)
    else:
        blocks = 2  # as many as `kernels` asks for
        by_schedule = expected(runnable.for_late(late), inputs, size=part * blocks)
        assert torch.equal(tensor, by_schedule)
    return tensor


def after_a_long_time(engine, number):
    """The first schedule runs for so long that flags of the second could seem to be ahead."""

    def run_schedule(schedule, operation):
        run_and_compare(
            engine,
            operation,
            schedule,
            late=None,
            numel=128,  # all chunks of both blocks have something
            dtype=torch.float32,
            exact=True,
        )

    run_schedule(1, number)
    for _ in range(2):
        for staging_set in range(2):
            run_schedule(0, number + staging_set)
        epoch = engine._kernels._epoch + ADDED
        engine._kernels._epoch = (epoch + 2**31) % 2**32 - 2**31  # it wraps as 32 bits do
    run_schedule(1, number + engine.size)


def conform(rank, size, store, cases, epoch):
    """Run operations of all schedules in turn; all ranks end with the same bits."""
    device = SimulatedDevice()
    schedules = list(kinds(size))
    engine = kernels(schedules, store, rank, size, device)
    engine._kernels._epoch = epoch
    try:
        for number in range(cases):
            schedule = number % len(schedules)
            runnable = engine.schedules[schedule]
            late = None
            if len(runnable.late) == 1:
                late = number // len(schedules) % size
            if len(runnable.late) == 2:
                late = (number % size, (number + 1) % size)

            dtype = DTYPES[number % len(DTYPES)]
            tensor = run_and_compare(
                engine,
                number,
                schedule,
                late,
                numel=(301, 1, 2000, 33, 0)[number // 2 % 5],
                dtype=dtype,
                exact=number % 3 == 0 or not dtype.is_floating_point,
                average=number % 7 == 3 and dtype.is_floating_point,
            )

            store.set(f"{number} {rank}", tensor.view(torch.uint8).numpy().tobytes().hex())
            assert store.get(f"{number} 0") == store.get(f"{number} {rank}")
    finally:
        engine.close()
        device.close()


@on_ranks(3)
def test_all_kinds_in_turn_while_epochs_turn_negative(rank, size, store):
    conform(rank, size, store, 2 * len(list(kinds(size))), WRAPS)


@pytest.mark.gpu_logic
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_any_number_of_ranks(n):
    values(spawn(_conform, n, 15 if n > 5 else 30, timeout_s=300))


def _conform(rank, size, store, cases):
    conform(rank, size, store, cases, WRAPS - size)  # ahead of flags that are 0, by less than half


def _long_time(rank, size, store, old="", new="", program=None):
    """Operations a long time apart, maybe with a mutant of the kernel, or of rank 0's program."""
    os.environ["TRITON_INTERPRET"] = "1"
    if old:
        _import_mutant(old, new)
    device = SimulatedDevice()
    schedules = [ring(3), generate(3, chunks=4, owners="free")]
    engine = kernels(schedules, store, rank, size, device, timeout_s=20.0)

    if program is not None and rank == 0:
        loaded = engine._load(1, engine.schedules[1].late)
        program(loaded.rows)

    try:
        after_a_long_time(engine, 2)  # rank 2 is late
    except (AssertionError, RankFailure) as error:
        return type(error).__name__
    finally:
        engine.close()
        device.close()
    return ""


def _import_mutant(old, new):
    """In place of the kernel's module: the same with another text."""
    path = Path(tempfile.mkdtemp()) / "kernel.py"
    source = Path(layout.__file__).with_name("kernel.py").read_text()
    assert source.count(old) == 1
    path.write_text(source.replace(old, new))

    spec = importlib.util.spec_from_file_location("latecomer.runtime.device.kernel", path)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])


# mutants of a program, whose rows are (action, peer, chunk, slot)
def other_op(rows):
    reduces = torch.nonzero(rows[:, 0] == DeviceAction.REDUCE).flatten()
    rows[reduces[-1], 0] = DeviceAction.COPY


def other_chunk(rows):
    receives = torch.nonzero(rows[:, 0] != DeviceAction.PUT).flatten()
    rows[receives[-1], 2] = (rows[receives[-1], 2] + 1) % 4


def other_slot(rows):
    receives = torch.nonzero(rows[:, 0] != DeviceAction.PUT).flatten()
    rows[receives[-1], 3] = rows[receives[0], 3]  # it has come already: there is no wait


def no_put(rows):
    puts = torch.nonzero(rows[:, 0] == DeviceAction.PUT).flatten()
    rows[puts[-1], 3] = 0  # another flag is raised instead


MUTANTS = {
    "flags are not brought up to date": {
        "old": "refresh(fresh, epoch, received, slots, blocks)",
        "new": "pass",
    },
    "a wait takes what is there": {
        "old": "while (ahead < 0) & (stopped == 0):",
        "new": "while (ahead < -epoch) & (stopped == 0):",
    },
    "other_op": {"program": other_op},
    "other_chunk": {"program": other_chunk},
    "other_slot": {"program": other_slot},
    "no_put": {"program": no_put},
}


def test_flags_that_were_not_used_for_a_long_time():
    assert values(spawn(_long_time, 3)) == [""] * 3


@pytest.mark.gpu_logic
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_kernel_and_program_are_caught(name):
    mutant = MUTANTS[name]
    outcomes = spawn(
        _long_time, 3, mutant.get("old", ""), mutant.get("new", ""), mutant.get("program")
    )
    assert any(values(outcomes)), outcomes


@on_ranks(3)
def test_arrivals_mismatches_and_refusals(rank, size, store):
    device = SimulatedDevice()
    engine = kernels([straggler(3)], store, rank, size, device, timeout_s=20.0)
    tensor = torch.ones(40)
    time.sleep(0.5 * (rank == 1))
    works = [engine.submit(tensor, late=1) for _ in range(3)]  # without a wait in between
    for work in works:
        work.wait(LIMIT)
    assert torch.equal(tensor, torch.full((40,), 27.0))

    arrivals_ns = engine.arrivals_ns(works[0])
    assert len(arrivals_ns) == size
    assert arrivals_ns[1] - max(arrivals_ns[0], arrivals_ns[2]) > 0.2e9
    with pytest.raises(ArgumentError, match="one of the last"):
        engine.arrivals_ns(AllReduceWork(999, tensor, False))
    with pytest.raises(TensorError, match="int8"):
        engine.submit(torch.ones(4, dtype=torch.int8))
    # the epoch is an argument of the launch: each replay would take the last one's data for its own
    with device.capture(), pytest.raises(ArgumentError, match="epoch"):
        engine.submit(tensor)

    work = engine.submit(torch.ones(40 + (rank == 2)))
    with pytest.raises(RankFailure, match="did not submit the same operation") as failure:
        work.wait(LIMIT)
    assert 2 in failure.value.ranks
    engine.close()
    device.close()


@on_ranks(3, victims=(1,))
def test_a_lost_rank_ends_the_others_and_is_named(rank, size, store):
    device = SimulatedDevice()
    engine = kernels([straggler(3)], store, rank, size, device, timeout_s=20.0)
    engine.submit(torch.ones(40)).wait(LIMIT)

    if rank == 1:
        os._exit(1)
    began_s = time.monotonic()
    with pytest.raises(RankFailure) as failure:
        engine.submit(torch.ones(40)).wait(LIMIT)
    assert failure.value.ranks == (1,)
    assert time.monotonic() - began_s < 60 * PATIENCE

    device.current().synchronize()
    engine.close()  # its kernel has ended
    assert not engine._kernels._thread.is_alive()
    device.close()


@on_ranks(2)
def test_a_stopped_rank_puts_nothing_in_later_operations(rank, size, store):
    """Its kernels that were launched already begin after the stop; others may still take slots.

    They once ran their first puts into these slots before they looked whether to stop.
    """
    device = SimulatedDevice()
    engine = kernels([ring(2)], store, rank, size, device)
    engine.submit(torch.ones(40)).wait(LIMIT)

    memory = engine._kernels._memory
    flags = memory.read(memory.flags).clone()
    store.set(f"flags of {rank}", b"copied")

    if rank == 0:
        store.wait(["flags of 1"])
        memory.raise_stop()
        tensor = torch.ones(40)
        loaded = engine._load(0, engine.schedules[0].late)
        engine._kernels._kernel.run(tensor, Launch(loaded, False, epoch=2, place=2, mark=2 << 32))
        assert tensor[0].isnan()
        store.set("a later kernel", b"has ended")
    else:
        store.wait(["a later kernel"])
        assert torch.equal(memory.read(memory.flags), flags)
    engine.close()
    device.close()


@on_ranks(3)
def test_a_rank_that_does_not_come_is_named(rank, size, store):
    device = SimulatedDevice()
    engine = kernels([straggler(3)], store, rank, size, device, timeout_s=15.0)
    engine.submit(torch.ones(40)).wait(LIMIT)
    if rank != 2:
        with pytest.raises(RankFailure, match="not entered operation 1") as failure:
            engine.submit(torch.ones(40)).wait(LIMIT)
        assert failure.value.ranks == (2,)
    else:
        while engine.failure is None:
            time.sleep(0.05)
    engine.close()
    device.close()
