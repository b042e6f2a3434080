"""All-reduce on one machine's loopback: Gloo, TAR over TCP, TAR over UBT; time and processor.

    python -m bench.optireduce.loopback [--short] [--ranks 2] [--mib 1 4 16] [--repeats 9]

In turn in one run, each result compared with the exact mean, from the first rank's entry to the
last rank's result; medians. The processor's seconds are those of all ranks together, per GB of
tensor reduced. Nothing may be lost here: a run in which something was is an error. So is a rank
that fails or dies: the run ends and names it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from runtime.network.processes import RanksFailed, Say, talk
from runtime.optireduce.engine import OptiReduceEngine
from runtime.optireduce.options import Options

UBT: dict[str, dict[str, Any]] = {
    f"UBT, {path}{more}": {"compiled": compiled, **options}
    for more, options in {
        "": {},
        ", 8968 bytes": {"datagram_bytes": 8968},
        ", authenticated": {"authenticate": True},
    }.items()
    for path, compiled in (("numpy", "off"), ("compiled", "on"))
}
STORE_TIMEOUT_S = 60.0
DEADLINE_S = 1800.0
"""Ranks that are not done by then are named and ended; a whole run takes a few minutes."""
WAYS = ("Gloo", "TAR over TCP", *UBT)


def measure(
    store: TCPStore, rank: int, ranks: int, say: Say, sizes: list[int], repeats: int
) -> None:
    """A rank's part; rank 0 says (MiB, way, median seconds, processor seconds per GB) rows."""
    dist.init_process_group("gloo", store=PrefixStore("g", store), rank=rank, world_size=ranks)
    fixed: dict[str, Any] = {"warmup_steps": 0, "bound_s": 20.0, "resync_steps": 0}
    running = {
        name: OptiReduceEngine(
            PrefixStore(name, store), rank, ranks, options=Options(**fixed, **more), timeout_s=60
        )
        for name, more in UBT.items()
    }

    def once(way: str, tensor: torch.Tensor) -> tuple[float, float]:
        tensor.fill_(rank + 1.0)
        dist.barrier()
        began = time.monotonic()
        busy = sum(os.times()[:2])
        if way == "Gloo":
            dist.all_reduce(tensor)
            tensor /= ranks
        elif way == "TAR over TCP":
            running["UBT, numpy"].reliable.average(tensor)
        else:
            running[way].submit(tensor, average=True).wait()
        ended = time.monotonic()
        busy = sum(os.times()[:2]) - busy
        if not bool((tensor == (ranks + 1) / 2).all()):
            raise SystemExit(f"{way}: wrong, or something was lost")
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, (began, ended, busy))
        first = min(b for b, _, _ in told)
        last = max(e for _, e, _ in told)
        return last - first, sum(cpu for _, _, cpu in told)

    for mib in sizes:
        tensor = torch.empty(mib * 2**18)
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for round in range(repeats + 1):
            for way in WAYS:
                times = once(way, tensor)
                if round:
                    found[way].append(times)
        if rank == 0:
            for way, rows in found.items():
                seconds, busy = (statistics.median(column) for column in zip(*rows, strict=True))
                say((mib, way, seconds, busy / (mib * 2**20 / 1e9)))
    for engine in running.values():
        engine.close()
    dist.destroy_process_group()


def main() -> None:
    """Run and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="4 MiB only, three repeats")
    options = parser.parse_args()
    sizes, repeats = ([4], 3) if options.short else (options.mib, options.repeats)
    print(f"{options.ranks} ranks, {os.cpu_count()} cores\n")
    print("| MiB | way | ms | Gloo's time over this | CPU s per GB |\n|--:|:--|--:|--:|--:|")
    native = 0.0
    rows = talk(
        measure,
        options.ranks,
        sizes,
        repeats,
        timeout_s=STORE_TIMEOUT_S,
        deadline_s=DEADLINE_S,
    )
    try:
        for mib, way, seconds, busy in rows:
            native = seconds if way == "Gloo" else native
            print(
                f"| {mib} | {way} | {seconds * 1e3:.1f} | {native / seconds:.2f} | {busy:.2f} |",
                flush=True,
            )
    except RanksFailed as failure:
        raise SystemExit(str(failure)) from None


if __name__ == "__main__":
    main()
