"""A collective that is started behind a larger one: the backend without any option beside Gloo.

    python -m bench.behind [--ranks 4] [--large 16MiB] [--small 4KiB] [--gather 4MiB]
                           [--repeats 15] [--lab 200 [--ranks-per-host 4]] [--json]

Two pairs: a small all-reduce behind a large one (a norm, or a loss, behind gradients), and an
all-gather behind a reduce-scatter (FSDP's next layer behind the gradients of the last one). Each
row has the median time from the last rank's start until the second one is done on all ranks, and
until both are. Both groups are in the same processes, and take turns (A B A B); every result is
checked. Before a pair is measured it runs until the mode has found out how both are fastest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.beside_gloo import GLOO, MOST, OURS, PREPARE, Prepared, parser_of, require_hosts, rows
from bench.lab_rank import LabRank
from latecomer.synth.units import format_bytes, parse_bytes


class Times(NamedTuple):
    """Seconds from the last rank's start."""

    second: float  # until the second one is done on all ranks
    both: float


def _once(rank: LabRank, first: Prepared, second: Prepared, group: Any) -> Times:
    """Start one behind the other; SystemExit if a result is wrong."""
    import torch.distributed as dist

    dist.barrier()
    began_s = time.monotonic()
    first_work = first.start(group=group, async_op=True)
    second_work = second.start(group=group, async_op=True)
    second_work.wait()
    second_s = time.monotonic()
    first_work.wait()
    both_s = time.monotonic()

    right = first.is_right() and second.is_right()
    of_ranks: list[Any] = [None] * rank.ranks
    dist.all_gather_object(of_ranks, (began_s, second_s, both_s, right))
    if not all(right for *_, right in of_ranks):
        raise SystemExit("a result is wrong")
    last_began_s = max(began for began, *_ in of_ranks)
    last_second_s = max(second for _, second, *_ in of_ranks)
    last_both_s = max(both for _, _, both, _ in of_ranks)
    return Times(second=last_second_s - last_began_s, both=last_both_s - last_began_s)


def rank_side(options: argparse.Namespace) -> None:
    """One rank; rank 0 prints a row of JSON for each pair."""
    import torch.distributed as dist

    from latecomer.runtime.backend import BACKEND
    from latecomer.runtime.policy.on_time import FASTEST

    with tempfile.TemporaryDirectory() as folder:
        rank = LabRank(Path(folder), options.lab or 1e5)
    group: Any = dist.new_group(backend=BACKEND)
    groups = {GLOO: None, OURS: group}
    large = parse_bytes("--large", options.large)
    small = parse_bytes("--small", options.small)
    gather = parse_bytes("--gather", options.gather)
    pairs = {
        f"all_reduce of {format_bytes(small)} behind one of {format_bytes(large)}": (
            partial(PREPARE["all_reduce"], rank, large),
            partial(PREPARE["all_reduce"], rank, small),
        ),
        f"all_gather of {format_bytes(gather)} behind reduce_scatter of {format_bytes(large)}": (
            partial(PREPARE["reduce_scatter"], rank, large),
            partial(PREPARE["all_gather"], rank, gather),
        ),
    }

    for name, (first, second) in pairs.items():
        for _ in range(MOST):
            _once(rank, first(), second(), group)
            last_two = list(group.reducer.records)[-2:]
            if all(FASTEST in record.reason for record in last_two):  # the same on all ranks
                break

        of_groups: dict[str, list[Times]] = {each: [] for each in groups}
        for _ in range(1 + options.repeats):
            for each, of_group in groups.items():
                of_groups[each].append(_once(rank, first(), second(), of_group))
        if rank.rank == 0:
            row = {"ranks": rank.ranks, "pair": name}
            for each, times in of_groups.items():
                measured = times[1:]
                row[each] = {
                    "second_s": statistics.median(time.second for time in measured),
                    "both_s": statistics.median(time.both for time in measured),
                }
            print(json.dumps(row), flush=True)
    rank.close()


def _cell(times: dict[str, float]) -> str:
    return f"{times['second_s'] * 1e3:.1f}, {times['both_s'] * 1e3:.1f} ms"


def main() -> None:
    """Run from the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--large", default="16MiB", metavar="SIZE", help="of the first one")
    parser.add_argument("--small", default="4KiB", metavar="SIZE", help="of the all-reduce")
    parser.add_argument("--gather", default="4MiB", metavar="SIZE", help="of the all-gather")
    options = parser.parse_args()
    if options.rank_side:
        rank_side(options)
        return
    require_hosts(parser, options, options.ranks)

    if not options.json:
        print("| what | Gloo: the second, both | without any option: the second, both |")
        print("|:--|--:|--:|", flush=True)
    for row in rows("bench.behind", options, options.ranks):
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        print(f"| {row['pair']} | {_cell(row[GLOO])} | {_cell(row[OURS])} |", flush=True)


if __name__ == "__main__":
    main()
