"""Collectives of ranks that come together: the backend without any option beside Gloo.

    python -m bench.on_time [--ranks 2 4 8] [--sizes 4KiB 64KiB 1MiB 4MiB 16MiB 64MiB]
                            [--repeats 15] [--lab 200 [--ranks-per-host 4]] [--json]
                            [--collectives all_reduce reduce_scatter all_gather]

Loopback or, with ``--lab``, hosts of ``bench.lab`` with ports of so many Mbit/s. Both groups are in
the same processes, and take turns (A B A B); each row is the median time from the last rank's
arrival to the last rank's result, and every result is checked. Before a size is measured it is
summed as often as the mode needs to find out how it is fastest (at most ``MOST`` times).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
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


def _all_reduce_s(rank: LabRank, nbytes: int, group: Any) -> float:
    import torch.distributed as dist

    run = partial(dist.all_reduce, group=group)
    return rank.from_last_arrival_s(run, nbytes, late_s=0.0)


def _reduce_scatter_s(rank: LabRank, nbytes: int, group: Any) -> float:
    """``nbytes``: of what each rank gives, less what can't be divided."""
    import torch
    import torch.distributed as dist

    numbers = rank.numbers(nbytes - nbytes % (4 * rank.ranks))
    given = numbers * (rank.rank + 1)
    part = torch.empty(len(given) // rank.ranks)
    own = numbers[rank.rank * len(part) : (rank.rank + 1) * len(part)]
    expected = own * (rank.ranks * (rank.ranks + 1) // 2)
    return rank.timed_s(
        lambda: dist.reduce_scatter_tensor(part, given, group=group),
        lambda: torch.equal(part, expected),
    )


def _all_gather_s(rank: LabRank, nbytes: int, group: Any) -> float:
    """``nbytes``: of what each rank gets."""
    import torch
    import torch.distributed as dist

    part = rank.numbers(nbytes // rank.ranks)
    whole = torch.empty(rank.ranks * len(part))
    expected = torch.cat([part + each for each in range(rank.ranks)])
    given = part + rank.rank
    return rank.timed_s(
        lambda: dist.all_gather_into_tensor(whole, given, group=group),
        lambda: torch.equal(whole, expected),
    )


TIMED: dict[str, Callable[[LabRank, int, Any], float]] = {
    "all_reduce": _all_reduce_s,
    "reduce_scatter": _reduce_scatter_s,
    "all_gather": _all_gather_s,
}
"""How one of each is timed, by a group, from the last arrival on; its result is checked."""


def rank_side(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints a row of JSON for each size."""
    import torch.distributed as dist

    from latecomer.runtime.backend import BACKEND
    from latecomer.runtime.policy.on_time import FASTEST

    with tempfile.TemporaryDirectory() as folder:
        rank = LabRank(Path(folder), options.lab or 1e5)
    group: Any = dist.new_group(backend=BACKEND)
    groups = {GLOO: None, OURS: group}

    for collective, size in itertools.product(options.collectives, options.sizes):
        nbytes = parse_bytes("--sizes", size)
        time_s = TIMED[collective]
        for _ in range(MOST):
            time_s(rank, nbytes, group)
            if FASTEST in group.reducer.records[-1].reason:  # the same on all ranks
                break

        seconds: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(1 + options.repeats):
            for name, of_name in groups.items():
                seconds[name].append(time_s(rank, nbytes, of_name))
        if rank.rank == 0:
            ways = Counter(record.way for record in list(group.reducer.records)[-options.repeats :])
            row = {
                "ranks": rank.ranks,
                "collective": collective,
                "bytes": nbytes,
                "way": ways.most_common(1)[0][0],
                **{name: statistics.median(each[1:]) for name, each in seconds.items()},
            }
            print(json.dumps(row), flush=True)
    rank.close()


def rows(module_name: str, options: argparse.Namespace, ranks: int) -> Iterator[dict[str, Any]]:
    """What rank 0 reports, row by row; SystemExit if a rank fails.

    Each rank runs a module with the options of this process and ``--rank-side``.
    """
    module = ["-m", module_name, *sys.argv[1:], "--rank-side"]
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
    parser.add_argument("--collectives", choices=TIMED, nargs="+", default=["all_reduce"])
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
        print("| collective | ranks | size | Gloo | without any option | of Gloo's | way |")
        print("|:--|--:|--:|--:|--:|--:|:--|", flush=True)
    for ranks in options.ranks:
        for row in rows("bench.on_time", options, ranks):
            ratio = row[OURS] / row[GLOO]
            ratios.append(ratio)
            if options.json:
                print(json.dumps({**row, "ratio": ratio}), flush=True)
                continue
            size = format_bytes(row["bytes"])
            print(
                f"| {row['collective']} | {ranks} | {size} "
                f"| {row[GLOO] * 1e3:.2f} ms | {row[OURS] * 1e3:.2f} ms "
                f"| {ratio:.2f} | {row['way']} |",
                flush=True,
            )
    if not options.json:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"\ngeometric mean {mean:.2f}, at most {max(ratios):.2f} of Gloo's time")


if __name__ == "__main__":
    main()
