"""All-reduces of ranks that come together: the backend without any option beside Gloo.

    python -m bench.on_time [--ranks 2 4 8] [--sizes 4KiB 64KiB 1MiB 4MiB 16MiB 64MiB]
                            [--repeats 15] [--lab 200 [--ranks-per-host 4]] [--json]

Loopback or, with ``--lab``, hosts of ``bench.lab`` with ports of so many Mbit/s. Both groups are in
the same processes, and take turns (A B A B); each row is the median time from the last rank's
arrival to the last rank's result, and every result is checked. Before a size is measured it is
summed as often as the mode needs to find out how it is fastest (at most ``MOST`` times).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.lab import Lab, Network
from bench.lab_rank import LabRank
from latecomer.synth.units import format_bytes, parse_bytes

SIZES = ["4KiB", "64KiB", "1MiB", "4MiB", "16MiB", "64MiB"]
GLOO = "gloo"
OURS = "latecomer"
MOST = 400
LIMIT_S = 1800.0


def rank_side(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints a row of JSON for each size."""
    import torch
    import torch.distributed as dist

    from latecomer.runtime.backend import BACKEND
    from latecomer.runtime.policy.on_time import FASTEST

    with tempfile.TemporaryDirectory() as folder:
        rank = LabRank(Path(folder), options.lab or 1e5)
    group: Any = dist.new_group(backend=BACKEND)
    groups = {GLOO: None, OURS: group}

    for size in options.sizes:
        nbytes = parse_bytes("--sizes", size)
        tensor = torch.zeros(nbytes // 4)
        for _ in range(MOST):
            dist.all_reduce(tensor, group=group)
            if FASTEST in group.reducer.records[-1].reason:  # the same on all ranks
                break

        seconds: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(1 + options.repeats):
            for name, of_name in groups.items():
                run = partial(dist.all_reduce, group=of_name)
                seconds[name].append(rank.from_last_arrival_s(run, nbytes, late_s=0.0))
        if rank.rank == 0:
            ways = Counter(record.way for record in list(group.reducer.records)[-options.repeats :])
            row = {
                "ranks": rank.ranks,
                "bytes": nbytes,
                "way": ways.most_common(1)[0][0],
                **{name: statistics.median(each[1:]) for name, each in seconds.items()},
            }
            print(json.dumps(row), flush=True)
    rank.close()


def rows(options: argparse.Namespace, ranks: int) -> Iterator[dict[str, Any]]:
    """What rank 0 reports, row by row; SystemExit if a rank fails."""
    module = ["-m", "bench.on_time", *sys.argv[1:], "--rank-side"]
    if options.lab:
        found: list[dict[str, Any]] = []

        def take(rank: int, text: str) -> None:
            if text.startswith('{"ranks"'):
                found.append(json.loads(text))
            else:
                print(f"[{rank}] {text}", file=sys.stderr, flush=True)

        per_host = options.ranks_per_host
        with Lab(Network(hosts=ranks // per_host, rate_mbit=options.lab)) as lab:
            argv = [sys.executable, *module]
            job = lab.run(argv, ranks_per_host=per_host, timeout_s=LIMIT_S, on_line=take)
            job.check()
        yield from found
        return

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv = [*torchrun, "--nproc-per-node", str(ranks), *module]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=one_thread) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if line.startswith('{"ranks"'):
                yield json.loads(line)
    if job.returncode:
        raise SystemExit(job.returncode)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="SIZE")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lab", type=float, default=0.0, metavar="MBIT", help="a port of the lab")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="on each host of the lab")
    parser.add_argument("--json", action="store_true", help="a row of JSON a line")
    parser.add_argument("--rank-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side:
        rank_side(options)
        return
    if any(ranks % options.ranks_per_host for ranks in options.ranks):
        parser.error("--ranks must be multiples of --ranks-per-host")
    if options.ranks_per_host > 1 and not options.lab:
        parser.error("--ranks-per-host is for --lab: on loopback all ranks share one host")

    ratios = []
    if not options.json:
        print("| ranks | size | Gloo | without any option | of Gloo's | way |")
        print("|--:|--:|--:|--:|--:|:--|", flush=True)
    for ranks in options.ranks:
        for row in rows(options, ranks):
            ratio = row[OURS] / row[GLOO]
            ratios.append(ratio)
            if options.json:
                print(json.dumps({**row, "ratio": ratio}), flush=True)
                continue
            print(
                f"| {ranks} | {format_bytes(row['bytes'])} | {row[GLOO] * 1e3:.2f} ms "
                f"| {row[OURS] * 1e3:.2f} ms | {ratio:.2f} | {row['way']} |",
                flush=True,
            )
    if not options.json:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"\ngeometric mean {mean:.2f}, at most {max(ratios):.2f} of Gloo's time")


if __name__ == "__main__":
    main()
