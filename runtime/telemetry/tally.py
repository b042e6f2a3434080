"""One rank's counts for Prometheus.

A rank tells what it knows by itself, so that nothing is sent between ranks for it. Who waited for
whom is told by ``latecomer watch --prometheus``, which reads all ranks' files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from latecomer.runtime.host import host
from latecomer.runtime.telemetry.recorder import OperationRecorder
from latecomer.runtime.telemetry.records import Record


class Tally(Collector):
    """What one rank's operations add up to since the watch began."""

    def __init__(self, recorder: OperationRecorder) -> None:
        self._recorder = recorder
        self._rank = recorder.group.rank
        self._feed = recorder.feed()
        self._changing = host.Lock()  # held by the look and by each request
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
