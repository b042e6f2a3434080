"""Modes on a device: who is late there, not on the host, is found; alike on all ranks; no waits."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.messages import NATIVE
from latecomer.runtime.policy.on_device import on_device
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import PrefixStore, own_connection
from latecomer.verify.errors import ArgumentError, RankFailure
from tests.runtime.policy.network import Network, floats
from tests.runtime.spawning import default_group, on_ranks, spawn, together, values

pytestmark = pytest.mark.gpu_logic  # they start ranks, several times

LIMIT = timedelta(seconds=60)
SIZE = 4
LATE = 2
SLOW_HOST = 1
PROFILE = Profile(SIZE, AlphaBeta(1e-2, 1e-9), AlphaBeta(1e-5, 1e-10))
"""By it schedules are worth it however small the buffer."""


class DeviceNetwork(Network):
    """Hosts enqueue at once, ``window`` operations ahead; devices come when they come."""

    device_lateness = staticmethod(lambda rank, operation: 0.0)

    def __post_init__(self):
        super().__post_init__()
        self._device_s = [0.0] * self.size
        self._reached = {}

    def _arrive(self, rank, number):
        self._busy[rank] = False
        self.arrived_s[rank].append(self.now_s)
        nbytes = self.nbytes(rank, number)
        now_s = self._clock(rank)
        self.agents[rank].arrive(number, floats(nbytes), now_s, on_device=True)
        at_s = max(self._device_s[rank], self.now_s) + self.device_lateness(rank, number)
        self._device_s[rank] = at_s
        self._at(at_s + 1e-4, rank, self._host_sees, number, at_s)  # a little later
        self._next(rank)

    def _host_sees(self, rank, number, at_s):
        """The host notices that its device came to the operation at ``at_s``."""
        self.agents[rank].reached(number, at_s + self.clocks[rank], self._clock(rank))
        self._reached.setdefault(number, set()).add(rank)
        if len(self._reached[number]) < self.size:
            return
        end_s = at_s + self._takes_s(self.decisions[0][number], self.nbytes(rank, number))
        for peer in range(self.size):
            self._at(end_s, peer, self._done, number)

    def _takes_s(self, decision, nbytes):
        """From the last arrival, all others having come long before it."""
        if decision.candidate == NATIVE:
            return self.agents[0].inputs.native_s(nbytes, corrected=False)
        return self.predicted(decision, nbytes).completion_s

    def _decided(self, rank, operation, decision):
        assert operation == len(self.decisions[rank])
        self.decisions[rank].append(decision)
        self.decided_s[rank].append(self.now_s)


def _simulated(device_lateness, **options):
    """Four ranks in mode predict, after 60 operations."""
    network = DeviceNetwork(SIZE, Options("predict"), 60, window=4, **options)
    network.device_lateness = device_lateness
    return network.run()


def _slow_host(rank, operation):
    return 0.02 * (rank == SLOW_HOST)


def test_the_late_device_is_found_and_not_the_slow_host():
    one_late = _simulated(lambda rank, _: 0.05 * (rank == LATE), lateness=_slow_host)
    assert one_late.decisions[0][0].candidate == NATIVE
    assert one_late.decisions[0][-1].late == (LATE,)

    on_time = _simulated(lambda rank, _: 0.0, lateness=_slow_host)
    assert on_time.decisions[0][-1].late == (SLOW_HOST,)  # its device can't be there before it


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.2]), st.integers(0, SIZE - 1))
def test_all_ranks_launch_the_same_whatever_the_network_does(seed, lost, late):
    network = _simulated(
        lambda rank, operation: 0.05 * (rank == (late + operation // 30) % SIZE),
        seed=seed,
        lost=lost,
        doubled=lost,
        longest_s=0.02,
        clocks=(0.0, 900.0, -3.0, 0.5),
    )
    assert not network.faults
    assert len(network.decisions[0]) == 60
    for decisions in network.decisions:
        assert decisions == network.decisions[0]


def _dispatcher(rank, size, store, options, timeout_s=60.0, profile=PROFILE):
    if not dist.is_initialized():
        default_group("gloo", rank, size, store)
    return AllReduceDispatcher(
        PrefixStore(options.mode, store),
        rank,
        size,
        timeout_s=timeout_s,
        options=options,
        profile=profile,
        device=SimulatedDevice(),
    )


@on_ranks(SIZE)
def test_auto_predicts_the_late_device_without_a_host_that_waits(rank, size, store):
    """Rank 2's device comes after all others', and only when all hosts have enqueued the window.

    Mode static, after it, is captured in a graph.
    """
    reducer = _dispatcher(rank, size, store, Options("auto"))
    window = 5
    stream = reducer.executor.streams.current()
    # what runs on the stream: a wait of it holds up all else on the same connection
    device_store = own_connection(store)

    def launch_before(turn, number):
        """What the device does before it comes to an operation."""
        key = f"device {turn} {number}"
        if rank != LATE:
            stream.launch(lambda: device_store.set(f"{key} {rank}", ""))
            return
        awaited = [f"{key} {peer}" for peer in range(size) if peer != LATE]
        if number == 0:
            awaited += [f"host {turn} {peer}" for peer in range(size)]
        stream.launch(lambda: device_store.wait(awaited))

    for turn in range(40):
        if rank == SLOW_HOST:
            store.wait([f"host {turn} {peer}" for peer in range(size) if peer != SLOW_HOST])
        works = []
        for number in range(window):
            launch_before(turn, number)
            works.append(reducer.submit(torch.full((100,), float(rank))))
        store.set(f"host {turn} {rank}", "")
        assert [work.wait(LIMIT)[7].item() for work in works] == [6.0] * window

        # operations of two ways end in any order
        records = sorted(reducer.records, key=lambda record: record.operation)
        if records[-1].late == (LATE,):  # as all ranks see
            break

    ways = repr([(record.operation, record.way, record.late) for record in records])
    store.set(f"ways {rank}", ways)
    assert store.get("ways 0").decode() == ways
    assert records[0].late == ()
    assert records[-1].late == (LATE,)
    for record in records:
        assert record.arrived_s <= record.decided_s <= record.done_s
    with reducer.executor.streams.capture(), pytest.raises(ArgumentError, match="as it was once"):
        reducer.submit(torch.ones(5))
    with pytest.raises(ArgumentError, match="must be cpu for reduce-scatters"):
        reducer.all_gather(torch.ones(SIZE), torch.ones(1))
    together(store, rank, size, "over")
    reducer.close()

    _static_is_captured_once_it_has_run(rank, size, store)


def _static_is_captured_once_it_has_run(rank, size, store):
    options = Options("static", late=(LATE,))
    reducer = _dispatcher(rank, size, store, options)
    tensor = torch.zeros(5)
    device = reducer.executor.streams

    with device.capture("thread_local"), pytest.raises(ArgumentError, match="has not run before"):
        reducer.submit(tensor)
    reducer.submit(tensor).wait(LIMIT)  # that was no harm

    with device.capture("thread_local") as graph:
        reducer.submit(tensor).wait()
    tensor.fill_(rank)
    graph.replay()
    device.synchronize()
    assert tensor.tolist() == [6.0] * 5
    reducer.close()


def _coordinator_dies(rank, size, store):
    """Whom the others name when rank 0 dies; the profile is measured on the device before."""
    reducer = _dispatcher(rank, size, store, Options("predict"), 15.0, None)
    assert min(reducer.profile.native.beta_s, reducer.profile.schedule.alpha_s) > 0
    reducer.submit(torch.ones(100)).wait(LIMIT)
    together(store, rank, size, "begun")
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)

    def go_on():
        for _ in range(2):
            reducer.submit(torch.ones(100)).wait(LIMIT)

    with pytest.raises(RankFailure) as failed:
        go_on()
    return failed.value.ranks


def test_a_coordinator_that_dies_is_named():
    outcomes = spawn(_coordinator_dies, SIZE, timeout_s=60, victims=[0])
    assert values(outcomes[1:]) == [(0,)] * (SIZE - 1)


def test_what_waits_for_arrivals_is_refused_and_says_what_to_use():
    with pytest.raises(ArgumentError, match="Use mode='auto'"):
        on_device(Options("eager"))
    options, remark = on_device(Options("auto", most_late=2))
    assert options == Options("predict", most_late=2)
    assert remark == "mode auto predicts on a device: "
    assert on_device(Options("static", late=(3,))) == (Options("static", late=(3,)), "")
    assert on_device(Options("native"))[0].device == "transfers"
