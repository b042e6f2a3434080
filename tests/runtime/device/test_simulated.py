"""The simulated device orders, fails and captures as CUDA does, and refuses what CUDA forbids."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.executor.nccl.streams import device_of


@pytest.fixture
def device():
    device = SimulatedDevice()
    yield device
    device.close()


def test_streams_are_ordered_by_events_alone(device):
    first = device.stream()
    second = device.stream()
    gate = threading.Event()
    done = []

    first.launch(gate.wait)  # a kernel that takes long
    first.launch(lambda: done.append("first"))
    event = first.record()

    second.launch(lambda: done.append("second"))
    second.synchronize()  # not held up by the other stream, nor was the host
    assert done == ["second"]
    assert not event.query()

    second.wait(event)
    second.launch(lambda: done.append("third"))
    gate.set()
    device.synchronize()
    assert done == ["second", "first", "third"]
    assert event.query()


def test_pools_give_their_streams_again():
    """As torch's do, which have 32."""
    device = SimulatedDevice(pool=2)
    first = device.stream()
    second = device.stream()
    third = device.stream()
    assert first is third
    assert len({device.current(), first, second, device.aside(), device.aside()}) == 5
    device.close()


def test_the_first_error_breaks_the_device(device):
    before = device.current().record()
    device.current().synchronize()
    device.current().launch(lambda: 1 / 0)
    device.current().launch(lambda: pytest.fail("ran on a broken device"))
    after = device.current().record()
    with pytest.raises(ZeroDivisionError):
        device.synchronize()
    assert before.query()
    with pytest.raises(ZeroDivisionError):
        device.stream().record().query()
    del after


def test_a_capture_runs_nothing_until_it_is_replayed(device):
    total = torch.zeros(1)
    side = device.stream()

    with device.capture() as graph:
        assert device.is_capturing()
        device.current().launch(lambda: total.add_(1))
        side.wait(device.current().record())
        with device.on(side):
            assert device.is_capturing()
        side.launch(lambda: total.mul_(10))
        device.current().wait(side.record())

    assert total == 0
    for expected in (10, 110):
        graph.replay()
        device.synchronize()
        assert total == expected
    assert not device.is_capturing()


@pytest.mark.parametrize(
    ("text", "misuse"),
    [
        ("queried while", lambda device, outside, side: outside.query()),
        ("captured and what is not", lambda device, outside, side: device.current().wait(outside)),
        ("not joined", lambda device, outside, side: side.wait(device.current().record())),
    ],
)
def test_what_cuda_forbids_in_a_capture_is_refused(device, text, misuse):
    outside = device.current().record()
    side = device.stream()
    with contextlib.ExitStack() as stack:  # what follows ends within the capture, or with it
        stack.enter_context(pytest.raises(RuntimeError, match=text))
        stack.enter_context(device.capture())
        misuse(device, outside, side)
        side.launch(list)
    outside_again = device.current().record()
    device.synchronize()
    assert outside_again.query()


def test_an_event_of_a_capture_means_nothing_outside(device):
    with device.capture():
        event = device.current().record()
    with pytest.raises(RuntimeError, match="captured graph was queried"):
        event.query()
    with pytest.raises(RuntimeError, match="captured and what is not"):
        device.stream().wait(event)


def test_the_cpu_has_no_streams_and_a_device_is_its_own(device):
    assert device_of("cpu") is None
    assert device_of(device) is device
