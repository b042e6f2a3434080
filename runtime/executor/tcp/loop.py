"""One thread that drives all connections of a rank: waits, takes what has come, and goes on."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from latecomer.runtime.executor.tcp.connection import Connection, Mismatch, PeerLost
from latecomer.runtime.executor.tcp.flow_control import LOOK_S, ReceiveCredits, Sender
from latecomer.runtime.executor.tcp.frames import CREDIT, fitting
from latecomer.runtime.executor.tcp.transfer import PieceBuffer, TransferState
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.host import EPOLLIN, EPOLLOUT, Socket, host
from latecomer.runtime.work import CollectiveWork, Observer

CLOSE_S = 5.0
STOP_S = 1.0
STUCK_S = 0.25  # without a look at its connections: the thread is held up itself


class EventLoop:
    """Runs operations over the connections of this rank.

    Args:
        sockets: to all other ranks, non-blocking; closed here.
        phases: the most phases of any schedule.
        ended: is called with each operation whose result is in place.
        failed: is called once with what was noticed, and with the exception if it is this rank's.
    """

    def __init__(
        self,
        sockets: Mapping[int, Socket],
        rank: int,
        phases: int,
        observer: Observer,
        ended: Callable[[CollectiveWork], None],
        failed: Callable[[str, Exception | None], None],
    ) -> None:
        self._rank = rank
        self._observer = observer
        self._ended = ended
        self._failed = failed
        self._sizes = sizes = fitting(sockets.values())
        self._connections = {
            peer: Connection(each, peer, self._find, sizes.wake) for peer, each in sockets.items()
        }
        self._by_number = {each.number: each for each in self._connections.values()}
        self._gone: dict[int, str] = {}  # closed connections, and how that was seen
        self._states: dict[int, TransferState] = {}  # by operation, those under way
        self._next = 0  # the first operation that has not been submitted
        self._early: dict[int, list[tuple[int, ...]]] = defaultdict(list)  # headers of credits
        self._credits = ReceiveCredits(phases, self._connections, self._gone, sizes)
        self._sender = Sender(self._connections, self._states, sizes)
        self._spare: list[PieceBuffer] = []
        self._submitted: deque[CollectiveWork] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._stop = self._drain = False
        # It tells of a failure, and touches no tensor any more. Who gives up for the same failure
        # aborts this loop meanwhile: each would wait for the other.
        self._reports = False
        self._busy_s = math.inf  # since when the thread works, and does not wait for events
        self._moved_s = host.monotonic()
        self._bell, self._door = host.socketpair()
        self._bell.setblocking(False)
        self._poll = host.epoll()
        for number in (self._door.fileno(), *self._by_number):
            self._poll.register(number, EPOLLIN)
        self._thread = host.Thread(target=self._run, name="latecomer-tcp", daemon=True)
        self._thread.start()

    def submit(self, work: CollectiveWork) -> None:
        """Start an operation; any thread. Divides at once where it is an average."""
        self._moved_s = host.monotonic()
        if work.average:
            work.flat.div_(len(self._connections) + 1)
        self._submitted.append(work)
        self._ring()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it on the loop's thread, behind what it was told to call before; any thread."""
        self._calls.append(call)
        self._ring()

    def abort(self) -> None:
        """Stop at once: no tensor is touched any more, all connections are closed."""
        self._stop = True
        self._ring()
        if host.current_thread() is not self._thread and not self._reports:
            self._thread.join(STOP_S)
        for connection in self._connections.values():
            connection.cut()  # a thread that is stuck in an observer finds them so

    def close(self) -> None:
        """Stop when the operations under way are done, but within ``CLOSE_S`` seconds."""
        self._drain = True
        self._ring()
        self._thread.join(CLOSE_S)
        self.abort()

    def waiting(self) -> tuple[WaitFor, float] | None:
        """What the oldest operation waits for; any thread, so at worst it has just passed."""
        state = self._states.get(min(self._states, default=-1))
        if state is None or host.monotonic() - self._busy_s > STUCK_S:
            return None
        for i, end in enumerate(state.program.ends):
            come = state.done[i] if end.send else state.arrived[i]
            if come < state.size[i] and (not end.send or state.limit(i) > come):
                phase, round = state.program.steps[end.step]
                return WaitFor(state.number, phase, round, end.peer), state.moved_s
        return None

    @property
    def moved_s(self) -> float:
        """``time.monotonic()`` when something last came, went or was submitted."""
        return max(self._moved_s, self._sender.moved_s)

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: it has ended
            self._bell.send(b"!")

    def _run(self) -> None:
        try:
            try:
                while not self._stop and (self._has_work() or not self._drain):
                    self._turn()
            finally:
                self._end_complete()  # what is in place is done, whatever failed after it
        except PeerLost as lost:
            self._report(str(lost), None)
        except Exception as error:  # a mismatch, or an observer's: nobody may be left waiting
            self._report("broke", error)
        finally:
            self._stop = True
            self._busy_s = math.inf
            for connection in self._connections.values():
                connection.close()
            for each in (self._poll, self._door, self._bell):
                each.close()

    def _report(self, noticed: str, error: Exception | None) -> None:
        self._busy_s = math.inf
        self._reports = True
        if not self._stop:  # else it is a consequence of the failure that stopped us
            self._failed(f"rank {self._rank} {noticed}", error)

    def _turn(self) -> None:
        """Wait for something to happen, and do all that follows from it."""
        self._busy_s = math.inf
        events = self._poll.poll(LOOK_S if self._sender.held_back else None)
        self._busy_s = host.monotonic()
        for number, event in events:
            if self._stop:
                return
            if number == self._door.fileno():
                self._door.recv(4096)
                continue
            connection = self._by_number[number]
            try:
                if event & EPOLLOUT:
                    connection.write()
                if event & ~EPOLLOUT:
                    connection.read()
                    self._moved_s = host.monotonic()
            except PeerLost as lost:
                self._lose(connection, lost)
        while self._calls:
            self._calls.popleft()()  # before what is submitted: a call may submit
        while self._submitted:
            self._enter(self._submitted.popleft())
        self._credits.renew()
        if self._sender.go_on():
            self._credits.renew()  # what has gone has freed places
        for connection in self._connections.values():
            if connection.lost:
                continue
            if connection.credits and not connection.blocked:
                try:
                    connection.write()
                except PeerLost as lost:
                    self._lose(connection, lost)
                    continue
            if connection.blocked is not connection.armed:
                connection.armed = connection.blocked
                out = EPOLLOUT if connection.blocked else 0
                self._poll.modify(connection.number, EPOLLIN | out)
        self._end_complete()

    def _has_work(self) -> bool:
        return bool(self._states or self._submitted or self._calls)

    def _end_complete(self) -> None:
        complete = [state for state in self._states.values() if not state.left]
        if complete:
            self._begin_wait_behind(complete)
        for state in complete:
            del self._states[state.number]
            self._ended(state.work)

    def _begin_wait_behind(self, complete: list[TransferState]) -> None:
        """The oldest operation that is left is waited for anew, where one that ends went before it.

        It stood behind the other one, which was older or had priority and may have taken long.
        """
        left = [state for state in self._states.values() if state.left]
        if not left:
            return
        oldest = min(left, key=lambda state: state.number)
        for state in complete:
            if state.number < oldest.number or state.priority < oldest.priority:
                oldest.moved_s = host.monotonic()

    def _enter(self, work: CollectiveWork) -> None:
        state = TransferState(work, self._spare, self._observer, self._sizes)
        self._states[state.number] = state
        self._next = state.number + 1
        for peer, how in self._gone.items():
            if state.needs(peer):
                raise PeerLost(how)
        for header in self._early.pop(state.number, ()):
            self._find(*header)
        self._credits.enter(state)

    def _find(
        self, peer: int, transfer: int, number: int, offset: int, length: int, digest: int
    ) -> tuple[TransferState, int] | None:
        """Whose data comes next, or note a credit."""
        state = self._states.get(number)
        is_credit = transfer & CREDIT != 0
        if is_credit and state is None and number >= self._next:
            self._early[number].append((peer, transfer, number, offset, length, digest))
            return None
        if state is None or state.digest != digest:
            raise Mismatch(number, peer)
        i = state.program.at.get(transfer & ~CREDIT, -1)
        if i < 0 or (end := state.program.ends[i]).send is not is_credit or end.peer != peer:
            raise PeerLost(f"rank {peer} spoke of a transfer that is not between us")
        if is_credit:
            self._sender.receive_credit(state, i, offset)
            return None
        if not length or offset != state.arrived[i] or offset + length > state.credit[i]:
            raise PeerLost(f"rank {peer} sent data for which it had no credit")
        state.touch(i)
        return state, i

    def _lose(self, connection: Connection, lost: PeerLost) -> None:
        """A connection that closes is a failure if an operation under way needs it."""
        self._gone[connection.peer] = str(lost)
        connection.lost = True
        self._poll.unregister(connection.number)
        if any(state.needs(connection.peer) for state in self._states.values()):
            raise lost
