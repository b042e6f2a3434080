"""Completion after the late rank's arrival, on links that are really limited.

    python -m bench.lab_completion [--hosts 8] [--rate 200] [--sizes 4KiB 64KiB 1MiB 16MiB 64MiB]
                                   [--chunks 7 28] [--repeats 9]

Hosts of ``bench.lab`` with one port of so many Mbit/s each; the last rank arrives late, by more
than the others need for their own part. Measured from its arrival to the last rank's result, in one
run and in turn (A B C D A B C D), every result compared with the exact sum:

    Gloo            its own ``all_reduce``, a ring
    ring, rhd, tree, doubling   those of ``latecomer.synth.standard``, on our executor
    k = 7, 28       the closed form with so many chunks (m = 1 and m = 4 of 8 ranks)
    chosen          the closed form with the k that the cost model takes for the size

What the cost model needs is measured in the same run, before: alpha is what one more round costs,
by the smallest buffer in 1 and in 28 chunks, beta that of the port. Medians, and half the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.lab import Lab, Network
from bench.lab_rank import NATIVE, LabRank
from latecomer.synth.cost import Link, best_chunks, straggler_cost
from latecomer.synth.standard import doubling, rhd, ring, tree
from latecomer.synth.straggler.generate import generate
from latecomer.synth.units import format_bytes, parse_bytes
from latecomer.verify.output import write

SIZES = ["4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB", "64MiB"]
CANDIDATES = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56)
"""The chunks that ``chosen`` is taken from: each at most half as many again as the one before."""
MANY = 28
HEADERS = 1448 / 1514  # TCP's payload in a full Ethernet frame: what it can reach of a rate
CHOSEN = "chosen"
STANDARD = {"ring": ring, "rhd": rhd, "tree": tree, "doubling": doubling}


def rank_side(folder: Path, options: argparse.Namespace) -> None:
    """One rank of the job; rank 0 prints a JSON line for each size."""
    rank = Rank(folder, options.rate)
    link = Link(rank.alpha_s(options.repeats), options.rate * 1e6 / 8 * HEADERS)
    for text in options.sizes:
        nbytes = parse_bytes("--sizes", text)
        chosen = rank.chosen_chunks(nbytes, link)
        ways = _ways(options.chunks, chosen)
        for way in ways.values():  # warms connections and buffers
            rank.completion_s(way, min(nbytes, 2**22), fewest=1)

        seconds: dict[str, list[float]] = {name: [] for name in ways}
        repeats = options.repeats if nbytes < 2**25 else max(3, options.repeats // 2)
        fewest = min(chosen, *options.chunks)
        for _ in range(repeats):
            for name, way in ways.items():
                seconds[name].append(rank.completion_s(way, nbytes, fewest))
        if rank.rank == 0:
            row = {
                "nbytes": nbytes,
                "alpha_s": link.alpha_s,
                "chosen": chosen,
                "best": best_chunks(rank.ranks, nbytes, link),
                "seconds": seconds,
            }
            print(json.dumps(row), flush=True)
    rank.close()


class Rank(LabRank):
    """One rank; its schedules are those of the table."""

    def alpha_s(self, repeats: int) -> float:
        """What one more round costs, as rank 0 has measured it: all ranks have to choose alike."""
        import torch.distributed as dist

        # Not the time of a single round: a longer schedule hides most of that, and too few chunks
        # would be chosen.
        one_chunk_s = self._smallest_s(1, repeats)
        many_chunks_s = self._smallest_s(MANY, repeats)
        alpha_s = [max(1e-6, many_chunks_s - one_chunk_s) / (MANY - 1)]
        dist.broadcast_object_list(alpha_s)
        return alpha_s[0]

    def _smallest_s(self, chunks: int, repeats: int) -> float:
        """The median for the smallest buffer, after three that warm up."""
        seconds = [self.completion_s(f"k = {chunks}", 4096, fewest=1) for _ in range(3 + repeats)]
        return statistics.median(seconds[3:])

    def chosen_chunks(self, nbytes: int, link: Link) -> int:
        """The candidate that is fastest by the cost model."""
        return min(CANDIDATES, key=lambda k: straggler_cost(self.ranks, k).over(nbytes, link))

    def completion_s(self, way: str, nbytes: int, fewest: int) -> float:
        """Seconds from the late rank's arrival, when ``fewest`` chunks are reduced already."""
        rounds = fewest + 2 * (self.ranks - 1).bit_length() - 2
        late_s = 0.1 + 1.25 * rounds / fewest * self.port_s(nbytes)
        return self.from_last_arrival_s(partial(self.run, way), nbytes, self.if_last(late_s))


def _ways(chunks: list[int], chosen: int) -> dict[str, str]:
    """Name in the table -> name of the schedule."""
    ways = {name: name for name in (NATIVE, *STANDARD)}
    for k in chunks:
        ways[f"k = {k}"] = f"k = {k}"
    ways[CHOSEN] = f"k = {chosen}"
    return ways


def measure(options: argparse.Namespace) -> None:
    """Build a lab, run the job, print a Markdown table."""
    with tempfile.TemporaryDirectory() as folder:
        for name, make in STANDARD.items():
            write(make(options.hosts), Path(folder) / f"{name}.json")
        for k in {*CANDIDATES, *options.chunks}:
            write(generate(options.hosts, chunks=k, owners="free"), Path(folder) / f"k = {k}.json")
        argv = [sys.executable, "-m", "bench.lab_completion", *sys.argv[1:]]
        argv += ["--rank-side", folder]
        with Lab(Network(hosts=options.hosts, rate_mbit=options.rate)) as lab:
            description = lab.describe()
            print(
                f"\n{options.hosts} hosts, {options.rate:g} Mbit/s, {description['congestion']}, "
                f"idle RTT {description['rtt_ms']:.2f} ms, {os.cpu_count()} cores\n"
            )
            names = list(_ways(options.chunks, 1))
            print(f"| size | {' | '.join(names)} | k | S·beta | fastest other over chosen |")
            print("|--:" * (len(names) + 4) + "|", flush=True)
            lab.run(argv, timeout_s=1800.0, on_line=_table(options.rate)).check()


def _table(mbit: float) -> Callable[[int, str], None]:
    """Prints a row as rank 0 reports it; what is not a report goes to stderr."""

    def line(rank: int, text: str) -> None:
        if not text.startswith('{"nbytes"'):
            print(f"[{rank}] {text}", file=sys.stderr, flush=True)
            return
        row = json.loads(text)
        ideal_s = row["nbytes"] * 8e-6 / mbit
        medians = {}
        cells = []
        for name, seconds in row["seconds"].items():
            median = statistics.median(seconds)
            noise = (max(seconds) - min(seconds)) / median / 2
            cells.append(f"{median * 1e3:.1f} ms ±{noise:.0%}")
            medians[name] = median
        chosen_s = medians.pop(CHOSEN)
        fastest_other_s = min(medians.values())
        print(
            f"| {format_bytes(row['nbytes'])} | {' | '.join(cells)} | {row['chosen']} "
            f"| {chosen_s / ideal_s:.2f} | {fastest_other_s / chosen_s:.2f} |",
            flush=True,
        )

    return line


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of a port")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="SIZE")
    parser.add_argument("--chunks", type=int, nargs="+", default=[7, 28])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rank-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side is not None:
        rank_side(options.rank_side, options)
    else:
        measure(options)


if __name__ == "__main__":
    main()
