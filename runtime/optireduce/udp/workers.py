"""Carries operations over UBT, several in flight, on two threads.

One thread moves datagrams and takes means (``ubt.endpoint``), one lays out and transforms, so that
neither keeps the other waiting. An operation goes from the second (``Bucket.encode``) to the first
(``Protocol.open``) and back (``Bucket.finish``).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

from runtime.optireduce.bucket import Bucket
from runtime.optireduce.options import Options
from runtime.optireduce.udp.codec import Codec
from runtime.optireduce.udp.loop import EventLoop
from runtime.optireduce.udp.protocol import Ended, Protocol
from runtime.optireduce.udp.socket import UdpSocket


class BucketWorkers:
    """The threads of one rank.

    Args:
        codec: of the session; it knows the rank and the size.
        channel: connected; closed with this.
        bound_s: t_B to begin with.
        done: called on a thread of this with each flight whose result is in its tensor.
        broken: called with whatever a thread did not expect; nothing is carried after it.
    """

    def __init__(
        self,
        options: Options,
        codec: Codec,
        channel: UdpSocket,
        bound_s: float,
        done: Callable[[Bucket], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._options, self._codec = options, codec
        self._done, self._broken = done, broken
        self.node = Protocol(options, codec, bound_s)
        self._endpoint = EventLoop(options, self.node, channel, self._ended, broken)
        self._flights: dict[int, Bucket] = {}
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._compute, name="latecomer-mean", daemon=True)

    def start(self) -> None:
        """Begin; peers must be connected."""
        self._worker.start()
        self._endpoint.start()

    def submit(self, flight: Bucket) -> None:
        """Carry an operation; returns at once."""
        self._work.put(lambda: self._encode(flight))

    def bind(self, bound_s: float) -> None:
        """t_B of operations that are submitted from now on."""
        self._endpoint.call(lambda: self.node.bind(bound_s))

    def keep_waiting(self, since_s: float) -> Iterator[int]:
        """Ranks not heard of in an operation that this one has entered before ``since_s``."""
        for exchange in list(self.node.open_exchanges.values()):
            stage = exchange.stages[0]
            if stage.end is None and stage.began_s < since_s:
                yield from stage.absent

    def close(self) -> None:
        """End the threads and close the socket."""
        self._endpoint.close()
        self._work.put(None)
        self._worker.join(timeout=5.0)

    def _encode(self, flight: Bucket) -> None:
        exchange = flight.encode(self._options, self._codec.rank, self._codec.size)
        self._flights[exchange.operation] = flight
        self._endpoint.call(lambda: self.node.open(exchange, time.monotonic()))

    def _ended(self, ended: Ended) -> None:
        """On the endpoint's thread: hand what comes next to the other one."""
        if ended.stage == 2:
            flight = self._flights.pop(ended.exchange.operation)
            self._work.put(lambda: self._finish(flight))

    def _finish(self, flight: Bucket) -> None:
        flight.finish(self._options)
        self._done(flight)
        del flight.exchange  # which holds the flight by its means

    def _compute(self) -> None:
        while (task := self._work.get()) is not None:
            try:
                task()
            except Exception as error:  # whatever it is, nobody may be left waiting
                self._broken(error)
