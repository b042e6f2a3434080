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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.lab_rank import LabRank
from bench.on_time import GLOO, MOST, OURS, rows
from latecomer.synth.units import format_bytes, parse_bytes


class Started(NamedTuple):
    """A collective that can be started, and whether its result is right once it is done."""

    start: Callable[[Any], Any]  # by a group; torch's work
    is_right: Callable[[], bool]


class Times(NamedTuple):
    """Seconds from the last rank's start."""

    second: float  # until the second one is done on all ranks
    both: float


def _all_reduce(rank: LabRank, nbytes: int) -> Started:
    import torch
    import torch.distributed as dist

    numbers = rank.numbers(nbytes)
    tensor = numbers * (rank.rank + 1)
    expected = numbers * (rank.ranks * (rank.ranks + 1) // 2)
    return Started(
        partial(dist.all_reduce, tensor, async_op=True),
        lambda: torch.equal(tensor, expected),
    )


def _reduce_scatter(rank: LabRank, nbytes: int) -> Started:
    import torch
    import torch.distributed as dist

    numbers = rank.numbers(nbytes - nbytes % (4 * rank.ranks))
    part = torch.empty(len(numbers) // rank.ranks)
    own = numbers[rank.rank * len(part) : (rank.rank + 1) * len(part)]
    expected = own * (rank.ranks * (rank.ranks + 1) // 2)
    given = numbers * (rank.rank + 1)
    return Started(
        partial(dist.reduce_scatter_tensor, part, given, async_op=True),
        lambda: torch.equal(part, expected),
    )


def _all_gather(rank: LabRank, nbytes: int) -> Started:
    import torch
    import torch.distributed as dist

    part = rank.numbers(nbytes // rank.ranks)
    whole = torch.empty(rank.ranks * len(part))
    expected = torch.cat([part + each for each in range(rank.ranks)])
    return Started(
        partial(dist.all_gather_into_tensor, whole, part + rank.rank, async_op=True),
        lambda: torch.equal(whole, expected),
    )


def _once(rank: LabRank, first: Started, second: Started, group: Any) -> Times:
    """Start one behind the other; SystemExit if a result is wrong."""
    import torch.distributed as dist

    dist.barrier()
    began_s = time.monotonic()
    first_work = first.start(group=group)
    second_work = second.start(group=group)
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
    return Times(
        second=max(second for _, second, *_ in of_ranks) - last_began_s,
        both=max(both for _, _, both, _ in of_ranks) - last_began_s,
    )


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
            partial(_all_reduce, rank, large),
            partial(_all_reduce, rank, small),
        ),
        f"all_gather of {format_bytes(gather)} behind reduce_scatter of {format_bytes(large)}": (
            partial(_reduce_scatter, rank, large),
            partial(_all_gather, rank, gather),
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


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--large", default="16MiB", metavar="SIZE", help="of the first one")
    parser.add_argument("--small", default="4KiB", metavar="SIZE", help="of the all-reduce")
    parser.add_argument("--gather", default="4MiB", metavar="SIZE", help="of the all-gather")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lab", type=float, default=0.0, metavar="MBIT", help="a port of the lab")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="on each host of the lab")
    parser.add_argument("--json", action="store_true", help="a row of JSON a line")
    parser.add_argument("--rank-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side:
        rank_side(options)
        return
    if options.ranks % options.ranks_per_host:
        parser.error("--ranks must be a multiple of --ranks-per-host")

    if not options.json:
        print("| what | Gloo: the second, both | without any option: the second, both |")
        print("|:--|--:|--:|", flush=True)
    for row in rows("bench.behind", options, options.ranks):
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        cells = [
            f"{row[each]['second_s'] * 1e3:.1f}, {row[each]['both_s'] * 1e3:.1f} ms"
            for each in (GLOO, OURS)
        ]
        print(f"| {row['pair']} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
