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

from latecomer.runtime.network.processes import RanksFailed, Say, talk
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options

UBT: dict[str, dict[str, Any]] = {
    "UBT, numpy": {"compiled": "off"},
    "UBT, compiled": {"compiled": "on"},
    "UBT, numpy, 8968 bytes": {"compiled": "off", "datagram_bytes": 8968},
    "UBT, compiled, 8968 bytes": {"compiled": "on", "datagram_bytes": 8968},
    "UBT, numpy, authenticated": {"compiled": "off", "authenticate": True},
    "UBT, compiled, authenticated": {"compiled": "on", "authenticate": True},
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
    engines = {}
    for way, of_way in UBT.items():
        options = Options(warmup_steps=0, bound_s=20.0, resync_steps=0, **of_way)
        engines[way] = OptiReduceEngine(
            PrefixStore(way, store), rank, ranks, options=options, timeout_s=60
        )

    def once(way: str, tensor: torch.Tensor) -> tuple[float, float]:
        """Seconds from the first rank's entry to the last one's result; CPU seconds of all."""
        tensor.fill_(rank + 1.0)
        dist.barrier()
        began_s = time.monotonic()
        busy_before_s = time.process_time()
        if way == "Gloo":
            dist.all_reduce(tensor)
            tensor /= ranks
        elif way == "TAR over TCP":
            engines["UBT, numpy"].reliable.average(tensor)
        else:
            engines[way].submit(tensor, average=True).wait()
        ended_s = time.monotonic()
        busy_s = time.process_time() - busy_before_s
        if not bool((tensor == (ranks + 1) / 2).all()):
            raise SystemExit(f"{way}: wrong, or something was lost")

        of_ranks: list[Any] = [None] * ranks
        dist.all_gather_object(of_ranks, (began_s, ended_s, busy_s))
        first_s = min(began_s for began_s, _, _ in of_ranks)
        last_s = max(ended_s for _, ended_s, _ in of_ranks)
        return last_s - first_s, sum(busy_s for _, _, busy_s in of_ranks)

    for mib in sizes:
        tensor = torch.empty(mib * 2**18)
        rows_of: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for repeat in range(repeats + 1):
            for way in WAYS:
                row = once(way, tensor)
                if repeat:  # the first is a warm-up
                    rows_of[way].append(row)
        if rank == 0:
            for way, rows in rows_of.items():
                seconds = statistics.median(seconds for seconds, _ in rows)
                busy_s = statistics.median(busy_s for _, busy_s in rows)
                say((mib, way, seconds, busy_s / (mib * 2**20 / 1e9)))

    for engine in engines.values():
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

    if options.short:
        options.mib = [4]
        options.repeats = 3
    print(f"{options.ranks} ranks, {os.cpu_count()} cores\n")
    print("| MiB | way | ms | Gloo's time over this | CPU s per GB |\n|--:|:--|--:|--:|--:|")

    native = 0.0
    rows = talk(
        measure,
        options.ranks,
        options.mib,
        options.repeats,
        timeout_s=STORE_TIMEOUT_S,
        deadline_s=DEADLINE_S,
    )
    try:
        for mib, way, seconds, busy in rows:
            if way == "Gloo":
                native = seconds
            print(
                f"| {mib} | {way} | {seconds * 1e3:.1f} | {native / seconds:.2f} | {busy:.2f} |",
                flush=True,
            )
    except RanksFailed as failure:
        raise SystemExit(str(failure)) from None


if __name__ == "__main__":
    main()
