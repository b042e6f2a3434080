"""One thread that drives all connections of a rank: waits, takes what has come, and goes on.

Where nothing is under way, who submits a small operation begins it itself, and so sends its first
data: handing it over to the thread takes as long as the network does. If all data of the others has
come by then, it ends it, too.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping

from latecomer.runtime.executor.tcp.connection import Connection, Destination, Mismatch, PeerLost
from latecomer.runtime.executor.tcp.flow_control import LOOK_S, ReceiveCredits, Sender
from latecomer.runtime.executor.tcp.frames import CREDIT, Header, fitting
from latecomer.runtime.executor.tcp.priority import SMALL_BYTES, Priority, priority_of
from latecomer.runtime.executor.tcp.transfer import EarlyFrame, PieceBuffer, TransferState
from latecomer.runtime.health.diagnosis import WaitFor
from latecomer.runtime.host import EPOLLIN, EPOLLOUT, Socket, Thread, host
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
        # by operation that this rank has not entered: what has come for it
        self._early: dict[int, list[EarlyFrame]] = defaultdict(list)
        self._credits = ReceiveCredits(phases, self._connections, self._gone, sizes)
        self._sender = Sender(self._connections, self._states, sizes)
        self._spare: list[PieceBuffer] = []
        self._submitted: deque[CollectiveWork] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._driving = host.Lock()  # held by whoever takes and sends data
        self._submitter: Thread | None = None  # who begins an operation itself, while it does
        self._broke: Exception | None = None  # why it could not
        self._stop = self._drain = False
        # It tells of a failure, and touches no tensor any more. Who gives up for the same failure
        # aborts this loop meanwhile: each would wait for the other.
        self._reports = False
        self._busy_s = math.inf  # since when a thread drives it; infinite: it waits for events
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
        is_small = priority_of(work) is Priority.SMALL
        if not (is_small and self._begin_at_once(work)):
            self._submitted.append(work)
            self._ring()

    def _begin_at_once(self, work: CollectiveWork) -> bool:
        """Begin an operation on this thread, if the loop has nothing else to do; whether it is so.

        It is the only one that may end by that, and nobody has asked to be told of it so far.
        """
        if not self._driving.acquire(blocking=False):
            return False
        try:
            if self._stop or self._broke is not None or self._has_work():
                return False
            self._submitter = host.current_thread()
            self._busy_s = host.monotonic()
            self._enter(work)
            self._sender.go_on()
            self._ask_for_room()
            self._end_complete()
        except Exception as error:  # the loop's thread gives up for it
            self._broke = error
        except BaseException as error:  # Ctrl-C, and be it within a frame
            self._broke = RuntimeError(f"interrupted by {type(error).__name__}")
            raise
        finally:
            self._submitter = None
            self._busy_s = math.inf
            self._driving.release()
            if self._sender.held_back or self._broke is not None:
                self._ring()
        return True

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it on the loop's thread, behind what it was told to call before; any thread."""
        self._calls.append(call)
        self._ring()

    def abort(self) -> None:
        """Stop at once: no tensor is touched any more, all connections are closed."""
        self._stop = True
        self._ring()
        thread = host.current_thread()
        if thread is not self._thread and not self._reports:
            self._thread.join(STOP_S)
        if thread not in (self._thread, self._submitter) and self._driving.acquire(timeout=STOP_S):
            self._driving.release()
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
                with self._driving:
                    self._end_complete()  # what is in place is done, whatever failed after it
        except PeerLost as lost:
            self._report(str(lost), None)
        except Exception as error:  # a mismatch, or an observer's: nobody may be left waiting
            self._report("broke", error)
        finally:
            self._stop = True
            self._busy_s = math.inf
            with self._driving:
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
        events = self._poll.poll(LOOK_S if self._sender.held_back else None)
        with self._driving:
            if self._broke is not None:
                raise self._broke
            self._busy_s = host.monotonic()
            self._go_on(events)
            self._busy_s = math.inf

    def _go_on(self, events: Collection[tuple[int, int]]) -> None:
        """Take what has come, begin what is submitted, send what may go, end what is complete."""
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
            if connection.credits and not (connection.lost or connection.blocked):
                try:
                    connection.write()
                except PeerLost as lost:
                    self._lose(connection, lost)
        self._ask_for_room()
        self._end_complete()

    def _ask_for_room(self) -> None:
        """Wake the loop when a connection that is full has room again."""
        for connection in self._connections.values():
            if connection.blocked is not connection.armed and not connection.lost:
                connection.armed = connection.blocked
                out = EPOLLOUT if connection.blocked else 0
                self._poll.modify(connection.number, EPOLLIN | out)

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
        if state.needs_credit:
            self._credits.enter(state)
        else:
            self._sender.enter(state)
        for frame in self._early.pop(state.number, ()):
            if frame.is_credit:
                self._receive_credit(state, frame.header)
            else:
                frame.pass_to(state, self._receive_data(state, frame.header))
                self._moved_s = host.monotonic()  # an observer may take long for each
        for number, frames in self._early.items():
            if number < state.number:  # which this rank has run in another way, or not at all
                raise Mismatch(number, frames[0].peer)
        for peer, how in self._gone.items():
            if state.needs(peer):
                raise PeerLost(how)

    def _find(self, header: Header) -> tuple[Destination, int] | None:
        """Whose data comes next, or note a credit."""
        peer, transfer, number, _, length, _ = header
        is_credit = transfer & CREDIT != 0
        state = self._states.get(number)
        if state is not None:
            if is_credit:
                self._receive_credit(state, header)
                return None
            return state, self._receive_data(state, header)
        if number < self._next or length > SMALL_BYTES:
            raise Mismatch(number, peer)
        early = EarlyFrame(header)
        self._early[number].append(early)
        return None if is_credit else (early, 0)

    def _receive_credit(self, state: TransferState, header: Header) -> None:
        _, _, _, upto, _, _ = header
        self._sender.receive_credit(state, self._end_of(state, header), upto)

    def _receive_data(self, state: TransferState, header: Header) -> int:
        """At which end of an operation the data comes that follows a header."""
        peer, _, _, offset, length, _ = header
        i = self._end_of(state, header)
        if not length or offset != state.arrived[i] or offset + length > state.credit[i]:
            raise PeerLost(f"rank {peer} sent data for which it had no credit")
        state.touch(i)
        return i

    def _end_of(self, state: TransferState, header: Header) -> int:
        """Which end of an operation a header is about."""
        peer, transfer, number, _, _, digest = header
        if state.digest != digest:
            raise Mismatch(number, peer)
        i = state.program.at.get(transfer & ~CREDIT, -1)
        is_credit = transfer & CREDIT != 0
        if i < 0 or (end := state.program.ends[i]).send is not is_credit or end.peer != peer:
            raise PeerLost(f"rank {peer} spoke of a transfer that is not between us")
        return i

    def _lose(self, connection: Connection, lost: PeerLost) -> None:
        """A connection that closes is a failure if an operation under way needs it."""
        self._gone[connection.peer] = str(lost)
        connection.lost = True
        self._poll.unregister(connection.number)
        if any(state.needs(connection.peer) for state in self._states.values()):
            raise lost
