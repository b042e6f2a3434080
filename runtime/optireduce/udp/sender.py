"""The send side: which datagrams go to whom next, and when.

A flow is one shard on its way to one peer. Flows are served by operation and stage, to as many
peers at a time as the smallest incast announced (dynamic incast, OptiReduce section 3.2.3), in
turn, a burst each; no more is underway to a peer than its window, and no faster than its pacer
allows.
Nothing is sent twice: what is lost is lost. A credit tells how far what was sent has left the
network, lost or not; when none has come for a while, part of what is underway counts as lost and
the flow goes on. Pure: credits and the clock in, bursts out.

Deviation: the source sends without credits. Unpaced bursts overflow a socket's buffer however large
it is, and the first credit of an operation doubles as the sign that the receiver is there. Before
it no more than a first grant is sent, which the receiver keeps (``early``).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime.optireduce.options import Options
from runtime.optireduce.udp.pacing import Pacer

STALLS_MOST = 4
"""Silence must be twice as long for each stall in a row, up to so many doublings."""


@dataclass(eq=False)
class ShardSend:
    """One shard to one peer.

    Attributes:
        size: bytes.
        order: flows of a smaller order go first: (count of operations, stage, place in the
            rotation).
        count: datagrams in all.
        ready: runs of datagrams, (first, one past the last), that may be sent; in this order.
        sent, passed: datagrams sent; of these those that are known to have left the network.
        window: how many may be underway.
        entered: the peer has entered the operation.
        over: nothing more is to be sent: all was, or the peer's stage is over.
        stalls: in a row.
    """

    peer: int
    stage: int
    operation: int
    size: int
    payload: int
    order: tuple[int, int, int]
    count: int = field(init=False)
    ready: deque[tuple[int, int]] = field(default_factory=deque)
    sent: int = 0
    passed: int = 0
    window: int = 0
    entered: bool = False
    over: bool = False
    stalls: int = 0
    progress_s: float = -math.inf
    bursts: deque[tuple[int, float]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.count = -(-self.size // self.payload)
        self.over = self.count == 0

    @property
    def room(self) -> int:
        """How many datagrams may be sent now, as far as the window is concerned."""
        return self.window - (self.sent - self.passed)

    def offer(self, first: int, stop: int) -> None:
        """Datagrams ``first`` to ``stop`` - 1 are there to be sent."""
        if self.ready and self.ready[-1][1] == first:
            first, _ = self.ready.pop()
        self.ready.append((first, stop))


class Sender:
    """All flows of one rank, and its pacers."""

    def __init__(self, options: Options, rank: int, size: int) -> None:
        self._options = options
        self.pacers = {peer: Pacer(options) for peer in range(size) if peer != rank}
        self._flows: dict[tuple[int, int, int], ShardSend] = {}
        self._grant = max(1, options.grant_bytes // options.datagram_bytes)
        self._windows = dict.fromkeys(self.pacers, self._grant)
        self.stalls = 0
        self._burst = max(1, options.burst_bytes // options.datagram_bytes)

    def stalls_by(self, most_s: float) -> None:
        """A stall is noticed after so long at the latest."""
        for pacer in self.pacers.values():
            pacer.most_s = most_s

    def add(self, flow: ShardSend) -> None:
        """A shard that will be sent; what of it is ready is told by :meth:`ShardSend.offer`."""
        self._flows[flow.operation, flow.stage, flow.peer] = flow
        flow.window = self._grant

    def flow(self, operation: int, stage: int, peer: int) -> ShardSend | None:
        """The flow, if it is known and not over."""
        return self._flows.get((operation, stage, peer))

    def drop(self, operation: int) -> None:
        """Forget all flows of an operation."""
        for key in [key for key in self._flows if key[0] == operation]:
            self._flows.pop(key).over = True

    def pending(self, operation: int) -> Iterator[ShardSend]:
        """Flows of an operation that are not over."""
        return (f for f in self._flows.values() if f.operation == operation and not f.over)

    def enter(self, flow: ShardSend, now_s: float) -> None:
        """The peer has entered the operation: it takes what it said last, or a first grant."""
        if not flow.entered:
            flow.entered, flow.progress_s = True, now_s
            flow.bursts.clear()  # how long they took says when the peer came
            flow.window = self._windows[flow.peer]

    def told(self, peer: int, window: int) -> None:
        """The window of a receiver, for this and coming flows."""
        self._windows[peer] = max(1, window)

    def credit(self, flow: ShardSend, passed: int, now_s: float) -> None:
        """The receiver has seen something of the burst that ends at ``passed``."""
        self.enter(flow, now_s)
        flow.window = self._windows[flow.peer]
        passed = min(passed, flow.sent)
        if passed > flow.passed:
            flow.passed, flow.progress_s, flow.stalls = passed, now_s, 0
            sent_s = math.inf
            while flow.bursts and flow.bursts[0][0] <= passed:
                sent_s = flow.bursts.popleft()[1]
            self.pacers[flow.peer].answered(now_s - sent_s)

    def finish(self, flow: ShardSend) -> None:
        """Everything is sent, or the peer wants no more."""
        flow.over = True
        self._flows.pop((flow.operation, flow.stage, flow.peer), None)

    def next(
        self, now_s: float, incast: int, bursts: int = 1
    ) -> tuple[ShardSend, int, int] | float:
        """(flow, first datagram, how many) to send now; else the time to ask again.

        The caller reports what was really sent with :meth:`took`.
        """
        wake_s = math.inf
        chosen: ShardSend | None = None
        for flow in self._active(incast):
            pacer = self.pacers[flow.peer]
            if flow.room <= 0:
                stall_s = flow.progress_s + pacer.stall_s * 2**flow.stalls
                if now_s < stall_s:
                    wake_s = min(wake_s, stall_s)
                    continue
                self._stalled(flow, now_s)
            if pacer.next_s > now_s:
                wake_s = min(wake_s, pacer.next_s)
            elif chosen is None or pacer.next_s < self.pacers[chosen.peer].next_s:
                chosen = flow
        if chosen is None:
            return wake_s
        first, stop = chosen.ready[0]
        return chosen, first, min(stop - first, chosen.room, bursts * self._burst)

    def took(self, flow: ShardSend, count: int, now_s: float) -> None:
        """``count`` datagrams of ``flow`` are on their way."""
        first, stop = flow.ready.popleft()
        if first + count < stop:
            flow.ready.appendleft((first + count, stop))
        flow.sent += count
        flow.bursts.append((flow.sent, now_s))
        flow.progress_s = now_s
        self.pacers[flow.peer].sent(count * self._options.datagram_bytes, now_s)

    def _stalled(self, flow: ShardSend, now_s: float) -> None:
        """Nothing came back: so much of what is underway counts as lost that a grant has room."""
        self.stalls += 1
        if not flow.stalls:  # the further ones in a row wait longer, that is enough
            self.pacers[flow.peer].stalled()
        flow.stalls = min(flow.stalls + 1, STALLS_MOST)
        flow.passed = flow.sent - max(0, flow.window - self._grant)
        flow.progress_s = now_s

    def _active(self, incast: int) -> list[ShardSend]:
        """The flows that have a place: the first of each peer, for so many peers."""
        first: dict[int, ShardSend] = {}
        flows = self._flows.values()
        waiting = [f for f in flows if f.ready and (f.entered or f.room > 0)]
        for flow in sorted(waiting, key=lambda f: f.order):
            if flow.peer not in first:
                if len(first) == incast:
                    break
                first[flow.peer] = flow
        return list(first.values())
