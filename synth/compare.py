"""Every family's predicted time over a range of buffer sizes, as nccl-tests prints measured ones.

All from the closed forms of :mod:`latecomer.synth.cost`, so nothing is searched here. Legend:

    time     from the arrival of the last rank to the end
    algbw    bytes of the buffer / time
    busbw    algbw * 2 (n - 1) / n: what a link carries in an AllReduce without a straggler. There
             it can't exceed the link's bandwidth. A schedule that has used the wait moves fewer
             bytes after the arrival, so its busbw can: it is a way to compare, not a traffic count.

Source of the layout: nccl-tests. Deviation: predicted, and several algorithms in one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latecomer.synth.cost import (
    FAMILIES,
    MOST_CHUNKS,
    Cost,
    Latency,
    Link,
    best_chunks,
    family_cost,
)
from latecomer.synth.standard import require_ranks
from latecomer.synth.units import format_bandwidth, format_bytes, format_seconds, parse_bytes
from latecomer.verify.errors import ArgumentError

ALGORITHMS = ("ring", "rhd", "tree", "doubling", "direct", "straggler m=1", "straggler")
"""What is compared; the last is the straggler's schedule with the best number of chunks for each
size, the one before with one chunk per helper (as in StragglAR)."""

MOST_SIZES = 1000
"""Rows of the table."""
PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class Time:
    """One algorithm at one size: seconds, and both bandwidths in bytes per second."""

    seconds: float
    algbw: float
    busbw: float


@dataclass(frozen=True)
class SizeRow:
    """All algorithms at one size; ``chunks``: the straggler's best, ``best``: the winner's name."""

    bytes: int
    chunks: int
    times: dict[str, Time]
    best: str


@dataclass(frozen=True)
class Comparison:
    """The whole table and what it was made for."""

    n: int
    link: Link
    latency: Latency
    rows: tuple[SizeRow, ...]


def compare(
    n: int,
    sizes: Sequence[int],
    link: Link,
    *,
    latency: Latency = "message",
    most_chunks: int = MOST_CHUNKS,
) -> Comparison:
    """Predict all of ``ALGORITHMS`` at all ``sizes``; the first of equals is the best.

    Args:
        n: ranks, 2 .. 1024.
        sizes: of the whole buffer, in bytes.
        link: one direction of each rank's port.
        latency: as for ``latecomer.synth.cost.completion_cost``.
        most_chunks: that the straggler's schedule may have.

    Raises:
        ArgumentError: ``n`` or ``most_chunks`` is out of range.

    Examples:
        >>> from latecomer.synth.compare import compare
        >>> from latecomer.synth.cost import Link
        >>> link = Link(alpha_s=3e-6, bandwidth=450e9)
        >>> comparison = compare(7, [2**20, 2**30], link)  # a Comparison
        >>> [(row.bytes, row.best, row.chunks) for row in comparison.rows]
        [(1048576, 'straggler', 1), (1073741824, 'straggler', 40)]
    """
    require_ranks(n)
    if most_chunks < 1:
        raise ArgumentError("--most-chunks", most_chunks, "must be 1 or more")
    rows = tuple(_row(n, size, link, latency, most_chunks) for size in sizes)
    return Comparison(n, link, latency, rows)


def _row(n: int, size: int, link: Link, latency: Latency, most_chunks: int) -> SizeRow:
    chunks = best_chunks(n, size, link, most_chunks)
    costs: dict[str, Cost] = {f: family_cost(f, n, chunks, latency) for f in FAMILIES}
    costs["straggler m=1"] = family_cost("straggler", n, n - 1)
    times = {}
    for name in ALGORITHMS:
        seconds = costs[name].over(size, link)
        algbw = size / seconds
        times[name] = Time(seconds, algbw, algbw * 2 * (n - 1) / n)
    return SizeRow(size, chunks, times, min(ALGORITHMS, key=lambda name: times[name].seconds))


def parse_sizes(name: str, text: str, factor: int = 4) -> list[int]:
    """The sizes ``1KiB:4GiB`` from the first to the last, each ``factor`` times the one before;
    or a single size.

    Raises:
        ArgumentError: not such a range, a first size above the last, a factor below 2.
    """
    if factor < 2:
        raise ArgumentError("--factor", factor, "must be 2 or more")
    first, colon, last = text.partition(":")
    low = parse_bytes(name, first)
    high = parse_bytes(name, last) if colon else low
    if low > high:
        raise ArgumentError(name, text, "must not begin above its end", "For example: 1KiB:4GiB")
    sizes = []
    while low <= high:
        sizes.append(low)
        low *= factor
        if len(sizes) > MOST_SIZES:
            raise ArgumentError(name, text, f"has more than {MOST_SIZES} sizes", "Raise --factor")
    return sizes


# -- for people ----------------------------------------------------------------------------------


def as_text(comparison: Comparison, width: int | None = None) -> str:
    """The table, with the fastest of each size marked by a star.

    Args:
        comparison: what to show.
        width: characters of a line; where the whole does not fit, only times are shown.
    """
    text = _whole_table(comparison)
    if width is not None and max(map(len, text.splitlines())) > width:
        return _table_of_times(comparison)
    return text


def _table_of_times(comparison: Comparison) -> str:
    names = {"straggler m=1": "m=1", "straggler": "best k"}
    titles = "".join(f"{names.get(name, name):>8} " for name in ALGORITHMS)
    lines = [
        f"# AllReduce, predicted: {comparison.n} ranks; milliseconds from the last arrival",
        "# to the end. m=1, best k: one rank late, one chunk per helper, or k chunks.",
        "# * is the fastest. Bandwidths too: on a wider terminal, or with --json.",
        f"#{'size':>8}{titles}   k",
    ]
    for row in comparison.rows:
        cells = ""
        for name, time in row.times.items():
            mark = "*" if name == row.best else " "
            cells += f"{time.seconds * 1e3:8.4g}{mark}"
        lines.append(f"{format_bytes(row.bytes):>9}{cells}{row.chunks:4}")
    return "\n".join(lines)


def _whole_table(comparison: Comparison) -> str:
    link = comparison.link
    lines = [
        f"# AllReduce, predicted: {comparison.n} ranks, alpha = {format_seconds(link.alpha_s)} per "
        f"{comparison.latency}, 1/beta = {format_bandwidth(link.bandwidth)}",
        "# time: from the last arrival to the end. straggler: one rank late enough to hide the",
        "# others' ReduceScatter, at the lower bound; with one chunk per helper (m=1), or with the",
        "# number of chunks in the last column, the best. * is the fastest.",
        "#",
        ("#" + " " * 11 + "".join(f"  {name:^28}" for name in ALGORITHMS)).rstrip(),
        f"#{'size':>11}" + f"  {'time':>10}{'algbw':>9}{'busbw':>9}" * len(ALGORITHMS) + "  chunks",
        f"#{'':>11}" + f"  {'(us)':>10}{'(GB/s)':>9}{'(GB/s)':>9}" * len(ALGORITHMS),
    ]
    for row in comparison.rows:
        cells = "".join(
            f" {'*' if name == row.best else ' '}"
            f"{time.seconds * 1e6:10.2f}{time.algbw / 1e9:9.2f}{time.busbw / 1e9:9.2f}"
            for name, time in row.times.items()
        )
        lines.append(f"{format_bytes(row.bytes):>12}{cells}{row.chunks:8}")
    return "\n".join(lines)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The facts of :func:`as_text`; seconds, bytes, bytes per second."""
    return {
        "ranks": comparison.n,
        "link": comparison.link,
        "latency": comparison.latency,
        "rows": comparison.rows,
    }


