"""Memory and cuts of tensors, and that ranks take the kernel all together or not at all."""

from __future__ import annotations

import importlib
import os

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.device import capability
from latecomer.runtime.device.capability import Capability, decide, own_capability
from latecomer.runtime.device.layout import KEPT, UNIT, Layout, cut
from latecomer.runtime.device.memory import join
from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.executor.closed_form import ClosedFormPart
from latecomer.runtime.executor.load import load
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.synth import generate
from latecomer.verify.device.program import SETS, DeviceAction, device_program
from latecomer.verify.errors import ArgumentError, KernelUnavailable, TensorError
from tests.runtime.device.test_kernel import LIMIT, kernels
from tests.runtime.schedules import direct, ring, straggler
from tests.runtime.spawning import on_ranks

SCHEDULES = [ring(2), ring(5), direct(4), straggler(4, 3)]
PROGRAMS = [device_program(schedule) for schedule in SCHEDULES]


@given(
    st.sampled_from(PROGRAMS),
    st.integers(0, 10**7),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 40),
    st.integers(0, 1 << 24),
)
def test_pieces_cover_the_tensor_and_fit_into_the_staging(program, numel, itemsize, blocks, more):
    roomy = Layout.within(1 << 30, program.ranks, blocks, program.slots)
    staging = SETS * blocks * program.slots * UNIT * 8 + 512 * SETS * blocks + more
    layout = Layout.within(staging, program.ranks, blocks, program.slots)

    tensor_cut = cut(numel, itemsize, program, layout)

    part = tensor_cut.part
    pieces = tensor_cut.pieces
    assert part % UNIT == 0
    assert part * itemsize * program.slots <= layout.area <= staging // (SETS * blocks)
    assert pieces * part * blocks * program.chunks >= numel
    assert pieces >= 1
    assert cut(numel, itemsize, program, roomy).pieces <= pieces
    if pieces > 1:  # one piece less would not do
        largest_part = layout.area // (program.slots * itemsize) // UNIT * UNIT
        assert (pieces - 1) * largest_part * blocks * program.chunks < numel


@pytest.mark.parametrize(
    "runnable", [load(direct(4)), load(straggler(4, 2)), ClosedFormPart(5, 1, 3)]
)
def test_a_row_is_what_the_executor_does(runnable):
    """The engine names what a kernel waits for by the executor's program."""

    def action_of(end):
        if end.send:
            return DeviceAction.PUT
        return DeviceAction.REDUCE if end.reduce else DeviceAction.COPY

    schedule = runnable.schedule
    ranks = range(schedule.ranks)
    if isinstance(runnable, ClosedFormPart):
        schedule = generate(5, chunks=3, owners="free")
        ranks = (1,)  # it has the program of its own rank only
    for rank in ranks:
        rows = device_program(schedule).rows[rank].tolist()
        ends = runnable.program(rank, runnable.late).ends
        assert [row[:3] for row in rows] == [[action_of(end), end.peer, end.chunk] for end in ends]


def test_too_little_staging_says_how_much_is_enough():
    with pytest.raises(ArgumentError, match="staging") as error:
        Layout.within(1000, 4, 8, 20)
    least = int(error.value.requirement.split()[4])
    assert Layout.within(least, 4, 8, 20).area >= 20 * UNIT * 8
    with pytest.raises(ArgumentError):
        Layout.within(least - 1, 4, 8, 20)


def test_parts_of_the_memory_do_not_overlap():
    layout = Layout.within(1 << 16, 1, 4, 10)
    group = StoreExchange(dist.HashStore(), 0, 1, 5.0)
    memory = join(layout, group, torch.device("cpu"))
    assert memory.bases.tolist() == [memory._buffer.data_ptr()]
    assert memory.flags.shape == (SETS, 10, 4)
    assert memory.stamps.shape == (KEPT, 1, 2)

    memory._buffer[: layout.flags_at] = 1
    for number, part in enumerate((memory.flags, memory.stamps, memory.stop), 2):
        assert not part.any()
        part.fill_(number)

    expected = [layout.flags_at, memory.flags.numel(), memory.stamps.numel(), 1]
    words = memory._buffer.numpy()
    assert (words == 1).sum() == expected[0]
    assert [(np.array(words) == number).sum() for number in (2, 3, 4)] == expected[1:]

    memory.stop.zero_()
    for words, expected_stop in (([0], 0), ([0, 0], 0), ([0, 1], 1), ([0], 1)):
        memory.raise_stop_if(torch.tensor(words, dtype=torch.int32))
        assert memory.read(memory.stop).tolist() == [expected_stop]
    memory.stop.zero_()
    memory.raise_stop()
    assert memory.read(memory.stop).tolist() == [1]


