"""The send side: which datagrams go to whom next, and when.

A flow is one shard on its way to one peer. Flows are served by operation, at most as many peers at
a time as the smallest incast announced (dynamic incast, OptiReduce section 3.2.3); a flow sends as
far as the receiver's credit reaches, no faster than the peer's pacer allows. Nothing is sent twice:
what is lost is lost. When no credit has come for a while, what is underway counts as lost and the
flow goes on. Pure: credits and the clock in, bursts out.

Deviation: the source sends without credits. Unpaced bursts overflow a socket's buffer however large
it is, and the first credit of an operation doubles as the sign that the receiver is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from runtime.optireduce.options import Options
from runtime.optireduce.ubt.pacing import Pacer


@dataclass(eq=False)
class Flow:
    """One shard to one peer.

    Attributes:
        size: bytes.
        order: flows of a smaller order go first: (count of operations, stage, place in the
            rotation).
        count, sent, granted: datagrams: in all, sent so far, may be sent.
        entered: the peer has entered the operation.
        over: nothing more is to be sent: all was, or the peer's stage is over.
    """

    peer: int
    stage: int
    operation: int
    size: int
    payload: int
    order: tuple[int, int, int]
    count: int = field(init=False)
    sent: int = 0
    granted: int = 0
    entered: bool = False
    over: bool = False
    progress_s: float = -math.inf

    def __post_init__(self) -> None:
        self.count = -(-self.size // self.payload)
        self.over = self.count == 0

    @property
    def open(self) -> bool:
        """It may send now, as far as credit is concerned."""
        return self.sent < min(self.granted, self.count)


class Sender:
    """All flows of one rank, and its pacers."""

    def __init__(self, options: Options, rank: int, size: int) -> None:
        self._options = options
        self.pacers = {peer: Pacer(options) for peer in range(size) if peer != rank}
        self._flows: dict[tuple[int, int, int], Flow] = {}
        self.stalls = 0

    def add(self, flow: Flow) -> None:
        """A shard is ready to go."""
        self._flows[flow.operation, flow.stage, flow.peer] = flow

    def flow(self, operation: int, stage: int, peer: int) -> Flow | None:
        """The flow, if it is known and not over."""
        return self._flows.get((operation, stage, peer))

    def drop(self, operation: int) -> None:
        """Forget all flows of an operation."""
        for key in [key for key in self._flows if key[0] == operation]:
            del self._flows[key]

    def pending(self, operation: int) -> Iterator[Flow]:
        """Flows of an operation that are not over."""
        return (f for f in self._flows.values() if f.operation == operation and not f.over)

    def enter(self, flow: Flow, now_s: float) -> None:
        """The peer has entered the operation: it takes a first grant."""
        if not flow.entered:
            flow.entered, flow.progress_s = True, now_s
            flow.granted = max(flow.granted, self._options.grant_bytes // flow.payload, 1)

    def credit(self, flow: Flow, up_to: int, now_s: float) -> None:
        """The receiver takes bytes up to ``up_to``."""
        self.enter(flow, now_s)
        if up_to // flow.payload > flow.granted:
            flow.granted = up_to // flow.payload
            flow.progress_s = now_s

    def finish(self, flow: Flow) -> None:
        """Everything is sent, or the peer wants no more."""
        flow.over = True
        self._flows.pop((flow.operation, flow.stage, flow.peer), None)

    def next(self, now_s: float, incast: int) -> tuple[Flow, int, int] | float:
        """(flow, first datagram, how many) to send now; else the time to ask again.

        The caller reports what was really sent with :meth:`took`.
        """
        wake_s = math.inf
        chosen: Flow | None = None
        for flow in self._active(incast):
            pacer = self.pacers[flow.peer]
            if not flow.open:
                stall_s = flow.progress_s + pacer.stall_s
                if now_s < stall_s:
                    wake_s = min(wake_s, stall_s)
                    continue
                self.stalls += 1
                pacer.stalled()
                flow.granted = flow.sent + max(1, self._options.grant_bytes // flow.payload)
                flow.progress_s = now_s
            if pacer.next_s > now_s:
                wake_s = min(wake_s, pacer.next_s)
            elif chosen is None or pacer.next_s < self.pacers[chosen.peer].next_s:
                chosen = flow
        if chosen is None:
            return wake_s
        datagrams = max(1, self._options.burst_bytes // self._options.datagram_bytes)
        count = min(chosen.granted, chosen.count) - chosen.sent
        return chosen, chosen.sent, min(count, datagrams)

    def took(self, flow: Flow, count: int, now_s: float) -> None:
        """``count`` datagrams of ``flow`` are on their way."""
        flow.sent += count
        flow.progress_s = now_s
        self.pacers[flow.peer].sent(count * self._options.datagram_bytes, now_s)

    def _active(self, incast: int) -> list[Flow]:
        """The flows that have a place: the first of each peer, for so many peers."""
        first: dict[int, Flow] = {}
        waiting = [f for f in self._flows.values() if f.entered and f.sent < f.count]
        for flow in sorted(waiting, key=lambda f: f.order):
            if flow.peer not in first:
                if len(first) == incast:
                    break
                first[flow.peer] = flow
        return list(first.values())
