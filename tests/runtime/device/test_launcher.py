"""The engine that launches kernels, with kernels that end, end late, or never: what it keeps."""

from __future__ import annotations

import threading

import pytest
import torch

from latecomer.runtime.device import launcher
from latecomer.runtime.device.launcher import KernelEngine
from latecomer.runtime.device.layout import Layout
from latecomer.runtime.device.memory import SymmetricMemory
from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.device.stamps import DeviceClock
from latecomer.runtime.device.variants import LoadedProgram
from latecomer.runtime.executor.load import load
from latecomer.runtime.work import AllReduceWork
from latecomer.verify.device.program import device_program
from tests.runtime.schedules import ring

PROGRAM = device_program(ring(2))


class GatedKernel:
    """Puts nothing, and ends when its gate is opened; it does not look at the word that stops."""

    def __init__(self) -> None:
        self.clock = DeviceClock()
        self.gate = threading.Event()

    def run(self, flat, launch):
        self.gate.wait()


@pytest.fixture
def device():
    device = SimulatedDevice()
    yield device
    device.close()


@pytest.fixture
def launched(device, monkeypatch):
    """An engine with one operation on its way, and its kernel."""
    monkeypatch.setattr(launcher, "CLOSE_S", 0.05)
    monkeypatch.setattr(launcher, "_abandoned", [])

    layout = Layout.within(1 << 16, 2, 1, PROGRAM.slots)
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    memory = SymmetricMemory(layout, buffer, [buffer.data_ptr()] * 2, None)

    kernel = GatedKernel()
    loaded = LoadedProgram(PROGRAM, 0, device.tensors)
    engine = KernelEngine(
        device,
        memory,
        kernel,
        0,
        lambda work: loaded,
        entered=lambda operation: None,
        arrived=lambda operation, at_s: None,
        ended=lambda work: work.settle(),
        failed=lambda text, error: None,
    )

    program = load(ring(2)).program(0, ())
    work = AllReduceWork(0, torch.zeros(64), False, key=(0, ()), program=program)
    engine.submit(work)
    yield engine, kernel, memory, work
    kernel.gate.set()


def test_staging_is_kept_for_good_while_a_kernel_may_still_reach_it(launched):
    engine, kernel, memory, work = launched

    engine.close()

    [(kept_memory, kept_kernel, [flight])] = launcher._abandoned
    assert kept_memory is memory
    assert kept_kernel is kernel
    assert flight.work is work
    assert memory.stop.item() == 1
    assert not work.is_done


def test_a_device_that_has_failed_may_reach_it_too(launched, device):
    engine, _, memory, _ = launched
    device.current().launch(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        device.current().synchronize()
    engine.close()
    assert [kept_memory for kept_memory, _, _ in launcher._abandoned] == [memory]


def test_nothing_is_kept_when_all_kernels_have_ended(launched, monkeypatch):
    engine, kernel, _, work = launched
    monkeypatch.setattr(launcher, "CLOSE_S", 60.0)
    kernel.gate.set()
    engine.close()
    assert work.is_done
    assert launcher._abandoned == []
