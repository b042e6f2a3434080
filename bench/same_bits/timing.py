"""How long all-reduces take with the same bits, over those with any bits.

Four ranks, or as many as ``--ranks`` says, on the loopback of this machine, or as hosts of
``bench.lab``, with two groups of the backend for each mode, which differ in ``bits`` only. In turn
(any, same, copied, any, same, copied), nobody late, from the last rank's arrival to the last one's
result. *Copied* is any bits of a copy, which is copied back: a conversion to integers and back can
not cost less, since it reads and writes as much. Ratios are medians of those of such rounds. Beside
them stands the processor time of all ranks together, in which other work on the machine has less
part. Each sum is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from latecomer.synth.units import format_bytes, parse_bytes

RANKS = 4
MODES: dict[str, dict[str, Any]] = {
    "native": {"mode": "native"},
    "static": {"mode": "static", "late": 1},
    "auto": {"mode": "auto"},
}
BITS = ("any", "same")
SIZES = ("256KiB", "1MiB", "4MiB", "16MiB")
WARM_UP = 3
TIMEOUT_S = 1800.0


Report = Callable[[dict[str, Any]], None]


def time_modes(report: Report, modes: list[str], sizes: list[int], repeats: int) -> None:
    """One rank's part; rank 0 reports a row for each mode and size."""
    import torch
    import torch.distributed as dist

    import latecomer

    torch.set_num_threads(1)
    rank = dist.get_rank()
    for mode in modes:
        groups = {}
        for bits in BITS:
            latecomer.configure(**MODES[mode], bits=bits)
            groups[bits] = dist.new_group(backend="latecomer")
        for nbytes in sizes:
            dice = torch.Generator().manual_seed(rank)
            given = torch.randn(nbytes // 4, generator=dice)
            expected = given.double()
            dist.all_reduce(expected)
            pairs: list[list[dict[str, float]]] = []
            for repeat in range(WARM_UP + repeats):
                times = [time_one(group, given, expected) for group in groups.values()]
                times.append(time_one(groups["any"], given, expected, copies=True))
                if repeat >= WARM_UP:
                    pairs.append(times)
            if rank == 0:
                report({"mode": mode, "nbytes": nbytes, "pairs": pairs})
        for group in groups.values():
            dist.destroy_process_group(group)


def time_one(group: Any, given: Any, expected: Any, *, copies: bool = False) -> dict[str, float]:
    """Seconds of one all-reduce, of the clock and of all processors together."""
    import torch
    import torch.distributed as dist

    tensor = given.clone()
    copy = torch.zeros_like(tensor) if copies else tensor
    dist.barrier()
    arrived_s = time.monotonic()
    began_s = time.process_time()
    if copies:
        copy.copy_(tensor)
    dist.all_reduce(copy, group=group)
    if copies:
        tensor.copy_(copy)
    used_s = time.process_time() - began_s
    done_s = time.monotonic()
    is_right = torch.allclose(tensor.double(), expected, rtol=1e-4, atol=1e-4)
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, (arrived_s, done_s, used_s, is_right))
    wrong_ranks = [rank for rank, (*_, right) in enumerate(by_rank) if not right]
    if wrong_ranks:
        raise SystemExit(f"wrong sum on rank(s) {wrong_ranks}")
    last_arrived_s = max(arrived for arrived, *_ in by_rank)
    last_done_s = max(done for _, done, *_ in by_rank)
    return {
        "seconds": last_done_s - last_arrived_s,
        "processor": sum(used for _, _, used, _ in by_rank),
    }


class _Table:
    """Prints what rank 0 reports."""

    def __init__(self) -> None:
        print(
            "| mode | size | any | same | same over any | of processors' time | copied over any |"
        )
        print("|:--|--:|--:|--:|--:|--:|--:|", flush=True)

    def row(self, row: dict[str, Any]) -> None:
        """Medians of the pairs, and the ratios."""
        any_ms, same_ms = (
            statistics.median(pair[bits]["seconds"] for pair in row["pairs"]) * 1e3
            for bits in range(2)
        )
        ratios = {
            what: statistics.median(pair[1][what] / pair[0][what] for pair in row["pairs"])
            for what in ("seconds", "processor")
        }
        copied = statistics.median(pair[2]["seconds"] / pair[0]["seconds"] for pair in row["pairs"])
        print(
            f"| {row['mode']} | {format_bytes(row['nbytes'])} | {any_ms:.1f} ms | {same_ms:.1f} ms "
            f"| {ratios['seconds']:.2f} | {ratios['processor']:.2f} | {copied:.2f} |",
            flush=True,
        )


def on_loopback(options: argparse.Namespace) -> None:
    """On forked processes."""
    from latecomer.runtime.network.processes import talk

    table = _Table()
    said = talk(
        _forked,
        options.ranks,
        options.modes,
        _sizes(options),
        options.repeats,
        timeout_s=60.0,
        deadline_s=TIMEOUT_S,
    )
    for row in said:
        table.row(row)


def _forked(
    store: Any,
    rank: int,
    ranks: int,
    say: Report,
    modes: list[str],
    sizes: list[int],
    repeats: int,
) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    time_modes(say, modes, sizes, repeats)
    dist.destroy_process_group()


def on_lab(options: argparse.Namespace) -> None:
    """On hosts of a lab, each a rank that runs this command, too."""
    if options.rank_side:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        time_modes(_print_row, options.modes, _sizes(options), options.repeats)
        dist.destroy_process_group()
        return

    from bench.lab import Lab, Network

    argv = [sys.executable, "-m", "bench.same_bits", *sys.argv[1:], "--rank-side"]
    with Lab(Network(hosts=RANKS, rate_mbit=options.rate)) as lab:
        print(f"{RANKS} hosts, {options.rate:g} Mbit/s, {os.cpu_count()} cores\n")
        table = _Table()

        def line(rank: int, text: str) -> None:
            if text.startswith('{"mode"'):
                table.row(json.loads(text))
            else:
                print(f"[{rank}] {text}", file=sys.stderr, flush=True)

        lab.run(argv, timeout_s=TIMEOUT_S, on_line=line).check()


def _print_row(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def _sizes(options: argparse.Namespace) -> list[int]:
    return [parse_bytes("--sizes", text) for text in options.sizes]
