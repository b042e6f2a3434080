"""Completion after the late rank's arrival, on links that are really limited.

    python -m bench.lab_completion [--rate 200 400] [--sizes 4 16 64] [--m 1 2 4] [--repeats 5]

8 hosts of ``bench.lab`` with one port of so many Mbit/s each; the last rank arrives late, by more
than the others need for their own part. Measured from its arrival to the last rank's result: Gloo's
``all_reduce`` and the executor with schedules of m chunks per helper, in one run and in turn
(A B C D A B C D), every result compared with the exact sum. Medians, in milliseconds and in units
of S*beta (S: bytes of the buffer, beta: seconds per byte at the port's nominal rate). A TCP stream
reaches 0.956 of that rate at most (headers), so 1.00 in theory is 1.05 here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.lab import Lab, Network
from synth.cost import completion_cost
from synth.standard import ring
from synth.straggler.generate import generate
from verify.core.format import read
from verify.output import write

HOSTS = 8
MIB = 2**20
TIMEOUT_S = 120.0
HEADERS = 1448 / 1514
NATIVE = "Gloo all_reduce"


def rank_side(folder: Path, mbit: float, sizes: list[int], repeats: int) -> None:
    """One rank of the job; rank 0 prints a JSON line for each size."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    from runtime import Executor, load

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank, size = dist.get_rank(), dist.get_world_size()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port + 1, size, rank == 0, timedelta(seconds=TIMEOUT_S))
    paths = sorted(folder.glob("*.json"))
    executor = Executor([load(path) for path in paths], store, rank, size, timeout_s=TIMEOUT_S)
    late = size - 1

    def once(schedule: int | None, mib: int) -> float:
        number = torch.arange(mib * MIB // 4, dtype=torch.float32) % 251
        tensor = number * (rank + 1)
        dist.barrier()
        if rank == late:
            time.sleep(0.1 + 1.25 * mib * MIB * 8e-6 / mbit)
        arrived = time.monotonic()
        if schedule is None:
            dist.all_reduce(tensor)
        else:
            executor.submit(tensor, schedule=schedule).wait()
        done = time.monotonic()
        right = torch.equal(tensor, number * (size * (size + 1) // 2))
        times: list[Any] = [None] * size
        dist.all_gather_object(times, (arrived, done, right))
        if not all(ok for _, _, ok in times):
            wrong = [r for r, (_, _, ok) in enumerate(times) if not ok]
            raise SystemExit(f"wrong sum on rank(s) {wrong}")
        last: float = max(done for _, done, _ in times) - max(came for came, _, _ in times)
        return last

    ways = {NATIVE: None, **{path.stem: i for i, path in enumerate(paths)}}
    for mib in sizes:
        for schedule in ways.values():
            once(schedule, min(mib, 4))
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats if mib < 64 else max(3, repeats // 2)):
            for name, schedule in ways.items():
                taken[name].append(once(schedule, mib))
        if rank == 0:
            print(json.dumps({"mib": mib, "seconds": taken}), flush=True)
    executor.close()
    dist.destroy_process_group()


def measure(mbit: float, sizes: list[int], ms: list[int], repeats: int) -> None:
    """Build a lab, run the job, print a Markdown table."""
    theory = {NATIVE: float(completion_cost(ring(HOSTS)).share)}
    with tempfile.TemporaryDirectory() as folder:
        for m in ms:
            write(generate(HOSTS, m=m), Path(folder) / f"m = {m}.json")
            schedule = read(Path(folder) / f"m = {m}.json")
            theory[f"m = {m}"] = float(completion_cost(schedule).share)
        argv = [sys.executable, "-m", "bench.lab_completion", "--rank-side", folder]
        argv += ["--rate", f"{mbit:g}", "--repeats", str(repeats)]
        argv += ["--sizes", *map(str, sizes)]
        with Lab(Network(hosts=HOSTS, rate_mbit=mbit)) as lab:
            about = lab.describe()
            print(
                f"\n{HOSTS} hosts, {mbit:g} Mbit/s, {about['congestion']}, "
                f"idle RTT {about['rtt_ms']:.2f} ms, {os.cpu_count()} cores\n"
            )
            print("| MiB | way | completion | noise | S·beta | theory | faster than Gloo |")
            print("|--:|:--|--:|--:|--:|--:|--:|", flush=True)
            show = _Table(mbit, theory)
            lab.run(argv, timeout_s=1200.0, on_line=show.line).check()


class _Table:
    """Prints rows as rank 0 reports them."""

    def __init__(self, mbit: float, theory: dict[str, float]) -> None:
        self.mbit, self.theory = mbit, theory

    def line(self, rank: int, text: str) -> None:
        """Rows for one size; what is not a report goes to stderr."""
        if not text.startswith('{"mib"'):
            print(f"[{rank}] {text}", file=sys.stderr, flush=True)
            return
        row = json.loads(text)
        ideal = row["mib"] * MIB * 8e-6 / self.mbit
        native = statistics.median(row["seconds"][NATIVE])
        for name, seconds in row["seconds"].items():
            median = statistics.median(seconds)
            noise = (max(seconds) - min(seconds)) / median / 2
            print(
                f"| {row['mib']} | {name} | {median * 1e3:.0f} ms | ±{noise:.0%} "
                f"| {median / ideal:.2f} | {self.theory[name] / HEADERS:.2f} "
                f"| {native / median:.2f} |",
                flush=True,
            )


def main() -> None:
    """Run all rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, nargs="+", default=[200.0, 400.0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 16, 64], help="MiB")
    parser.add_argument("--m", type=int, nargs="+", default=[1, 2, 4], help="chunks per helper")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side is not None:
        rank_side(options.rank_side, options.rate[0], options.sizes, options.repeats)
        return
    for mbit in options.rate:
        measure(mbit, options.sizes, options.m, options.repeats)


if __name__ == "__main__":
    main()
