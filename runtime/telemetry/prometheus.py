"""A summary as a Prometheus text file, for node_exporter's textfile collector.

Format: https://prometheus.io/docs/instrumenting/exposition_formats (text, version 0.0.4). The file
is written beside its place and renamed, so that a collector never reads half of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from runtime.telemetry.summary import Summary


def text(summary: Summary) -> str:
    """The whole file."""
    return "".join(f"{line}\n" for line in _lines(summary))


def write(summary: Summary, path: str | os.PathLike[str]) -> None:
    """Write the file at ``path``, at once or not at all."""
    place = Path(path)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    beside.write_text(text(summary))
    beside.replace(place)


def _lines(summary: Summary) -> Iterator[str]:
    ranks = sorted(summary.lines, key=lambda line: line.rank)
    one = [({"rank": str(line.rank)}, line) for line in ranks]
    yield from _metric(
        "wait_seconds",
        "Mean time from a rank's arrival to the last one's.",
        "gauge",
        [(labels, line.wait_s) for labels, line in one],
    )
    yield from _metric(
        "arrived_last_ratio",
        "Share of operations in which the rank was the last to arrive.",
        "gauge",
        [(labels, line.last) for labels, line in one],
    )
    yield from _metric(
        "lateness_seconds",
        "How long after the median arrival a rank came.",
        "gauge",
        [
            (labels | {"quantile": quantile}, value)
            for labels, line in one
            for quantile, value in (("0.5", line.lateness_p50_s), ("0.99", line.lateness_p99_s))
        ],
    )
    yield from _metric(
        "wasted_seconds_total",
        "What all other ranks together have waited for this one alone.",
        "counter",
        [(labels, line.wasted_s) for labels, line in one],
    )
    yield from _metric(
        "clock_uncertainty_seconds",
        "How well the rank's clock is aligned with the reference's.",
        "gauge",
        [(labels, line.uncertainty_s) for labels, line in one],
    )
    yield from _metric(
        "operations_total",
        "All-reduces, by the way they ran.",
        "counter",
        [({"way": way}, float(count)) for way, count in sorted(summary.ways.items())],
    )
    for name, meaning, kind, samples in summary.losses.metrics():
        yield from _metric(name, meaning, kind, samples)


def _metric(
    name: str, meaning: str, kind: str, samples: list[tuple[dict[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP latecomer_{name} {meaning}"
    yield f"# TYPE latecomer_{name} {kind}"
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        yield f"latecomer_{name}{{{shown}}} {'NaN' if math.isnan(value) else repr(value)}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
