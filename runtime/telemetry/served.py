"""One rank's counts for Prometheus, over HTTP, by the server of ``prometheus_client``.

A rank tells what it knows by itself, so that nothing is sent between ranks for it. Who waited for
whom is told by ``python -m runtime watch DIR --prometheus``, which reads all ranks' files.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from runtime.telemetry.origin import local_rank
from runtime.telemetry.recorder import Recorder
from runtime.telemetry.records import Record
from verify.errors import ArgumentError

VARIABLE = "LATECOMER_PROMETHEUS"
LOOPBACK = "127.0.0.1"  # what is served has no password, so others are let in on request only

logger = logging.getLogger("latecomer")


class Address(NamedTuple):
    """Where to serve; the port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str, name: str) -> Address:
    """``9464``, ``0.0.0.0:9464`` or ``[::1]:9464``; ArgumentError, by ``name``, for others."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ArgumentError(name, text, "must be [address:]port, as 9464 or 0.0.0.0:9464")
    return Address(host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port))


def address(port: int | None, host: str | None) -> Address | None:
    """Where to serve, from the arguments of a watch or else the environment; None: nowhere.

    Raises:
        ArgumentError: no port, or an address without one.
    """
    if port is not None:
        if port not in range(65_536):
            raise ArgumentError("prometheus_port", port, "must be a port, 0 to 65535")
        return Address(host or LOOPBACK, port)
    if host is not None:
        remedy = "Give prometheus_port, too"
        raise ArgumentError("prometheus_address", host, "goes with a port only", remedy)
    text = os.environ.get(VARIABLE, "")
    return parse_address(text, VARIABLE) if text else None


def own_address(rank: int, asked: Address, ranks: Collection[int] | None) -> Address | None:
    """Where this rank serves; None: it is not asked to.

    By default the first rank of each host is. Ranks that are named get a port each, so that those
    of one host do not meet: the port asked for plus the rank's number on its host.
    """
    number = local_rank(os.environ, rank)
    if ranks is None:
        return asked if number == 0 else None
    if rank not in ranks:
        return None
    return asked if asked.port == 0 else asked._replace(port=asked.port + number)


class Tally(Collector):
    """What one rank's operations add up to since the watch began."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._rank = recorder.group.rank
        self._feed = recorder.feed()
        self._changing = threading.Lock()  # held by the look and by each request
        self._done_by_way: Counter[str] = Counter()
        self._begun_without: Counter[int] = Counter()
        self._operation_s = 0.0
        self._decision_s = 0.0
        self._bytes = 0

    def look(self, is_last: bool) -> None:
        """Count what is new."""
        events, _ = self._recorder.news(self._feed)
        with self._changing:
            for event in events:
                if isinstance(event, Record):
                    self._count(event)
        if is_last:
            self._recorder.unfeed(self._feed)

    def _count(self, record: Record) -> None:
        self._done_by_way[record.way] += 1
        self._begun_without.update(record.late)
        self._operation_s += record.done_s - record.arrived_s
        self._decision_s += record.decided_s - record.arrived_s
        self._bytes += record.bytes

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus asks for them."""
        with self._changing:
            yield self._counter("entered", "Operations entered.", self._recorder.entered)
            text = "Operations done, by the way they ran."
            yield self._counters("done", text, "way", self._done_by_way)
            text = "Operations that were begun without a late rank."
            yield self._counters("begun_without", text, "late", self._begun_without)
            text = "From its arrival to the result, all operations together."
            yield self._counter("operation_seconds", text, self._operation_s)
            text = "From its arrival to knowing how to go on, all operations together."
            yield self._counter("decision_seconds", text, self._decision_s)
            yield self._counter("reduced_bytes", "Bytes of the buffers reduced.", self._bytes)
            text = "Messages sent for control."
            yield self._counter("control_messages", text, self._recorder.messages)
            text = "How well the rank's clock is aligned with rank 0's."
            gauge = GaugeMetricFamily(
                "latecomer_rank_clock_uncertainty_seconds", text, labels=["rank"]
            )
            gauge.add_metric([str(self._rank)], self._recorder.alignment().uncertainty_s)
            yield gauge

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"latecomer_rank_{name}", text, labels=["rank"])
        family.add_metric([str(self._rank)], value)
        return family

    def _counters(
        self, name: str, text: str, label: str, counts: Mapping[str, int] | Mapping[int, int]
    ) -> Metric:
        family = CounterMetricFamily(f"latecomer_rank_{name}", text, labels=["rank", label])
        for value, count in counts.items():
            family.add_metric([str(self._rank), str(value)], count)
        return family


def serve(collector: Collector, at: Address) -> Callable[[], None] | None:
    """Serve it until what is returned is called; None, and a warning, where that can't be."""
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(at.port, at.host, registry)
    except OSError as error:
        logger.warning(
            "prometheus: can't serve at %s (%s), so nothing is served; training goes on. Free the "
            "port, or choose another with prometheus_port or %s",
            at,
            error.strerror or error,
            VARIABLE,
        )
        return None
    logger.info("prometheus: http://%s/metrics", Address(at.host, server.server_port))

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
