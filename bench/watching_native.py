"""What a watch of torch's own process groups costs a job: the same steps with and without it.

    python -m bench.watching_native [--ranks 8] [--steps 30] [--repeats 9]

On stock Gloo, in one run, in turn (A B A B), on the same processes: training of a small model with
DDP, and small all-reduces one by one. A row is the median over the repeats of the mean time of a
step on rank 0, without and with the watch, which writes its files. torch 2.14 or later.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import latecomer

WIDTH = 512
LAYERS = 8
ROWS = 64
SMALL = 64  # elements


def training() -> Callable[[], None]:
    """A step of DDP: 2 million parameters, 8 MiB of gradients in four buckets."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(ROWS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return step


def small() -> Callable[[], None]:
    """An all-reduce of 256 bytes."""
    x = torch.ones(SMALL)

    def step() -> None:
        dist.all_reduce(x)

    return step


def measure(step: Callable[[], None], steps: int, directory: str | None) -> float:
    """Seconds of a step, under watch where there is a directory."""
    watch: Any = contextlib.nullcontext()
    if directory is not None:
        watch = latecomer.watch(directory=directory)
    with watch:
        step()  # the watch has begun on all ranks
        dist.barrier()
        began_s = time.perf_counter()
        for _ in range(steps):
            step()
        dist.barrier()
        return (time.perf_counter() - began_s) / steps


def run(rank: int, options: argparse.Namespace, store: str, directory: str) -> None:
    """One rank's part; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks
    )
    if rank == 0:
        print(f"torch {torch.__version__}, {options.ranks} ranks")
        print("| step | without, ms | with, ms | more, us | ratio |")
        print("|:--|--:|--:|--:|--:|")
    for name, make, factor in (("DDP", training, 1), ("all-reduce of 256 bytes", small, 20)):
        step = make()
        measure(step, options.steps, None)
        times_s: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.repeats):
            for is_watched in (False, True):
                where = directory if is_watched else None
                times_s[is_watched].append(measure(step, factor * options.steps, where))
        without_s = statistics.median(times_s[False])
        with_s = statistics.median(times_s[True])
        pairs = zip(times_s[False], times_s[True], strict=True)
        ratio = statistics.median(watched_s / plain_s for plain_s, watched_s in pairs)
        if rank == 0:
            more_us = (with_s - without_s) * 1e6
            row = f"{without_s * 1e3:.3f} | {with_s * 1e3:.3f} | {more_us:.1f} | {ratio:.3f}"
            print(f"| {name} | {row} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Measure, and print a row each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = f"{directory}/store"
        mp.start_processes(run, (options, store, directory), options.ranks)


if __name__ == "__main__":
    main()
