"""Credit-based flow control: what others may send to this rank, and what this rank sends, when.

A port is used best by one transfer at a time, the one that is due by the order of operations and
rounds, since two that share it delay each other. But it must never stand idle while another
transfer could use it.

*Receiving.* So the first receive of a phase that is not complete gets credit for a window, the few
behind it for a share of their chunk, so that they can fill a gap, and for a window of their own as
soon as those before are nearly done. Receives of the next operation stand behind those of the one
before, phase by phase, so the helpers reduce the next bucket while the completion of the last one
still waits for the late rank; and priority by priority, so that what is needed first does not stand
behind what is needed later. All ranks submit in the same order, every queue is first in, first
out, and its due receive always gets credit: so does that of the oldest operation, whatever its
priority. With incast a round has several receives, and what one of them overwrites may have to be
sent before: so all receives of the due one's round always get some credit. With the schedule's own
proof this rules out deadlock (proofs/coq/SendAhead.v). Small operations have all their credit from
the start.

*Sending.* Of all transfers that may go (there is credit, and their data is there) the first goes,
by priority and then by order. A full connection is not overtaken, and nothing overtakes what the
kernel holds. So the kernel gets no more than keeps the port busy until the loop looks again:
``HELD_S`` seconds at the rate at which bytes have been arriving (measured while there is a backlog,
over ``MEASURE_S`` at least). Measured and simulated on eight ports of 200 Mbit/s: with a limit on
each connection instead, several transfers share a port and the completion takes a tenth longer.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Collection, Mapping

from latecomer.runtime.executor.tcp.connection import Connection, PeerLost
from latecomer.runtime.executor.tcp.frames import Sizes
from latecomer.runtime.executor.tcp.priority import Priority
from latecomer.runtime.executor.tcp.transfer import TransferState
from latecomer.runtime.host import host

AHEAD_SHARE = 4  # a transfer behind the due one may be a quarter of its chunk ahead
AHEAD_TRANSFERS = 2  # behind the due one get credit, to fill a gap
HELD_S = 0.005  # five looks of the loop, which looks at least every LOOK_S while it holds back
LOOK_S = 0.001
MEASURE_S = 0.02  # the rate is measured over so long at least
MOST_HELD = 4 * 1024 * 1024  # bytes
Connections = Mapping[int, Connection]


class _Queue:
    """Operations of one priority that have receives in one phase, oldest first."""

    def __init__(self, phase: int) -> None:
        self.phase = phase
        self.states: deque[TransferState] = deque()
        self.settled = True  # there is credit for everything in it


class ReceiveCredits:
    """What one rank allows the others to send, where their ``connections`` are not ``gone``."""

    def __init__(
        self, phases: int, connections: Connections, gone: Collection[int], sizes: Sizes
    ) -> None:
        self._queues = [_Queue(phase) for _ in Priority for phase in range(phases)]
        self._phases = phases
        self._connections = connections
        self._gone = gone
        self._sizes = sizes

    def enter(self, state: TransferState) -> None:
        """An operation takes its place at the end of each phase's queue of its priority."""
        first = state.priority * self._phases
        for phase, receives in enumerate(state.program.receives):
            if receives:
                queue = self._queues[first + phase]
                queue.states.append(state)
                queue.settled = False

    def renew(self) -> None:
        """Give credit for what has become due since the last time."""
        for queue in self._queues:
            states = queue.states
            while states and not states[0].receives_left(queue.phase):
                states.popleft()
            if not queue.settled:
                queue.settled = self._renew(queue.phase, states)

    def _renew(self, phase: int, queue: deque[TransferState]) -> bool:
        """The same for one queue; true if everything in it has all its credit."""
        sizes = self._sizes
        settled = True
        bytes_before = 0  # that receives before this one still need
        transfers_ahead = 0  # that have credit though they are behind the due ones
        due_round: tuple[int, int] | None = None  # of the first receive: operation and step
        for state in queue:
            for i in state.receives_left(phase):
                size = state.size[i]
                credit = state.credit[i]
                missing_bytes = size - state.done[i]
                if not missing_bytes:
                    continue

                its_round = (state.number, state.program.ends[i].step)
                due_round = due_round or its_round
                if bytes_before <= sizes.nearly:
                    window = sizes.due
                elif transfers_ahead < AHEAD_TRANSFERS:
                    window = min(max(size // AHEAD_SHARE, sizes.wake), sizes.ahead)
                    transfers_ahead += 1
                elif its_round == due_round:  # with incast: see the module
                    window = sizes.wake
                else:
                    return False

                bytes_before += missing_bytes
                if credit == size:
                    continue
                window_begins = state.limit(i) if sizes.whole else state.done[i]
                upto = min(size, window_begins + window)
                settled = settled and upto == size
                # less than is worth a wake-up of the sender waits for more to come
                if upto - credit >= sizes.wake or upto == size:
                    state.credit[i] = upto
                    end = state.program.ends[i]
                    if end.peer not in self._gone:
                        self._connections[end.peer].give_credit(state, end.index, upto)
        return settled


class SendBacklog:
    """Bytes that the kernel has and that have not arrived yet; ``least`` are always allowed."""

    def __init__(self, connections: Collection[Connection], least: int) -> None:
        self._connections = connections
        self._least = least
        self._arrived = 0  # bytes, at the last look
        self._limit = least
        self._looked_s = 0.0
        self._since_s = 0.0  # since when there has been a backlog
        self._arrived_since = 0  # bytes that had arrived then

    def full(self) -> bool:
        """No more should be handed over now."""
        handed_over = sum(connection.handed_over for connection in self._connections)
        if handed_over - self._arrived < self._limit:
            return False  # without a system call for each connection
        self._look(handed_over)
        return handed_over - self._arrived >= self._limit

    def _look(self, handed_over: int) -> None:
        """Ask the kernel what has arrived; learn the rate if there was a backlog all the time."""
        unacknowledged = sum(connection.unacknowledged() for connection in self._connections)
        self._arrived = handed_over - unacknowledged
        now_s = host.monotonic()
        passed_s = now_s - self._since_s
        if now_s - self._looked_s > HELD_S:  # it was not asked for, so there was no backlog
            self._begin_measuring(now_s)
        elif passed_s >= MEASURE_S:
            rate = (self._arrived - self._arrived_since) / passed_s
            self._limit = min(max(int(rate * HELD_S), self._least), MOST_HELD)
            self._begin_measuring(now_s)
        self._looked_s = now_s

    def _begin_measuring(self, now_s: float) -> None:
        self._since_s = now_s
        self._arrived_since = self._arrived


class Sender:
    """The sends of one rank for which there is credit."""

    def __init__(
        self, connections: Connections, states: Mapping[int, TransferState], sizes: Sizes
    ) -> None:
        self._connections = connections
        self._states = states
        self._backlog = SendBacklog(connections.values(), sizes.held)
        # (priority, operation, end), in order
        self._ready: list[tuple[Priority, int, int]] = []
        self.held_back = False  # something may go as soon as the backlog is smaller
        self.moved_s = host.monotonic()  # when something last went

    def enter(self, state: TransferState) -> None:
        """An operation begins whose sends need no credit."""
        for i, end in enumerate(state.program.ends):
            if end.send and state.size[i]:
                bisect.insort(self._ready, (state.priority, state.number, i))

    def receive_credit(self, state: TransferState, i: int, upto: int) -> None:
        """The receiver of send ``i`` allows it up to byte ``upto``."""
        if upto > state.size[i]:
            raise PeerLost(f"rank {state.program.ends[i].peer} gave credit beyond the chunk")
        if upto > state.credit[i]:
            if state.credit[i] == state.done[i]:
                bisect.insort(self._ready, (state.priority, state.number, i))
            state.credit[i] = upto

    def go_on(self) -> bool:
        """Send what may go, in order, until the port or a connection is full; whether any went."""
        at = 0
        went = False
        self.held_back = False
        while at < len(self._ready):
            _, number, i = self._ready[at]
            state = self._states.get(number)
            if state is None:
                # Its last bytes left when its connection had room again, while it waited here
                # behind another connection that was full; so its operation has ended.
                del self._ready[at]
                continue
            connection = self._connections[state.program.ends[i].peer]
            while not connection.blocked and (length := state.sendable(i)):
                if self._backlog.full():
                    self.held_back = True
                    return went
                state.touch(i)
                connection.send(state, i, length)
                self.moved_s = host.monotonic()
                went = True
            if state.done[i] == state.credit[i]:
                del self._ready[at]
            else:
                at += 1
            if connection.blocked:
                break
        return went
