"""Sums of the rounds, bit by bit; operations that differ."""

from __future__ import annotations

import socket
import time

import pytest
import torch

from runtime import Executor, load
from runtime.executor.tcp import loop as engine
from runtime.executor.tcp.flow_control import HELD_S, LOOK_S, MOST_HELD, SendBacklog
from runtime.executor.tcp.frames import NETWORK, ONE_HOST
from tests.runtime import schedules
from tests.runtime.spawning import spawn, together, values
from verify.errors import RankFailure


def _inputs(size, numel, dtype):
    dice = torch.Generator().manual_seed(5)
    return [torch.randn(numel, generator=dice).to(dtype) for _ in range(size)]


def _by_rounds(schedule, inputs):
    """The schedule with a barrier after every round, in one process."""
    state = [x.clone() for x in inputs]
    bounds = [inputs[0].numel() * c // schedule.chunks for c in range(schedule.chunks + 1)]
    for phase in schedule.phases:
        for transfers in phase.rounds:
            before = [x.clone() for x in state]
            for t in transfers:
                part = slice(bounds[t.chunk], bounds[t.chunk + 1])
                if t.op == "reduce":
                    state[t.dst][part] += before[t.src][part]
                else:
                    state[t.dst][part] = before[t.src][part]
    return state


def _bits(rank, size, store, schedule, sizes, narrow):
    if narrow:  # as on a network, and frames are cut anywhere
        engine.fitting = lambda connections: NETWORK
    executor = Executor(load(schedule), store, rank, size, timeout_s=30)
    if narrow:
        for link in executor._engine._connections.values():
            link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    cases = [(numel, dtype) for numel in sizes for dtype in (torch.float32, torch.bfloat16)]
    operations = []
    for numel, dtype in cases:
        operations.append(executor.submit(_inputs(size, numel, dtype)[rank]))
        time.sleep(0.01 * (rank == size - 1))
    for (numel, dtype), operation in zip(cases, operations, strict=True):
        expected = _by_rounds(schedule, _inputs(size, numel, dtype))[rank]
        assert torch.equal(operation.wait().view(torch.uint8), expected.view(torch.uint8))
    executor.close()


@pytest.mark.parametrize(
    ("schedule", "narrow"),
    [
        (schedules.straggler(4, m=2), False),
        (schedules.straggler(3), True),
        (schedules.direct(4), True),
        (schedules.swapping(), True),
        (schedules.ring(3), False),
    ],
)
def test_bits_are_those_of_the_rounds_one_after_the_other(schedule, narrow):
    large = 3 * ONE_HOST.due * schedule.chunks // 8  # chunks of one and a half windows
    sizes = (0, 5, 10_007, 50_021) if narrow else (13, large + 1, 100_003)
    values(spawn(_bits, schedule.ranks, schedule, sizes, narrow, timeout_s=60))


def _differing(rank, size, store, what):
    """The last rank submits something else than all others, the second time."""
    made = [load(schedules.ring(size)), load(schedules.straggler(size))]
    executor = Executor(made, store, rank, size, timeout_s=20)
    executor.submit(torch.ones(90)).wait()
    together(store, rank, size, "first is done")
    other = what if rank == size - 1 else {}
    tensor = torch.ones(other.get("numel", 90), dtype=other.get("dtype", torch.float32))
    options = {
        "schedule": 1,
        "late": 0,
        **{k: other[k] for k in other if k in ("schedule", "late")},
    }
    if options["schedule"] == 0:
        options["late"] = None
    try:
        executor.submit(tensor, **options).wait()
        executor.submit(torch.ones(90)).wait()  # an empty tensor alone is done at once
    except RankFailure as failure:
        return failure.ranks, str(failure)
    finally:
        executor.close()
    return None


@pytest.mark.parametrize(
    "what",
    [{"numel": 91}, {"numel": 0}, {"dtype": torch.int32}, {"schedule": 0}, {"late": 1}],
)
def test_ranks_that_submit_different_things_are_told_so(what):
    for ranks, text in values(spawn(_differing, 3, what, timeout_s=60)):
        assert 2 in ranks
        assert "did not submit the same operation" in text
        assert "operation 1" in text


class _Line:
    """Stands for a link on a line of so many bytes per second."""

    def __init__(self, rate):
        self.rate, self.handed_over, self.arrived, self.now = rate, 0, 0.0, 100.0

    def unacknowledged(self):
        return self.handed_over - int(self.arrived)

    def pass_time(self, seconds):
        self.now += seconds
        self.arrived = min(self.handed_over, self.arrived + seconds * self.rate)


@pytest.mark.parametrize("rate", [25e6, 200e6, 50e9])
def test_the_kernel_gets_what_keeps_the_port_busy_and_not_much_more(rate, monkeypatch):
    line = _Line(rate)
    monkeypatch.setattr("runtime.executor.tcp.flow_control.time.monotonic", lambda: line.now)
    port = SendBacklog([line], NETWORK.held)
    held, idle = [], 0
    for _ in range(300):  # looks, a millisecond apart
        while not port.full():
            line.handed_over += NETWORK.frame
        held.append(line.unacknowledged())
        line.pass_time(LOOK_S)
        idle += line.unacknowledged() == 0
    wanted = min(max(rate * HELD_S, NETWORK.held), MOST_HELD)
    assert all(wanted / 2 <= bytes <= wanted + NETWORK.frame for bytes in held[150:])
    assert idle <= (300 if rate * LOOK_S > MOST_HELD else 30)
