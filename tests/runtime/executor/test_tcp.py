"""Sums of the rounds, bit by bit; operations that differ; one event loop against scripted bytes."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
import time
from functools import partial

import pytest
import torch

from latecomer.runtime import Executor, load
from latecomer.runtime.executor.program import RankProgram, TransferEnd, rank_program
from latecomer.runtime.executor.tcp import loop
from latecomer.runtime.executor.tcp.connection import Mismatch
from latecomer.runtime.executor.tcp.flow_control import HELD_S, LOOK_S, MOST_HELD, SendBacklog
from latecomer.runtime.executor.tcp.frames import CREDIT, HEADER, NETWORK, ONE_HOST
from latecomer.runtime.executor.tcp.priority import SMALL_BYTES
from latecomer.runtime.executor.tcp.transfer import TransferState
from latecomer.runtime.host import host
from latecomer.runtime.simulation.network import Weather
from latecomer.runtime.work import AllReduceWork, Observer
from latecomer.verify.errors import RankFailure
from tests.runtime import schedules
from tests.runtime.simulated import SEEDS, on_hosts
from tests.runtime.spawning import together

WAIT_S = 20.0  # against hangs


def _inputs(size, numel, dtype):
    dice = torch.Generator().manual_seed(5)
    return [torch.randn(numel, generator=dice).to(dtype) for _ in range(size)]


def _by_rounds(schedule, inputs):
    """Per rank, what the schedule makes of ``inputs`` with a barrier after every round."""
    k = schedule.chunks
    bounds = [inputs[0].numel() * chunk // k for chunk in range(k + 1)]
    start = {}
    for rank, tensor in enumerate(inputs):
        for chunk, (begin, end) in enumerate(itertools.pairwise(bounds)):
            start[rank, chunk] = tensor[begin:end]

    sums = schedules.by_rounds(schedule, start, torch.add)

    outputs = []
    for rank in range(schedule.ranks):
        outputs.append(torch.cat([sums[rank, chunk] for chunk in range(k)]))
    return outputs


WIDE = [(schedules.straggler(4, m=2), False), (schedules.ring(3), False)]
NARROW = [(schedules.straggler(3), True), (schedules.direct(4), True), (schedules.swapping(), True)]


def _narrow(monkeypatch):
    """As on a network; and with buffers so small that frames are cut anywhere."""
    monkeypatch.setattr(loop, "fitting", lambda sockets: NETWORK)
    return partial(Weather, buffer=4096)


@pytest.mark.parametrize(("schedule", "narrow"), WIDE + NARROW)
def test_bits_are_those_of_the_rounds_one_after_the_other(schedule, narrow, monkeypatch):
    large = 3 * ONE_HOST.due * schedule.chunks // 8  # chunks of one and a half windows
    sizes = (0, 5, 10_007, 50_021) if narrow else (13, large + 1, 100_003)
    cases = []
    for numel in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            inputs = _inputs(schedule.ranks, numel, dtype)
            cases.append((inputs, _by_rounds(schedule, inputs)))
    verified = load(schedule)

    def body(rank, size, store):
        executor = Executor(verified, store, rank, size, timeout_s=30)
        operations = []
        for inputs, _ in cases:
            operations.append(executor.submit(inputs[rank].clone()))
            host.sleep(0.01 * (rank == size - 1))

        for (_, expected), operation in zip(cases, operations, strict=True):
            bits = expected[rank].view(torch.uint8)
            assert torch.equal(operation.wait().view(torch.uint8), bits)
        executor.close()

    weather = _narrow(monkeypatch) if narrow else Weather
    seeds = SEEDS if narrow else SEEDS[::5]  # so many bytes take their time
    on_hosts(schedule.ranks, lambda job: body, seeds=seeds, weather=weather)


def test_receives_of_one_round_that_wait_for_each_others_sends_all_get_credit(monkeypatch):
    """Ranks 0 and 1 exchange sums behind what rank 2 sends over them, all in one round.

    With credit for the first few receives of a round only, each of the two would hold back what
    the other one's first receive has to wait for.
    """
    verified = load(schedules.crossing(3))
    numel = 6 * NETWORK.due  # chunks that no window holds

    def body(rank, size, store):
        executor = Executor(verified, store, rank, size, timeout_s=20)
        total = executor.submit(torch.full((numel,), rank + 1.0)).wait()
        assert torch.equal(total, torch.full((numel,), 6.0))
        executor.close()

    on_hosts(3, lambda job: body, seeds=SEEDS[::2], weather=_narrow(monkeypatch))


@pytest.mark.parametrize(
    "difference",
    [{"numel": 91}, {"numel": 0}, {"dtype": torch.int32}, {"schedule": 0}, {"late": 1}],
)
def test_ranks_that_submit_different_things_are_told_so(difference):
    """The last rank submits something else than all others, the second time."""
    verified = [load(schedules.ring(3)), load(schedules.straggler(3))]

    def body(rank, size, store):
        executor = Executor(verified, store, rank, size, timeout_s=20)
        executor.submit(torch.ones(90)).wait()
        together(store, rank, size, "all have summed, before anything differs")

        submitted = {"numel": 90, "dtype": torch.float32, "schedule": 1, "late": 0}
        if rank == size - 1:
            submitted |= difference
        tensor = torch.ones(submitted["numel"], dtype=submitted["dtype"])
        schedule = submitted["schedule"]
        late = submitted["late"] if schedule == 1 else None  # a ring has no late rank

        def differ():
            executor.submit(tensor, schedule=schedule, late=late).wait()
            executor.submit(torch.ones(90)).wait()  # an empty tensor alone is done at once

        with pytest.raises(RankFailure, match="did not submit the same operation") as failed:
            differ()
        executor.close()
        assert 2 in failed.value.ranks
        assert "operation 1" in str(failed.value)

    on_hosts(3, lambda job: body)


class _Line:
    """Stands for a link on a line of so many bytes per second."""

    def __init__(self, rate):
        self.rate = rate
        self.handed_over = 0
        self.arrived = 0.0
        self.now = 100.0

    def unacknowledged(self):
        return self.handed_over - int(self.arrived)

    def pass_time(self, seconds):
        self.now += seconds
        self.arrived = min(self.handed_over, self.arrived + seconds * self.rate)


@pytest.mark.parametrize("rate", [25e6, 200e6, 50e9])
def test_the_kernel_gets_what_keeps_the_port_busy_and_not_much_more(rate, monkeypatch):
    line = _Line(rate)
    monkeypatch.setattr(host, "monotonic", lambda: line.now)
    port = SendBacklog([line], NETWORK.held)

    held = []
    idle_looks = 0
    for _ in range(300):  # looks, a millisecond apart
        while not port.full():
            line.handed_over += NETWORK.frame
        held.append(line.unacknowledged())
        line.pass_time(LOOK_S)
        if line.unacknowledged() == 0:
            idle_looks += 1

    wanted = min(max(rate * HELD_S, NETWORK.held), MOST_HELD)
    for nbytes in held[150:]:
        assert wanted / 2 <= nbytes <= wanted + NETWORK.frame
    # a line that is faster than that between two looks can't be kept busy
    if rate * LOOK_S <= MOST_HELD:
        assert idle_looks <= 30


@pytest.mark.parametrize(("address", "sizes"), [("127.0.0.1", ONE_HOST), ("127.0.0.2", NETWORK)])
def test_only_on_one_host_nothing_is_paced(address, sizes):

    def congestion_control(link):
        return link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)

    with socket.create_server((address, 0)) as server:
        link = socket.create_connection(server.getsockname(), WAIT_S, ("127.0.0.1", 0))
        before = congestion_control(link)

        assert loop.fitting([link]) == sizes

        expected = b"reno".ljust(16, b"\0") if sizes is ONE_HOST else before
        assert congestion_control(link) == expected
        link.close()


class Peer:
    """Rank 1 of 2, whose every byte the test decides; rank 0 is a real engine."""

    def __init__(self, monkeypatch, sizes):
        monkeypatch.setattr(loop, "fitting", lambda connections: sizes)
        self.sizes = sizes
        engine_socket, self.socket = socket.socketpair()
        engine_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * ONE_HOST.frame)
        engine_socket.setblocking(False)
        self.socket.settimeout(WAIT_S)
        self.ended = queue.Queue()
        self.ended_on = []  # threads
        self.failed = queue.Queue()
        self.schedule = schedules.ring(2)
        self.program = rank_program(self.schedule, 0)
        self.engine = loop.EventLoop(
            sockets={1: engine_socket},
            rank=0,
            phases=len(self.schedule.phases),
            observer=Observer(),
            ended=self._end,
            failed=lambda noticed, error: self.failed.put((noticed, error)),
        )

        # Rank 0 sends ``first`` and then receives its sum back; rank 1 does so with ``second``.
        self.first, self.second = self._transfers_of_step(0)
        self.second_back, self.first_back = self._transfers_of_step(1)

        self.credited = {}  # by transfer, up to which byte rank 0 lets it in
        self.digest = 0  # of the operation, as the last frame from rank 0 had it

    def _end(self, work):
        self.ended_on.append(threading.current_thread())
        self.ended.put(work)

    def _transfers_of_step(self, step):
        return [end.index for end in self.program.ends if end.step == step]

    def submit(self, number, numel):
        work = self.work(number, numel)
        self.engine.submit(work)
        return work

    def work(self, number, numel):
        tensor = torch.arange(numel, dtype=torch.float32)
        work = AllReduceWork(number, tensor, False)
        work.key = (0, ())
        work.program = self.program
        work.bounds = (0, numel // 2, numel)
        return work

    def is_early(self, work):
        """What is sent from now on is for this operation, which rank 0 has not been given."""
        self.digest = TransferState(work, [], Observer(), self.sizes).digest

    def sum_with_ones(self):
        """What rank 0 has of eight elements if all that rank 1 sends are ones."""
        first_round = self.schedule.phases[0].rounds[0]
        (chunk,) = [transfer.chunk for transfer in first_round if transfer.src == 0]
        expected = torch.arange(8.0) + 1
        expected[4 * chunk : 4 * chunk + 4] = 1  # what came back, whatever was sent
        return expected

    def until_there(self, number, frames):
        """Wait until so many frames for an operation to come have begun to come."""
        deadline_s = time.monotonic() + WAIT_S
        while len(self.engine._early.get(number, ())) < frames:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        with self.engine._driving:  # and the loop waits again
            pass

    def read(self, length):
        data = bytearray()
        while len(data) < length:
            data += self.socket.recv(length - len(data))
        return bytes(data)

    def until(self, holds):
        """Take frames until something holds of the data that came with them."""
        data = b""
        while not holds(data):
            length, transfer, _, offset, self.digest = HEADER.unpack(self.read(HEADER.size))
            if transfer & CREDIT:
                self.credited[transfer ^ CREDIT] = offset
            data += self.read(length)

    def frame(self, transfer, data, offset=0):
        return HEADER.pack(len(data), transfer, 0, offset, self.digest) + data

    def grant(self, transfer, upto):
        self.socket.sendall(HEADER.pack(0, transfer | CREDIT, 0, upto, self.digest))

    def close(self):
        self.engine.abort()
        self.socket.close()


@pytest.fixture
def peer(monkeypatch, request):
    scripted = Peer(monkeypatch, getattr(request, "param", NETWORK))
    yield scripted
    scripted.close()


@pytest.mark.parametrize("nonsense", [b"\xff" * 64, HEADER.pack(9, 0, 1, 0, 0)])
def test_an_operation_is_done_whatever_follows_its_last_byte(peer, nonsense):
    operation = peer.submit(0, 8)
    peer.until(lambda data: len(data) == 16)
    ones = torch.ones(4).numpy().tobytes()
    peer.socket.sendall(peer.frame(peer.second, ones))
    peer.until(lambda data: len(data) == 16)
    assert not peer.credited  # small operations need none
    assert peer.ended.empty()
    assert peer.failed.empty()

    peer.socket.sendall(peer.frame(peer.first_back, ones) + nonsense)  # in one read
    assert peer.ended.get(timeout=WAIT_S) is operation
    assert torch.equal(operation.flat, peer.sum_with_ones())

    peer.submit(1, 8)
    noticed, error = peer.failed.get(timeout=WAIT_S)
    assert "rank 1" in noticed or isinstance(error, Mismatch)
    assert peer.ended.empty()


ONES = torch.ones(4).numpy().tobytes()


def test_small_data_that_comes_early_is_kept_and_who_submits_ends_the_operation(peer):
    operation = peer.work(0, 8)
    peer.is_early(operation)
    peer.socket.sendall(peer.frame(peer.second, ONES) + peer.frame(peer.first_back, ONES))
    peer.until_there(0, frames=2)
    peer.engine.submit(operation)
    assert peer.ended.get(timeout=WAIT_S) is operation
    assert peer.ended_on == [threading.current_thread()]
    assert torch.equal(operation.flat, peer.sum_with_ones())


def test_small_data_of_which_half_has_come_early_goes_in_when_the_rest_comes(peer):
    operation = peer.work(0, 8)
    peer.is_early(operation)
    data = peer.frame(peer.second, ONES) + peer.frame(peer.first_back, ONES)
    peer.socket.sendall(data[:-8])
    peer.until_there(0, frames=2)
    peer.engine.submit(operation)
    with pytest.raises(queue.Empty):
        peer.ended.get(timeout=0.1)
    peer.socket.sendall(data[-8:])
    assert peer.ended.get(timeout=WAIT_S) is operation
    assert peer.ended_on != [threading.current_thread()]
    assert torch.equal(operation.flat, peer.sum_with_ones())


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("another operation", "operation 0 is not the same on rank 1"),
        ("another number", "operation 0 is not the same on rank 1"),
        ("too much", "operation 0 is not the same on rank 1"),
        ("no data", "rank 0 rank 1 sent data for which it had no credit"),
    ],
)
def test_what_comes_early_and_fits_no_operation_is_noticed(peer, fault, expected):
    peer.is_early(peer.work(0, 10 if fault == "another operation" else 8))
    data = {"too much": bytes(SMALL_BYTES + 4), "no data": b""}.get(fault, ONES)
    peer.socket.sendall(peer.frame(peer.second, data))
    if fault != "too much":  # which is refused at once
        peer.until_there(0, frames=1)
        assert peer.failed.empty()
        peer.submit(1 if fault == "another number" else 0, 8)
    noticed, error = peer.failed.get(timeout=WAIT_S)
    assert (str(error) if error is not None else noticed) == expected
    assert peer.ended.empty()


@pytest.mark.parametrize("raised", [ValueError("an observer's"), KeyboardInterrupt()])
def test_an_exception_as_who_submits_begins_an_operation_ends_the_loop(peer, monkeypatch, raised):
    """Ctrl-C, too: who goes on after it must not send half of a frame again."""

    def touch(state, i):
        raise raised

    monkeypatch.setattr(TransferState, "touch", touch)
    if isinstance(raised, Exception):
        peer.submit(0, 8)
    else:
        with pytest.raises(KeyboardInterrupt):
            peer.submit(0, 8)
    noticed, error = peer.failed.get(timeout=WAIT_S)
    assert "broke" in noticed
    assert error is raised or str(error) == "interrupted by KeyboardInterrupt"
    assert peer.ended.empty()


@pytest.mark.parametrize("peer", [NETWORK, ONE_HOST], indirect=True)
def test_a_place_that_a_send_frees_is_granted_though_nothing_else_happens(peer):
    """What came ahead of its place is let in by the send; then more of it must be asked for."""
    window = peer.sizes.due
    size = window + 2 * peer.sizes.wake
    peer.submit(0, 2 * size // 4)
    peer.until(lambda _: peer.credited.get(peer.first_back) == window)
    for begin in range(0, window, NETWORK.frame):
        peer.socket.sendall(peer.frame(peer.first_back, bytes(NETWORK.frame), begin))
    peer.grant(peer.first, size)
    peer.until(lambda data: len(data) == size)
    peer.until(lambda _: peer.credited[peer.first_back] == size)


@pytest.fixture
def two_peers(monkeypatch):
    """Rank 0's engine on one host, and the sockets of ranks 1 and 2, which the test plays."""
    monkeypatch.setattr(loop, "fitting", lambda connections: ONE_HOST)
    engine_sockets = {}
    peer_sockets = {}
    for peer in (1, 2):
        engine_sockets[peer], peer_sockets[peer] = socket.socketpair()
        engine_sockets[peer].setblocking(False)
        peer_sockets[peer].settimeout(WAIT_S)

    ended = queue.Queue()
    failed = queue.Queue()
    engine = loop.EventLoop(
        sockets=engine_sockets,
        rank=0,
        phases=1,
        observer=Observer(),
        ended=ended.put,
        failed=lambda noticed, error: failed.put((noticed, error)),
    )

    yield engine, peer_sockets, ended, failed
    engine.abort()
    for peer_socket in peer_sockets.values():
        peer_socket.close()


