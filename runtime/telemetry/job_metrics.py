"""A whole job for Prometheus, from the files of its ranks: who waited for whom.

Beside the training, not in it: to read what all ranks write takes a processor that the ranks have
no share in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from latecomer.runtime.telemetry.follower import Follower


class JobMetrics(Collector):
    """What a follower has read by its last :meth:`update`; asked for on the server's threads."""

    def __init__(self) -> None:
        self._families: tuple[Metric, ...] = ()

    def update(self, follower: Follower) -> None:
        """Take over what the follower knows; from now on it is served."""
        self._families = tuple(_families(follower))

    def collect(self) -> Iterable[Metric]:
        """The metrics, as Prometheus asks for them."""
        return self._families


def _families(follower: Follower) -> Iterator[Metric]:
    totals = follower.totals
    ways = CounterMetricFamily(
        "latecomer_operations", "All-reduces of all ranks, by the way they ran.", labels=["way"]
    )
    for way, count in totals.ways.items():
        ways.add_metric([way], count)
    yield ways

    waited = CounterMetricFamily(
        "latecomer_waited_seconds",
        "From the rank's arrival to that of the last one, by who that was.",
        labels=["rank", "late"],
    )
    for rank, waited_s in totals.waited_s.items():
        for late, seconds in waited_s.items():
            waited.add_metric([str(rank), str(late)], seconds)
    yield waited

    wasted = CounterMetricFamily(
        "latecomer_wasted_seconds",
        "What all others together would have waited for this rank alone.",
        labels=["rank"],
    )
    for rank, seconds in totals.wasted_s.items():
        wasted.add_metric([str(rank)], seconds)
    yield wasted

    last = CounterMetricFamily(
        "latecomer_arrived_last", "Operations in which the rank was the last.", labels=["rank"]
    )
    for rank in follower.stories:
        last.add_metric([str(rank)], totals.times_last[rank])
    yield last

    entered = CounterMetricFamily(
        "latecomer_rank_entered", "Operations entered.", labels=["rank", "host"]
    )
    seen = GaugeMetricFamily(
        "latecomer_rank_seen_unix_seconds",
        "When the rank last wrote, seconds since 1970.",
        labels=["rank", "host"],
    )
    for rank, story in follower.stories.items():
        if story.state is not None:
            labels = [str(rank), story.origin.host]
            entered.add_metric(labels, story.state.entered)
            seen.add_metric(labels, story.state.unix_s)
    yield entered
    yield seen
