"""What benchmarks of the backend beside Gloo have in common: collectives, processes, options."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from bench.lab import Lab, Network
from bench.lab_rank import LabRank

GLOO = "gloo"
OURS = "latecomer"
MOST = 400
"""How often a collective runs at most before a mode has found out how it is fastest."""
LIMIT_S = 1800.0


class Prepared(NamedTuple):
    """A collective that can be started once, and whether its result is right once it is done."""

    start: Callable[..., Any]  # with ``group`` and ``async_op``, as torch's own
    is_right: Callable[[], bool]


def _all_reduce(rank: LabRank, nbytes: int) -> Prepared:
    import torch
    import torch.distributed as dist

    numbers = rank.numbers(nbytes)
    tensor = numbers * (rank.rank + 1)
    expected = numbers * (rank.ranks * (rank.ranks + 1) // 2)
    return Prepared(partial(dist.all_reduce, tensor), lambda: torch.equal(tensor, expected))


def _reduce_scatter(rank: LabRank, nbytes: int) -> Prepared:
    """``nbytes``: of what each rank gives, less what can't be divided."""
    import torch
    import torch.distributed as dist

    numbers = rank.numbers(nbytes - nbytes % (4 * rank.ranks))
    given = numbers * (rank.rank + 1)
    part = torch.empty(len(given) // rank.ranks)
    own = numbers[rank.rank * len(part) : (rank.rank + 1) * len(part)]
    expected = own * (rank.ranks * (rank.ranks + 1) // 2)
    return Prepared(
        partial(dist.reduce_scatter_tensor, part, given),
        lambda: torch.equal(part, expected),
    )


def _all_gather(rank: LabRank, nbytes: int) -> Prepared:
    """``nbytes``: of what each rank gets."""
    import torch
    import torch.distributed as dist

    part = rank.numbers(nbytes // rank.ranks)
    whole = torch.empty(rank.ranks * len(part))
    expected = torch.cat([part + each for each in range(rank.ranks)])
    given = part + rank.rank
    return Prepared(
        partial(dist.all_gather_into_tensor, whole, given),
        lambda: torch.equal(whole, expected),
    )


PREPARE: dict[str, Callable[[LabRank, int], Prepared]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
}
"""By a rank, and the bytes of the buffer that has all ranks' parts."""


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows the options of all these benchmarks."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lab", type=float, default=0.0, metavar="MBIT", help="a port of the lab")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="on each host of the lab")
    parser.add_argument("--json", action="store_true", help="a row of JSON a line")
    parser.add_argument("--rank-side", action="store_true", help=argparse.SUPPRESS)
    return parser


def require_hosts(
    parser: argparse.ArgumentParser, options: argparse.Namespace, *ranks: int
) -> None:
    """End with a usage error where ranks can't be dealt out to hosts."""
    if any(each % options.ranks_per_host for each in ranks):
        parser.error("--ranks must be multiples of --ranks-per-host")
    if options.ranks_per_host > 1 and not options.lab:
        parser.error("--ranks-per-host is for --lab: on loopback all ranks share one host")


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