def _send_to(peer, number):
    """Operation ``number``: rank 0 sends one frame, the largest there is, to ``peer``."""
    end = TransferEnd(
        index=0,
        send=True,
        reduce=False,
        scratch=False,
        peer=peer,
        chunk=0,
        phase=0,
        step=0,
        after=(),
    )

    elements = ONE_HOST.frame // 4
    work = AllReduceWork(number, torch.zeros(elements), False)
    work.key = (0, ())
    work.program = RankProgram((end,), (("send", 0),), 1)
    work.bounds = (0, elements)
    return work


def test_an_operation_may_end_while_another_s_full_connection_stands_before_it(two_peers):
    """Its last bytes leave when the poll says so, and its place in the queue comes up later.

    The engine once looked for the operation that was gone by then, and died of a KeyError.
    """
    engine, peer_sockets, ended, failed = two_peers
    works = [_send_to(peer=1, number=0), _send_to(peer=2, number=1)]
    digests = [TransferState(work, [], Observer(), ONE_HOST).digest for work in works]
    for work in works:
        engine.submit(work)

    for peer, number in ((2, 1), (1, 0)):  # each frame is larger than its connection's buffer
        credit = HEADER.pack(0, CREDIT, number, ONE_HOST.frame, digests[number])
        peer_sockets[peer].sendall(credit)
        peer_sockets[peer].recv(1, socket.MSG_PEEK)
    for peer, number in ((2, 1), (1, 0)):
        unread = HEADER.size + ONE_HOST.frame
        while unread:
            unread -= len(peer_sockets[peer].recv(unread))
        assert ended.get(timeout=WAIT_S) is works[number]

    engine.close()
    assert failed.empty()


def test_who_stops_a_loop_does_not_wait_while_it_tells_of_a_failure_of_its_own(monkeypatch):
    """Both would wait: the loop's thread for who has noticed the same a moment before."""
    monkeypatch.setattr(loop, "fitting", lambda connections: ONE_HOST)
    monkeypatch.setattr(loop, "STOP_S", 1000 * WAIT_S)
    engine_socket, peer_socket = socket.socketpair()
    engine_socket.setblocking(False)
    tells = threading.Event()
    is_stopped = threading.Event()
    told = queue.Queue()

    def failed(noticed, error):
        tells.set()
        told.put((str(error), is_stopped.wait(WAIT_S)))

    engine = loop.EventLoop(
        sockets={1: engine_socket},
        rank=0,
        phases=1,
        observer=Observer(),
        ended=lambda work: None,
        failed=failed,
    )

    def break_it():
        raise ValueError("it breaks")

    engine.call_soon(break_it)
    assert tells.wait(WAIT_S)
    engine.abort()
    is_stopped.set()
    assert told.get(timeout=WAIT_S) == ("it breaks", True)
    peer_socket.close()
