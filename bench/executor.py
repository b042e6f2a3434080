"""The executor against Gloo's own all_reduce: nobody late, and one rank late.

    python -m bench.executor [--ranks 8] [--m 1] [--repeats 15]

Both are measured in one run, in turn (A B A B), on the same processes and tensors, and every
result is checked. With nobody late it is the time from a common start to the last rank's result,
for the straggler schedule and for a ring schedule (the ring moves as many bytes as Gloo's own
algorithm, so its ratio is the executor's overhead alone); with one late, the time from the late
rank's arrival to the last rank's result. Medians; the ratio is Gloo's time over the executor's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import PrefixStore, TCPStore

from runtime import Executor, load

SIZES = [2**16, 2**18, 2**20, 2**22, 2**24, 2**26]
DELAY_S = 0.15


def measure(rank: int, ranks: int, port: int, schedules: Any, repeats: int, out: Any) -> None:
    """Rank's part; rank 0 puts (bytes, situation, Gloo seconds, executor seconds) rows."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60))
    dist.init_process_group("gloo", store=PrefixStore("gloo", store), rank=rank, world_size=ranks)
    straggler, ring = (
        Executor(load(schedule), PrefixStore(f"{i}", store), rank, ranks, timeout_s=120)
        for i, schedule in enumerate(schedules)
    )
    (late,) = straggler.late

    def once(executor: Executor | None, tensor: torch.Tensor, delay_s: float) -> float:
        tensor.fill_(rank + 1)
        dist.barrier()
        if rank == late:
            time.sleep(delay_s)
        arrived = time.monotonic()
        if executor is None:
            dist.all_reduce(tensor)
        else:
            executor.submit(tensor).wait()
        done = time.monotonic()
        if not bool((tensor == ranks * (ranks + 1) / 2).all()):
            raise SystemExit("wrong sum")
        times: list[Any] = [None] * ranks
        dist.all_gather_object(times, (arrived, done))
        return max(d for _, d in times) - max(a for a, _ in times)

    for size in SIZES:
        tensor = torch.empty(size // 4)
        for situation, ours, delay_s in [
            ("nobody late, ring schedule", ring, 0.0),
            ("nobody late, straggler schedule", straggler, 0.0),
            ("one late, straggler schedule", straggler, DELAY_S),
        ]:
            count = repeats if size < 2**24 else max(3, repeats // 2)
            for way in (None, ours):
                once(way, tensor, 0.0)
            pairs = [
                (once(None, tensor, delay_s), once(ours, tensor, delay_s)) for _ in range(count)
            ]
            if rank == 0:
                out.put((size, situation, *map(statistics.median, zip(*pairs, strict=True))))
    if rank == 0:
        out.put(None)
    straggler.close()
    ring.close()
    dist.destroy_process_group()


def main() -> None:
    """Run and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--m", type=int, default=1, help="chunks per helper")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    import synth

    schedules = synth.generate(options.ranks, m=options.m), synth.ring(options.ranks)
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60))
    context = mp.get_context("spawn")
    out = context.Queue()
    arguments = (options.ranks, store.port, schedules, options.repeats, out)
    processes = [
        context.Process(target=measure, args=(rank, *arguments), daemon=True)
        for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    print("| bytes | situation | Gloo all_reduce | executor | ratio |")
    print("|--:|:--|--:|--:|--:|")
    while (row := out.get(timeout=600)) is not None:
        size, situation, native, ours = row
        print(
            f"| {size // 1024} KiB | {situation} | {native * 1e3:.2f} ms "
            f"| {ours * 1e3:.2f} ms | {native / ours:.2f} |",
            flush=True,
        )
    for process in processes:
        process.join(timeout=30)


if __name__ == "__main__":
    main()