# -- as a picture --------------------------------------------------------------------------------


def require_picture(path: Path) -> None:
    """Refuse a picture that can't be drawn, before anything is printed.

    Raises:
        ArgumentError: another suffix than .png or .svg, no such directory, or no matplotlib.
    """
    if path.suffix not in PICTURES:
        raise ArgumentError("--plot", str(path), f"must end in one of {', '.join(PICTURES)}")
    if not path.parent.is_dir():
        raise ArgumentError("--plot", str(path), f"there is no directory {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ArgumentError(
            "--plot",
            str(path),
            "needs matplotlib, which is not installed",
            "pip install matplotlib",
        ) from None


def plot(comparison: Comparison, path: Path) -> None:
    """Draw busbw over size into ``path``; :func:`require_picture` says what may be wrong."""
    require_picture(path)
    from matplotlib.figure import Figure  # no pyplot: nothing global, no window

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    sizes = [row.bytes for row in comparison.rows]
    for name in ALGORITHMS:
        bandwidths = [row.times[name].busbw / 1e9 for row in comparison.rows]
        label = "straggler, best number of chunks" if name == "straggler" else name
        axes.plot(sizes, bandwidths, marker="o", markersize=3, label=label)
    axes.axhline(comparison.link.bandwidth / 1e9, color="0.6", linestyle=":", label="1/beta")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("buffer (bytes)")
    axes.set_ylabel("busbw after the last arrival (GB/s)")
    axes.set_title(f"predicted AllReduce, {comparison.n} ranks")
    axes.legend()
    try:
        # by which the file is known for one of ours later: latecomer.verify.replacing
        key = "Software" if path.suffix == ".png" else "Creator"
        figure.savefig(path, metadata={key: "latecomer"})
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ArgumentError("--plot", str(path), f"can't be written: {reason}") from None
