"""One thread that drives all connections of a rank and decides which bytes go next.

A port is used best by one transfer at a time, the one that is due by the order of rounds: two that
share it delay each other. But it must never stand idle while a later transfer could use it. Both
ends see to this:

    sender      of all transfers that may go (granted, and their data is there) the first in the
                order of operations and rounds goes; a full connection is not overtaken
    receiver    the first receive of a phase that is not complete is granted a large window, the
                one or two behind it a share of their chunk, so that they can fill a gap, and the
                large one as soon as those before are nearly done

A phase is a *lane*: receives of the next operation stand behind those of the one before, phase by
phase, so the helpers reduce the next bucket while the completion of the last one still waits for
the late rank. All ranks submit in the same order, every lane is first in, first out, and the due
receive of every lane is granted without condition: with the schedule's own proof this rules out
deadlock.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from runtime.blame import Waiting
from runtime.operation import Mismatch, Observer, Operation, PeerLost
from runtime.tcp.flow import Buffer, Flow
from runtime.tcp.frames import GRANT, WAKE_AT
from runtime.tcp.link import Link
from runtime.tcp.moves import Moves, moves

DUE_WINDOW = 1024 * 1024
"""Bytes that the due transfer may be ahead of its place: covers the delay of a grant on any link
up to some GB/s."""
NEARLY_DONE = 64 * 1024
"""Bytes left of those before it with which the next transfer counts as due, so that the port does
not stand idle for the time that a grant and the first byte take."""
AHEAD_SHARE = 4  # a transfer behind the due one may be a quarter of its chunk ahead
AHEAD_LEAST, AHEAD_MOST = WAKE_AT, 256 * 1024
AHEAD_TRANSFERS = 2
GRANT_AT = WAKE_AT
"""Bytes more than before that are worth a grant of their own."""
CLOSE_S = 5.0
STOP_S = 1.0
STUCK_S = 0.25
"""A thread that has worked for so long without a look at its connections is held up itself."""


class Engine:
    """Runs operations over the connections of this rank.

    Args:
        connections: to all other ranks, non-blocking; the engine closes them.
        rank: the own.
        lanes: the most phases of any schedule.
        observer: is told about steps, on the engine's thread.
        ended: is called with each operation whose result is in place.
        failed: is called once with what was noticed, and with the exception if it is this rank's
            own; the engine's thread ends with that.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        rank: int,
        lanes: int,
        *,
        observer: Observer,
        ended: Callable[[Operation], None],
        failed: Callable[[str, Exception | None], None],
    ) -> None:
        self._rank, self._observer = rank, observer
        self._ended, self._failed = ended, failed
        self._links = {peer: Link(c, peer, self._find) for peer, c in connections.items()}
        self._by_number = {link.number: link for link in self._links.values()}
        self._gone: dict[int, str] = {}  # closed connections, and how that was seen
        self._flows: dict[int, Flow] = {}  # by operation, those under way
        self._next = 0  # the first operation that has not been submitted
        self._early: dict[int, list[tuple[int, int, int, int]]] = {}  # grants for such
        self._lanes: list[deque[Flow]] = [deque() for _ in range(lanes)]
        self._sends: list[tuple[int, int]] = []  # (operation, move) that have grants, in order
        self._planned: dict[tuple[int, tuple[int, ...]], Moves] = {}
        self._spare: list[Buffer] = []
        self._submitted: deque[Operation] = deque()
        self._stop = self._drain = False
        self._busy_s = math.inf  # since when the thread works, and does not wait for events
        self.moved_s = time.monotonic()
        self._bell, self._door = socket.socketpair()
        self._bell.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._door.fileno(), select.EPOLLIN)
        for link in self._links.values():
            self._poll.register(link.number, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="latecomer-tcp", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Start an operation; any thread. Divides at once where it is an average."""
        self.moved_s = time.monotonic()
        if operation.average:
            operation.flat.div_(len(self._links) + 1)
        self._submitted.append(operation)
        self._ring()

    def abort(self) -> None:
        """Stop at once: no tensor is touched any more, all connections are closed."""
        self._stop = True
        self._end(STOP_S)

    def close(self) -> None:
        """Stop when the operations under way are done, but within ``CLOSE_S`` seconds."""
        self._drain = True
        self._end(CLOSE_S)

    def waiting(self) -> tuple[Waiting, float] | None:
        """What the oldest operation waits for, and since when; ``None`` if it does not wait.

        Any thread: it reads counts that only grow, so at worst what it says has just passed.
        """
        flow = self._flows.get(min(self._flows, default=-1))
        if flow is None or time.monotonic() - self._busy_s > STUCK_S:
            return None
        for i, move in enumerate(flow.plan.all):
            come = flow.done[i] if move.send else flow.arrived[i]
            if come < flow.size[i] and (not move.send or flow.limit(i) > come):
                phase, round = flow.plan.steps[move.step]
                return Waiting(flow.number, phase, round, move.peer), flow.moved_s
        return None

    def _end(self, timeout_s: float) -> None:
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        for link in self._links.values():
            link.cut()  # a thread that is stuck in an observer finds them so

    def _ring(self) -> None:
        """Wake the engine's thread."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._bell.send(b"!")

    def _run(self) -> None:
        try:
            while not self._stop and (self._flows or self._submitted or not self._drain):
                self._turn()
        except PeerLost as lost:
            self._busy_s = math.inf
            if not self._stop:
                self._failed(f"rank {self._rank} {lost}", None)
        except (
            Exception
        ) as error:  # a mismatch, or an observer's; whatever it is, nobody may be left waiting
            if not self._stop:
                self._failed(f"rank {self._rank} broke", error)
        finally:
            self._stop = True
            self._busy_s = math.inf
            for link in self._links.values():
                link.close()
            self._poll.close()
            self._door.close()
            self._bell.close()

    def _turn(self) -> None:
        """Wait for something to happen, and do all that follows from it."""
        self._busy_s = math.inf
        events = self._poll.poll()
        self._busy_s = time.monotonic()
        for number, event in events:
            if self._stop:
                return
            if number == self._door.fileno():
                self._door.recv(4096)
                continue
            link = self._by_number[number]
            with self._losing(link):
                if event & select.EPOLLOUT:
                    link.write()
                if event & ~select.EPOLLOUT:
                    link.read()
                    self.moved_s = time.monotonic()
        while self._submitted:
            self._enter(self._submitted.popleft())
        for lane in range(len(self._lanes)):
            self._grant(lane)
        self._pump()
        for link in self._links.values():
            if link.peer in self._gone:
                continue
            if link.has_grants and not link.blocked:
                with self._losing(link):
                    link.write()
            if link.blocked is not link.armed:
                link.armed = link.blocked
                out = select.EPOLLOUT if link.blocked else 0
                self._poll.modify(link.number, select.EPOLLIN | out)
        for flow in [flow for flow in self._flows.values() if not flow.left]:
            del self._flows[flow.number]
            self._ended(flow.operation)

    def _enter(self, operation: Operation) -> None:
        if operation.key not in self._planned:
            self._planned[operation.key] = moves(operation.plans)
        plan = self._planned[operation.key]
        flow = Flow(operation, plan, self._spare, self._observer)
        self._flows[flow.number] = flow
        self._next = flow.number + 1
        for peer, how in self._gone.items():
            if flow.needs(peer):
                raise PeerLost(how)
        for peer, transfer, upto, digest in self._early.pop(flow.number, ()):
            self._granted(flow, peer, transfer, upto, digest)
        for lane, receives in enumerate(plan.lanes):
            if receives:
                self._lanes[lane].append(flow)

    def _find(
        self, peer: int, transfer: int, number: int, offset: int, length: int, digest: int
    ) -> tuple[Flow, int] | None:
        """Whose data comes next, or note a grant."""
        flow = self._flows.get(number)
        if transfer & GRANT:
            if flow is not None:
                self._granted(flow, peer, transfer ^ GRANT, offset, digest)
            elif number >= self._next:
                grant = peer, transfer ^ GRANT, offset, digest
                self._early.setdefault(number, []).append(grant)
            else:
                raise Mismatch(number, peer)
            return None
        if flow is None or flow.digest != digest:
            raise Mismatch(number, peer)
        i = flow.plan.at.get(transfer, -1)
        fits = i >= 0 and not flow.plan.all[i].send and flow.plan.all[i].peer == peer
        if not fits or offset != flow.arrived[i] or offset + length > flow.granted[i] or not length:
            raise PeerLost(f"rank {peer} sent data that nobody asked for")
        flow.touch(i)
        return flow, i

    def _granted(self, flow: Flow, peer: int, transfer: int, upto: int, digest: int) -> None:
        if flow.digest != digest:
            raise Mismatch(flow.number, peer)
        i = flow.plan.at.get(transfer, -1)
        fits = i >= 0 and flow.plan.all[i].send and flow.plan.all[i].peer == peer
        if not fits or upto > flow.size[i]:
            raise PeerLost(f"rank {peer} granted what nobody asked for")
        if upto > flow.granted[i]:
            if flow.granted[i] == flow.done[i]:
                bisect.insort(self._sends, (flow.number, i))
            flow.granted[i] = upto

    def _grant(self, lane: int) -> None:
        """Grant the due receive of a lane, and a share of those behind it."""
        queue = self._lanes[lane]
        before = ahead = 0  # bytes that others need first, transfers behind the due one
        for flow in list(queue):
            receives, done, size = flow.plan.lanes[lane], flow.done, flow.size
            front = flow.front[lane]
            while front < len(receives) and done[receives[front]] == size[receives[front]]:
                front += 1
            flow.front[lane] = front
            if front == len(receives):
                queue.remove(flow)
            for i in receives[front:]:
                left = size[i] - done[i]
                if not left:
                    continue
                if before <= NEARLY_DONE:
                    window = DUE_WINDOW
                elif ahead < AHEAD_TRANSFERS:
                    window = min(max(size[i] // AHEAD_SHARE, AHEAD_LEAST), AHEAD_MOST)
                    ahead += 1
                else:
                    return
                before += left
                upto = min(size[i], done[i] + window)
                more = upto - flow.granted[i]
                if more >= GRANT_AT or (more > 0 and upto == size[i]):
                    flow.granted[i] = upto
                    move = flow.plan.all[i]
                    if move.peer not in self._gone:
                        self._links[move.peer].grant(flow, move.index, upto)

    def _pump(self) -> None:
        """Send what may go, in order, until a connection is full."""
        at = 0
        while at < len(self._sends):
            number, i = self._sends[at]
            flow = self._flows[number]
            link = self._links[flow.plan.all[i].peer]
            with self._losing(link):
                while not link.blocked and (length := flow.sendable(i)):
                    flow.touch(i)
                    link.send(flow, i, length)
                    self.moved_s = time.monotonic()
            if flow.done[i] == flow.granted[i]:
                del self._sends[at]
            else:
                at += 1
            if link.blocked:
                return

    @contextlib.contextmanager
    def _losing(self, link: Link) -> Iterator[None]:
        """A connection that closes is a failure if an operation under way needs it."""
        try:
            yield
        except PeerLost as lost:
            self._gone[link.peer] = str(lost)
            self._poll.unregister(link.number)
            if any(flow.needs(link.peer) for flow in self._flows.values()):
                raise
