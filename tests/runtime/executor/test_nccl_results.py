"""Waits for sums on a device: streams wait, hosts do not; what fails can't pass for a sum."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch

from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.executor.nccl.results import Results
from latecomer.runtime.work import AllReduceWork, PendingWork
from latecomer.verify.errors import LatecomerError

LIMIT = timedelta(seconds=60)


@pytest.fixture
def device():
    device = SimulatedDevice()
    yield device
    device.close()


def operation(device, tensor, gate):
    """A sum, of 3 everywhere, made on a stream of its own once the gate opens; its results."""
    results = Results(device)
    stream = device.stream()
    work = AllReduceWork(0, tensor, False)
    stream.launch(gate.wait)
    stream.launch(lambda: tensor.fill_(3))
    stream.launch(lambda: results.seal(work.flat))
    results.hand_out(work, stream.record())
    return work, results


def test_a_wait_holds_up_the_stream_and_not_the_host(device):
    gate = threading.Event()
    tensor = torch.zeros(4)
    copied_after_wait = torch.zeros(4)
    work, _ = operation(device, tensor, gate)

    assert work.wait() is tensor  # at once: the gate is closed
    assert PendingWork(work).wait()
    PendingWork(work).block_current_stream()
    device.current().launch(lambda: copied_after_wait.copy_(tensor))
    assert not work.is_done
    with pytest.raises(TimeoutError):
        work.wait(timedelta(milliseconds=20))
    with pytest.raises(TimeoutError):
        PendingWork(work).wait(timedelta(milliseconds=20))

    gate.set()
    device.current().synchronize()
    assert copied_after_wait.tolist() == [3.0] * 4
    work.settle()
    assert work.wait(LIMIT) is tensor


def test_a_future_is_behind_the_sum(device):
    gate = threading.Event()
    tensor = torch.zeros(4)
    work, _ = operation(device, tensor, gate)
    future = work.future()
    future_of_list = work.future(as_list=True)
    assert not future.done()

    gate.set()
    assert future.wait() is tensor
    assert tensor.tolist() == [3.0] * 4
    assert future_of_list.wait() == [tensor]
    work.settle()  # that all futures are complete is no harm
    assert work.future().wait() is tensor


def test_a_future_on_a_broken_device_ends_with_its_operation(device):
    gate = threading.Event()
    work, _ = operation(device, torch.zeros(4), gate)
    future = work.future()
    device.current().launch(lambda: 1 / 0)
    gate.set()
    work.settle(LatecomerError("lost"))
    with pytest.raises(RuntimeError, match="lost"):  # torch's, of what a callback raises
        future.wait()
    with pytest.raises(LatecomerError, match="lost"):
        work.wait()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_was_cut_short_is_marked_and_sums_keep_their_bits(device, dtype):
    gate = threading.Event()
    tensor = torch.zeros(4, dtype=dtype)
    work, results = operation(device, tensor, gate)

    for value in (-0.0, 1 / 3, float("inf"), torch.finfo(dtype).smallest_normal / 2):
        sound = torch.full((2,), value, dtype=dtype)
        before = sound.clone().view(torch.uint8)
        results.seal(sound)
        assert torch.equal(sound.view(torch.uint8), before)

    results.seal(torch.zeros(0, dtype=dtype))
    results.spoil()
    gate.set()
    work.wait()
    device.current().synchronize()
    assert tensor.isnan().tolist() == [True, False, False, False]


def test_a_mark_is_set_where_all_streams_of_the_pool_are_held_up():
    """Torch's pools give streams again: the mark may not stand behind a kernel that waits."""
    device = SimulatedDevice(pool=1)
    gate = threading.Event()
    tensor = torch.zeros(4)
    work, results = operation(device, tensor, gate)  # on the one stream that there is

    spoiling = threading.Thread(target=results.spoil, daemon=True)
    spoiling.start()
    spoiling.join(60)
    assert not spoiling.is_alive()

    gate.set()
    work.wait()
    device.current().synchronize()
    assert tensor.isnan().tolist() == [True, False, False, False]
    device.close()


def test_integers_hold_up_the_host(device):
    gate = threading.Event()
    tensor = torch.zeros(4, dtype=torch.int32)
    work, _ = operation(device, tensor, gate)
    waiting = threading.Thread(target=work.wait)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    work.settle()
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_averages_are_rounded_once(ranks, dtype):
    """As the engine divides: by a tensor. A product with the reciprocal differs for some."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    numbers = bits.float() / 7
    if dtype.itemsize == 2:
        numbers = bits.to(torch.int16).view(dtype)  # all that there are
    numbers = numbers[numbers.isfinite()]

    rounded_once = (numbers.double() / ranks).to(dtype)
    if dtype.itemsize == 2:  # float has twice the digits, and two more
        rounded_once = (numbers.double() / ranks).float().to(dtype)

    assert torch.equal(numbers.clone().div_(torch.full((1,), float(ranks))), rounded_once)
    if dtype is torch.float32:
        by_reciprocal = numbers * (torch.ones(1) / ranks)
        assert not torch.equal(by_reciprocal, rounded_once)
