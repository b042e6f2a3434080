"""Completion after the late rank's arrival, on links that are really limited.

    python -m bench.lab_completion [--hosts 8] [--rate 200] [--sizes 4KiB 64KiB 1MiB 16MiB 64MiB]
                                   [--chunks 7 28] [--repeats 9]

Hosts of ``bench.lab`` with one port of so many Mbit/s each; the last rank arrives late, by more
than the others need for their own part. Measured from its arrival to the last rank's result, in one
run and in turn (A B C D A B C D), every result compared with the exact sum:

    Gloo            its own ``all_reduce``, a ring
    ring, rhd, tree, doubling   those of ``synth.standard``, on our executor
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
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.lab import Lab, Network
from synth.cost import Link, best_chunks, straggler_cost
from synth.standard import doubling, rhd, ring, tree
from synth.straggler.generate import generate
from synth.units import format_bytes, parse_bytes
from verify.output import write

SIZES = ["4KiB", "16KiB", "64KiB", "256KiB", "1MiB", "4MiB", "16MiB", "64MiB"]
CANDIDATES = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56)
"""The chunks that ``chosen`` is taken from: each at most half as many again as the one before."""
MANY = 28
TIMEOUT_S = 120.0
HEADERS = 1448 / 1514
NATIVE = "Gloo"
CHOSEN = "chosen"
STANDARD = {"ring": ring, "rhd": rhd, "tree": tree, "doubling": doubling}


def rank_side(folder: Path, options: argparse.Namespace) -> None:
    """One rank of the job; rank 0 prints a JSON line for each size."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    from runtime import Executor, load

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    size = dist.get_world_size()
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port + 1, size, rank == 0, timedelta(seconds=TIMEOUT_S))
    paths = sorted(folder.glob("*.json"))
    executor = Executor([load(path) for path in paths], store, rank, size, timeout_s=TIMEOUT_S)
    schedules = {path.stem: i for i, path in enumerate(paths)}
    late = size - 1

    def once(way: str, nbytes: int, fewest: int) -> float:
        """Seconds from the late rank's arrival, when ``fewest`` chunks are reduced already."""
        number = torch.arange(nbytes // 4, dtype=torch.float32) % 251
        tensor = number * (rank + 1)
        dist.barrier()
        if rank == late:
            rounds = fewest + 2 * (size - 1).bit_length() - 2
            time.sleep(0.1 + 1.25 * rounds / fewest * nbytes * 8e-6 / options.rate)
        arrived = time.monotonic()
        if way == NATIVE:
            dist.all_reduce(tensor)
        else:
            executor.submit(tensor, schedule=schedules[way]).wait()
        done = time.monotonic()
        right = torch.equal(tensor, number * (size * (size + 1) // 2))
        times: list[Any] = [None] * size
        dist.all_gather_object(times, (arrived, done, right))
        if not all(ok for _, _, ok in times):
            wrong = [r for r, (_, _, ok) in enumerate(times) if not ok]
            raise SystemExit(f"wrong sum on rank(s) {wrong}")
        last: float = max(done for _, done, _ in times) - max(came for came, _, _ in times)
        return last

    few, many = (
        statistics.median([once(f"k = {k}", 4096, 1) for _ in range(3 + options.repeats)][3:])
        for k in (1, MANY)
    )
    alpha = [max(1e-6, many - few) / (MANY - 1)]
    dist.broadcast_object_list(alpha)  # rank 0's, so that all choose the same
    link = Link(alpha[0], options.rate * 1e6 / 8 * HEADERS)
    for nbytes in (parse_bytes("--sizes", text) for text in options.sizes):
        chosen = min(CANDIDATES, key=lambda k: straggler_cost(size, k).over(nbytes, link))
        ways = _ways(options.chunks, chosen)
        for way in ways.values():
            once(way, min(nbytes, 2**22), 1)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.repeats if nbytes < 2**25 else max(3, options.repeats // 2)):
            for name, way in ways.items():
                taken[name].append(once(way, nbytes, min(chosen, *options.chunks)))
        if rank == 0:
            best = best_chunks(size, nbytes, link)
            said = {"nbytes": nbytes, "alpha_s": alpha[0], "chosen": chosen, "best": best}
            print(json.dumps({**said, "seconds": taken}), flush=True)
    executor.close()
    dist.destroy_process_group()


def _ways(chunks: list[int], chosen: int) -> dict[str, str]:
    """Name in the table -> name of the schedule."""
    same = [NATIVE, *STANDARD, *(f"k = {k}" for k in chunks)]
    return {**{name: name for name in same}, CHOSEN: f"k = {chosen}"}


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
            about = lab.describe()
            print(
                f"\n{options.hosts} hosts, {options.rate:g} Mbit/s, {about['congestion']}, "
                f"idle RTT {about['rtt_ms']:.2f} ms, {os.cpu_count()} cores\n"
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
        medians = {name: statistics.median(taken) for name, taken in row["seconds"].items()}
        cells = []
        for name, taken in row["seconds"].items():
            noise = (max(taken) - min(taken)) / medians[name] / 2
            cells.append(f"{medians[name] * 1e3:.1f} ms ±{noise:.0%}")
        other = min(value for name, value in medians.items() if name != CHOSEN)
        print(
            f"| {format_bytes(row['nbytes'])} | {' | '.join(cells)} | {row['chosen']} "
            f"| {medians[CHOSEN] / ideal_s:.2f} | {other / medians[CHOSEN]:.2f} |",
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