CAPABILITIES = {
    rank: Capability(
        problem="",
        machine="m",
        device=f"gpu{rank}",
        versions="v",
        reaches=("gpu0", "gpu1", "gpu2"),
    )
    for rank in range(3)
}


def test_what_all_ranks_say_decides():
    assert decide(CAPABILITIES) == ""
    for change, reason in [
        ({"problem": "no triton"}, "rank 1: no triton"),
        ({"machine": "other"}, "ranks 0 and 1 are on different machines"),
        ({"versions": "w"}, "rank 1 has w, rank 0 v"),
        ({"reaches": ("gpu0", "gpu1")}, "rank 1 (gpu1) can't raise flags on the device of rank 2"),
    ]:
        changed = msgspec.structs.replace(CAPABILITIES[1], **change)
        assert reason in decide(CAPABILITIES | {1: changed})


def test_what_ranks_of_several_machines_say_decides():
    """Each must reach the ranks of its own machine, and no others."""
    of_machine = {}
    for rank in range(4):
        name = f"m{rank // 2}"
        reaches = (f"{name} gpu0", f"{name} gpu1")
        of_machine[rank] = Capability("", name, reaches[rank % 2], "v", reaches)
    assert decide(of_machine, 2) == ""
    assert decide(of_machine) == "ranks 0 and 2 are on different machines"
    for change, reason in [
        ({"problem": "no triton"}, "rank 3: no triton"),
        ({"machine": "m0"}, "ranks 2 and 3 are on different machines"),
        ({"versions": "w"}, "rank 3 has w, rank 0 v"),
        ({"reaches": ("m1 gpu1",)}, "rank 3 (m1 gpu1) can't raise flags on the device of rank 2"),
    ]:
        changed = msgspec.structs.replace(of_machine[3], **change)
        assert reason in decide(of_machine | {3: changed}, 2)


def test_what_a_rank_says_of_itself(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    cpu = torch.device("cpu")
    own = own_capability(cpu, "settings")
    assert own.problem == ""
    assert "settings" in own.versions
    assert own_capability(cpu, "settings", "another machine").machine != own.machine
    assert decide({0: own, 1: own}) == ""
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "TRITON_INTERPRET=1" in own_capability(cpu, "").problem

    def missing(name):
        raise ImportError(f"No module named {name!r}")

    with monkeypatch.context() as changed:
        changed.setattr(capability, "importlib", replace_import(missing))
        assert "pip install triton" in own_capability(cpu, "").problem


def replace_import(call):
    """A module ``importlib`` with this in place of ``import_module``."""
    module = type(importlib)("importlib")
    module.import_module = call
    return module


@on_ranks(2)
def test_all_ranks_take_transfers_if_one_has_no_kernel(rank, size, store):
    device = SimulatedDevice()
    os.environ["TRITON_INTERPRET"] = "1" if rank == 0 else "0"
    from latecomer.runtime.device.allreduce import KernelAllReduce
    from latecomer.runtime.device.choice import make_executor

    schedule = load(ring(size))
    if not dist.is_initialized():
        default = dist.PrefixStore("default", store)
        dist.init_process_group("gloo", store=default, rank=rank, world_size=size)
    with pytest.raises(KernelUnavailable, match="rank 1: a CPU"):
        KernelAllReduce(schedule, dist.PrefixStore("a", store), rank, size, device=device)

    executor = make_executor(schedule, store, rank, size, device=device, timeout_s=60.0)
    assert "rank 1: a CPU runs kernels in triton's interpreter alone" in executor.engine.transfers
    tensor = torch.ones(7)
    executor.submit(tensor).wait(LIMIT)
    assert tensor.tolist() == [size] * 7
    executor.close()
    with pytest.raises(TensorError, match="has no streams"):
        kernels([ring(size)], dist.PrefixStore("b", store), rank, size, "cpu")
    device.close()
