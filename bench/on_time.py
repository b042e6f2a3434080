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
import statistics
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from bench.beside_gloo import GLOO, MOST, OURS, PREPARE, parser_of, require_hosts, rows
from bench.lab_rank import LabRank
from latecomer.synth.units import format_bytes, parse_bytes

SIZES = ["4KiB", "64KiB", "1MiB", "4MiB", "16MiB", "64MiB"]


def _time_s(rank: LabRank, collective: str, nbytes: int, group: Any) -> float:
    """From the last arrival to the last rank's result, which is checked."""
    prepared = PREPARE[collective](rank, nbytes)
    return rank.timed_s(partial(prepared.start, group=group), prepared.is_right)


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
        for _ in range(MOST):
            _time_s(rank, collective, nbytes, group)
            if FASTEST in group.reducer.records[-1].reason:  # the same on all ranks
                break

        seconds: dict[str, list[float]] = {name: [] for name in groups}
        for _ in range(1 + options.repeats):
            for name, of_name in groups.items():
                seconds[name].append(_time_s(rank, collective, nbytes, of_name))
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


def main() -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="SIZE")
    parser.add_argument("--collectives", choices=PREPARE, nargs="+", default=["all_reduce"])
    options = parser.parse_args()
    if options.rank_side:
        rank_side(options)
        return
    require_hosts(parser, options, *options.ranks)

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
