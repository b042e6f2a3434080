"""Schedules run on a simulated machine, event by event: alpha-beta, one port each way per rank.

    python -m bench.simulation [--n 8 64 1024] [--plot docs/pictures/simulation.svg]
    python -m bench.simulation --lab [--measured FILE]

No barriers: a rank posts what it sends and receives in a round when its own round before is done; a
message starts when both its ends have posted it, and takes alpha + bytes * beta. As every rank does
its rounds in order, that is all there is to an event: its time is the later of two times and its
own duration, so a whole round of messages is computed at once. One rank comes late, all others are
there at time 0. All methods run as schedules on the same machine: ring, halving-doubling, binomial
tree, recursive doubling of the whole buffer, and the completion with k = n - 1 chunks (as
published, taken at the lower bound, which the published generator reaches for powers of two) and
with the best k.

The table: microseconds from the late rank's arrival to the last result. The first columns are for
a rank so late that all else is done; *soon*: the best k where it comes only S * beta after the
others, so that what is left of the wait is felt. ``--lab`` compares with what was measured for 8
hosts in bench/tables/lab.md, or with a file of the JSON lines that rank 0 of
bench.lab_completion prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latecomer.synth.cost import (
    Link,
    best_chunks,
    doubling_cost,
    rhd_cost,
    ring_cost,
    straggler_cost,
    tree_cost,
)
from latecomer.synth.straggler.closed_form import ClosedForm
from latecomer.synth.straggler.instance import Instance
from latecomer.synth.units import format_bytes
from latecomer.verify.arrays import ArrayRounds

Floats = NDArray[np.float64]
Messages = tuple[NDArray[np.int64], NDArray[np.int64], float]
"""Senders, receivers, each at most once in a round, and the share of the buffer that they send."""

NS = [8, 20, 64, 256, 1024, 4096, 16384]
SIZES = [4**i * 2**12 for i in range(10)]
LINK = Link(3e-6, 450e9)
MOST_ROUNDS = 2**13
"""A method of more rounds is not simulated but taken from its formula (marked with a ~)."""
MIB = 2**20
LAB = Link(0.26e-3, 200e6 / 8 * 1448 / 1514)
"""Its idle round trip, and what TCP can reach of 200 Mbit/s."""
LAB_MEASURED = {
    4: {"ring": 1.90, "m = 1": 1.44, "m = 2": 1.32, "m = 4": 1.25},
    16: {"ring": 1.87, "m = 1": 1.42, "m = 2": 1.28, "m = 4": 1.19},
    64: {"ring": 1.95, "m = 1": 1.44, "m = 2": 1.27, "m = 4": 1.19},
}
"""bench/tables/lab.md: MiB, then times in S * beta at the nominal rate."""


def run(rounds: Iterable[Messages], ready: Floats, buffer_bytes: int, link: Link) -> Floats:
    """When each rank is done; ``ready``: when each is there. Seconds."""
    ready = ready.copy()
    for src, dst, share in rounds:
        done = np.maximum(ready[src], ready[dst])
        done += link.alpha_s + share * buffer_bytes / link.bandwidth
        ready[src] = np.maximum(ready[src], done)
        ready[dst] = np.maximum(ready[dst], done)
    return ready


# -- the methods ---------------------------------------------------------------------------------


def ring(n: int) -> Iterator[Messages]:
    """Every rank to the next, 2 (n - 1) times, the n-th part of the buffer."""
    ranks = np.arange(n)
    return ((ranks, (ranks + 1) % n, 1 / n) for _ in range(2 * (n - 1)))


def rhd(n: int) -> Iterator[Messages]:
    """Halving, then doubling, among a power of two; the others give all and get all."""
    power = 1 << (n.bit_length() - 1)
    ranks = np.arange(power)
    extra = np.arange(power, n)
    distances = [1 << bit for bit in reversed(range(power.bit_length() - 1))]
    if len(extra):
        yield extra, extra - power, 1.0
    for distance in (*distances, *reversed(distances)):
        yield ranks, ranks ^ distance, distance / power
    if len(extra):
        yield extra - power, extra, 1.0


def tree(n: int) -> Iterator[Messages]:
    """Up a binomial tree and down again, the whole buffer."""
    up = [np.arange(1 << j, n, 2 << j) for j in range((n - 1).bit_length())]
    for j, senders in enumerate(up):
        yield senders, senders - (1 << j), 1.0
    for j, senders in reversed(list(enumerate(up))):
        yield senders - (1 << j), senders, 1.0


def doubling(n: int) -> Iterator[Messages]:
    """The whole buffer both ways, among a power of two; the others give all and get all."""
    power = 1 << (n.bit_length() - 1)
    ranks = np.arange(power)
    extra = np.arange(power, n)
    if len(extra):
        yield extra, extra - power, 1.0
    for bit in range(power.bit_length() - 1):
        yield ranks, ranks ^ (1 << bit), 1.0
    if len(extra):
        yield extra - power, extra, 1.0


def of_arrays(rounds: ArrayRounds, chunks: int) -> Iterator[Messages]:
    """A chunk a message."""
    for low, high in zip(rounds.begins, rounds.begins[1:], strict=False):
        yield rounds.src[low:high], rounds.dst[low:high], 1 / chunks


class Straggler:
    """Both phases of the closed form."""

    def __init__(self, n: int, chunks: int) -> None:
        form = ClosedForm(Instance(n, chunks))
        self.n = n
        self.chunks = chunks
        self.waiting = form.waiting()
        self.completion = form.completion()

    def after_arrival(self, buffer_bytes: int, link: Link, delay_s: float | None) -> float:
        """Seconds, for a rank that is so late, or (None) late enough for all else."""
        ready = np.zeros(self.n)
        if delay_s is not None:
            ready = run(of_arrays(self.waiting, self.chunks), ready, buffer_bytes, link)
            ready[-1] = delay_s
        done = run(of_arrays(self.completion, self.chunks), ready, buffer_bytes, link)
        return float(done.max()) - (delay_s or 0.0)


# -- tables --------------------------------------------------------------------------------------


def row(
    n: int, size: int, stragglers: dict[int, Straggler]
) -> tuple[list[tuple[float, bool]], int]:
    """Seconds of each method and whether it was simulated; and the best k."""
    k = best_chunks(n, size, LINK)
    methods = [(ring, ring_cost), (rhd, rhd_cost), (tree, tree_cost), (doubling, doubling_cost)]
    times = []
    for method, cost in methods:
        formula_s = cost(n).over(size, LINK)
        seconds = formula_s
        is_simulated = cost(n).messages <= MOST_ROUNDS
        if is_simulated:
            seconds = float(run(method(n), np.zeros(n), size, LINK).max())
        assert abs(seconds / formula_s - 1) < 1e-9
        times.append((seconds, is_simulated))

    for chunks in (n - 1, k):
        formula_s = straggler_cost(n, chunks).over(size, LINK)
        seconds = formula_s
        is_simulated = chunks <= MOST_ROUNDS
        if is_simulated:
            if chunks not in stragglers:
                stragglers[chunks] = Straggler(n, chunks)
            seconds = stragglers[chunks].after_arrival(size, LINK, None)
        assert seconds <= formula_s * (1 + 1e-9)  # without barriers nothing takes longer
        times.append((seconds, is_simulated))

    soon_s = stragglers[k].after_arrival(size, LINK, size / LINK.bandwidth)
    times.append((soon_s, True))
    return times, k


def tables(ns: Sequence[int]) -> dict[int, list[list[float]]]:
    """Print a Markdown table for each n; for each size all times."""
    every: dict[int, list[list[float]]] = {}
    for n in ns:
        methods = "ring | halving-doubling | tree | doubling | k = n - 1 | best k | k | soon"
        print(f"\n| S, n = {n} | {methods} |")
        print("|:--|--:|--:|--:|--:|--:|--:|--:|--:|")
        stragglers: dict[int, Straggler] = {}
        for size in SIZES:
            times, k = row(n, size, stragglers)
            cells = []
            for seconds, is_simulated in times:
                mark = "" if is_simulated else "~"
                cells.append(f"{mark}{seconds * 1e6:.4g}")
            cells.insert(-1, str(k))
            print(f"| {format_bytes(size)} | {' | '.join(cells)} |", flush=True)
            every.setdefault(n, []).append([seconds for seconds, _ in times])
    return every


def lab(measured: Path | None) -> None:
    """Print what is simulated for the lab's 8 hosts beside what was measured there."""
    rows = LAB_MEASURED
    if measured is not None:
        rows = {}
        for line in measured.read_text().splitlines():
            report = json.loads(line)
            ideal_s = report["mib"] * MIB * 8 / 200e6
            times = {}
            for name, seconds in report["seconds"].items():
                method = "ring" if "Gloo" in name else name
                times[method] = statistics.median(seconds) / ideal_s
            rows[report["mib"]] = times

    print("| MiB | method | measured | simulated | measured / simulated |")
    print("|--:|:--|--:|--:|--:|")
    for mib, times in rows.items():
        nominal_s = mib * MIB * 8 / 200e6

        for name, time in times.items():
            if name == "ring":
                simulated_s = float(run(ring(8), np.zeros(8), mib * MIB, LAB).max())
            else:
                unit, number = name.split(" = ")
                chunks = 7 * int(number) if unit == "m" else int(number)
                simulated_s = Straggler(8, chunks).after_arrival(mib * MIB, LAB, None)
            print(
                f"| {mib} | {name} | {time:.2f} | {simulated_s / nominal_s:.2f} "
                f"| {time * nominal_s / simulated_s:.2f} |"
            )


