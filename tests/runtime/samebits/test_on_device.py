"""The same bits on a device with streams: the simulated one, and the CPU beside it."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch

from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.runtime.samebits.engine import SameBitsEngine
from latecomer.runtime.samebits.repetition import NativeRepetition
from latecomer.runtime.samebits.summing import SameBits
from latecomer.verify.errors import ArgumentError
from tests.runtime.spawning import default_group, spawn, together, values

SIZE = 3
SIZES = [5, 3000, 1024]
LIMIT = timedelta(seconds=60)
PROFILE = Profile(SIZE, AlphaBeta(1e-2, 1e-9), AlphaBeta(1e-5, 1e-10))


def _engine(rank, size, store, options, device):
    place = device if device is not None else "cpu"
    engine = AllReduceDispatcher(
        store, rank, size, options=options, profile=PROFILE, device=place, timeout_s=30.0
    )
    group = StoreExchange(host.prefixed("repetition", store), rank, size, 30.0)
    watchdog = engine.executor.watchdog
    sums = SameBits(size, place, NativeRepetition(group, watchdog), watchdog)
    return SameBitsEngine(engine, sums)


def _steps(rank, engine, device):
    """The bits of some steps' averages, of which one has a spike, and inf; the data comes late."""
    bits = []
    for step in range(5):
        works = []
        for size in SIZES:
            generator = torch.Generator().manual_seed(1000 * step + 10 * size + rank)
            tensor = torch.randn(size, generator=generator)
            if step == 2 and size == 3000:
                tensor[7] = 1e20
                tensor[2999] = torch.inf
            if device is None:
                works.append(engine.submit(tensor, average=True))
                continue
            data = torch.zeros(size)
            device.current().launch(lambda: time.sleep(0.002))
            device.current().launch(lambda data=data, tensor=tensor: data.copy_(tensor))
            works.append(engine.submit(data, average=True))
        for work in works:
            bits.append(work.wait(LIMIT).view(torch.int32).tolist())
    return bits, engine.sums.repeated


def _on_device_and_cpu(rank, size, store):
    default_group("gloo", rank, size, store)
    of_modes = {}
    for mode in (Options("native"), Options("static", late=(1,)), Options("predict")):
        for device in (SimulatedDevice(), None):
            name = f"{mode.mode} {device is None}"
            engine = _engine(rank, size, host.prefixed(name, store), mode, device)
            of_modes[name] = _steps(rank, engine, device)
            together(store, rank, size, f"over {name}")
            engine.close()
    return of_modes


@pytest.mark.gpu_logic
def test_a_device_has_the_bits_of_the_cpu():
    for of_modes in values(spawn(_on_device_and_cpu, SIZE)):
        results = [bits for bits, _ in of_modes.values()]
        assert all(each == results[0] for each in results), list(of_modes)
        assert all(repeated >= len(SIZES) for _, repeated in of_modes.values())


def test_a_capture_is_refused():
    device = SimulatedDevice()
    sums = SameBits(1, device, NoRepetition(), None)
    engine = SameBitsEngine(Nothing(), sums)
    with device.capture("thread_local"), pytest.raises(ArgumentError, match="replay of a CUDA"):
        engine.submit(torch.ones(3), average=False)
    sums.close()


class NoRepetition:
    def close(self):
        pass


class Nothing:
    """No engine: nothing comes to it."""
