"""One thread that drives all connections of a rank: waits, takes what has come, and goes on.

Which bytes go next is decided elsewhere: ``runtime.executor.tcp.sending`` for what this rank sends,
``runtime.executor.tcp.credits`` for what others send to it.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from runtime.executor.operation import Mismatch, Observer, Operation, PeerLost
from runtime.executor.tcp.backlog import LOOK_S
from runtime.executor.tcp.connection import Connection
from runtime.executor.tcp.credits import ReceiveCredits
from runtime.executor.tcp.ends import RankProgram, moves
from runtime.executor.tcp.frames import GRANT
from runtime.executor.tcp.sending import Sending
from runtime.executor.tcp.sizes import fitting
from runtime.executor.tcp.transfer import Buffer, TransferState
from runtime.health.diagnosis import WaitFor

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
        self._sizes = sizes = fitting(connections.values())
        self._links = {
            peer: Connection(c, peer, self._find, sizes.wake) for peer, c in connections.items()
        }
        self._by_number = {link.number: link for link in self._links.values()}
        self._gone: dict[int, str] = {}  # closed connections, and how that was seen
        self._flows: dict[int, TransferState] = {}  # by operation, those under way
        self._next = 0  # the first operation that has not been submitted
        self._early: dict[int, list[tuple[int, int, int, int]]] = {}  # grants for such
        self._grants = ReceiveCredits(lanes, self._links, self._gone, sizes)
        self._sending = Sending(self._links, self._flows, sizes)
        self._planned: dict[tuple[int, tuple[int, ...]], RankProgram] = {}
        self._spare: list[Buffer] = []
        self._submitted: deque[Operation] = deque()
        self._stop = self._drain = False
        self._busy_s = math.inf  # since when the thread works, and does not wait for events
        self._moved_s = time.monotonic()
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
        self._moved_s = time.monotonic()
        if operation.average:
            operation.flat.div_(len(self._links) + 1)
        self._submitted.append(operation)
        self._ring()

    def abort(self) -> None:
        """Stop at once: no tensor is touched any more, all connections are closed."""
        self._stop = True
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
        for link in self._links.values():
            link.cut()  # a thread that is stuck in an observer finds them so

    def close(self) -> None:
        """Stop when the operations under way are done, but within ``CLOSE_S`` seconds."""
        self._drain = True
        self._ring()
        self._thread.join(CLOSE_S)
        self.abort()

    def waiting(self) -> tuple[WaitFor, float] | None:
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
                return WaitFor(flow.number, phase, round, move.peer), flow.moved_s
        return None

    @property
    def moved_s(self) -> float:
        """``time.monotonic()`` when something last came, went or was submitted."""
        return max(self._moved_s, self._sending.moved_s)

    def _ring(self) -> None:
        """Wake the engine's thread."""
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._bell.send(b"!")

    def _run(self) -> None:
        try:
            self._work()
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

    def _work(self) -> None:
        try:
            while not self._stop and (self._flows or self._submitted or not self._drain):
                self._turn()
        finally:
            self._end_complete()  # what is in place is done, whatever failed after it

    def _turn(self) -> None:
        """Wait for something to happen, and do all that follows from it."""
        self._busy_s = math.inf
        events = self._poll.poll(LOOK_S if self._sending.held_back else None)
        self._busy_s = time.monotonic()
        for number, event in events:
            if self._stop:
                return
            if number == self._door.fileno():
                self._door.recv(4096)
                continue
            link = self._by_number[number]
            try:
                if event & select.EPOLLOUT:
                    link.write()
                if event & ~select.EPOLLOUT:
                    link.read()
                    self._moved_s = time.monotonic()
            except PeerLost as lost:
                self._lose(link, lost)
        while self._submitted:
            self._enter(self._submitted.popleft())
        self._grants.renew()
        if self._sending.go_on():
            self._grants.renew()  # what has gone has freed places
        for link in self._links.values():
            if link.peer in self._gone:
                continue
            if link.has_grants and not link.blocked:
                try:
                    link.write()
                except PeerLost as lost:
                    self._lose(link, lost)
                    continue
            if link.blocked is not link.armed:
                link.armed = link.blocked
                out = select.EPOLLOUT if link.blocked else 0
                self._poll.modify(link.number, select.EPOLLIN | out)
        self._end_complete()

    def _end_complete(self) -> None:
        for flow in [flow for flow in self._flows.values() if not flow.left]:
            del self._flows[flow.number]
            self._ended(flow.operation)

    def _enter(self, operation: Operation) -> None:
        if operation.key not in self._planned:
            self._planned[operation.key] = moves(operation.plans)
        plan = self._planned[operation.key]
        flow = TransferState(operation, plan, self._spare, self._observer, self._sizes)
        self._flows[flow.number] = flow
        self._next = flow.number + 1
        for peer, how in self._gone.items():
            if flow.needs(peer):
                raise PeerLost(how)
        for peer, transfer, upto, digest in self._early.pop(flow.number, ()):
            self._sending.granted(flow, peer, transfer, upto, digest)
        self._grants.enter(flow)

    def _find(
        self, peer: int, transfer: int, number: int, offset: int, length: int, digest: int
    ) -> tuple[TransferState, int] | None:
        """Whose data comes next, or note a grant."""
        flow = self._flows.get(number)
        if transfer & GRANT:
            if flow is not None:
                self._sending.granted(flow, peer, transfer ^ GRANT, offset, digest)
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

    def _lose(self, link: Connection, lost: PeerLost) -> None:
        """A connection that closes is a failure if an operation under way needs it."""
        self._gone[link.peer] = str(lost)
        link.lost = True
        self._poll.unregister(link.number)
        if any(flow.needs(link.peer) for flow in self._flows.values()):
            raise lost