def plot(path: Path, every: dict[int, list[list[float]]]) -> None:
    """A panel for each n: times over the physical limit, S * beta plus a latency."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "latecomer"
    from matplotlib import pyplot as plt

    names = ["ring", "halving-doubling", "binomial tree", "recursive doubling"]
    names += ["k = n - 1", "best k", "best k, soon"]
    figure, panels = plt.subplots(1, len(every), figsize=(4 * len(every), 3.8), squeeze=False)
    for panel, (n, rows) in zip(panels[0], every.items(), strict=True):
        least = [LINK.alpha_s * (n - 1).bit_length() + size / LINK.bandwidth for size in SIZES]
        for name, times in zip(names, zip(*rows, strict=True), strict=True):
            ratios = [seconds / low_s for seconds, low_s in zip(times, least, strict=True)]
            panel.plot(SIZES, ratios, "--" if "soon" in name else "-", label=name)
        panel.set(xscale="log", yscale="log", title=f"n = {n}", xlabel="buffer (bytes)")
    panels[0][0].set_ylabel("time / (S·beta + log2 n · alpha)")
    panels[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the tables; draw them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=NS, help="ranks")
    parser.add_argument("--plot", type=Path, help="an svg file to draw")
    parser.add_argument("--lab", action="store_true", help="compare with the emulated network")
    parser.add_argument("--measured", type=Path, help="with --lab: other measurements, as JSON")
    options = parser.parse_args()

    if options.lab:
        lab(options.measured)
        return
    every = tables(options.n)
    if options.plot is not None:
        plot(options.plot, every)


if __name__ == "__main__":
    main()
