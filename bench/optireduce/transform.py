"""Throughput of the Hadamard transform and of the wire format's parts, in one process.

    python -m bench.optireduce.transform [--repeats 5]

Against copying as many bytes (the floor), and against the plain radix-2 transform of a whole
bucket. Medians, in turn.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from latecomer.runtime.optireduce import hadamard
from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.compiled.choice import choose
from latecomer.runtime.optireduce.udp.data_path import NUMPY, DataPath
from latecomer.runtime.optireduce.udp.datagram import Codec
from latecomer.runtime.optireduce.udp.events import Burst, Bytes, DatagramHeader, ExpectedShard
from latecomer.runtime.optireduce.udp.placement import Placer

NUMEL = 2**22


def radix2(flat: torch.Tensor) -> None:
    """The textbook transform of the whole tensor, in place."""
    size = 1
    while size < flat.numel():
        pairs = flat.view(-1, 2, size)
        sums = pairs[:, 0] + pairs[:, 1]
        differences = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] = sums
        pairs[:, 1] = differences
        size *= 2
    flat /= math.sqrt(flat.numel())


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    x = torch.randn(NUMEL)
    y = torch.empty(NUMEL)
    ways: dict[str, Callable[[], object]] = {"copy": lambda: y.copy_(x)}
    for block in (1024, 4096, 16384):
        ways[f"transform, blocks of {block}"] = lambda b=block: hadamard.transform(x, 1, block=b)
    for dtype in (torch.bfloat16, torch.float16):
        small = x.to(dtype)
        ways[f"transform, {dtype}, 4096"] = lambda t=small: hadamard.transform(t, 1)
    ways["plain radix-2, whole bucket"] = lambda: radix2(x)

    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, run in ways.items():
            began = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - began)

    floor = statistics.median(times["copy"])
    print(f"{NUMEL} elements, {torch.get_num_threads()} threads\n")
    print("| way | ms | copies |\n|:--|--:|--:|")
    for way, seconds in times.items():
        median = statistics.median(seconds)
        print(f"| {way} | {median * 1e3:.1f} | {median / floor:.1f} |")

    datagrams(choose("auto"), repeats)


def datagrams(compiled: DataPath, repeats: int) -> None:
    """What each data path takes for 128 datagrams, hot in the cache, on one thread."""
    torch.set_num_threads(1)  # each of these parts runs on one thread in the runtime, too
    count = 128
    size = 1472
    payload = size - HEADER_BYTES
    nbytes = count * payload
    burst = Burst(
        header=DatagramHeader(stage=0, receiver=0, operation=1),
        source=np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8),
        first=0,
        marks_from=99,
        passed=np.arange(count),
    )
    print("\n| 128 datagrams of 1472 bytes | us | GB/s |\n|:--|--:|--:|")

    def row(name: str, run: Callable[[], object]) -> None:
        times = []
        for _ in range(40 * repeats):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
        median = statistics.median(times)
        print(f"| {name} | {median * 1e6:.0f} | {nbytes / median * 1e-9:.1f} |")

    for name, path in (("numpy", NUMPY), ("compiled", compiled)):
        rows = np.zeros((count, size), np.uint8)
        for tags, key in (("", b""), (", tags", b"k" * 16)):
            sender = path.codec(1, 1, 2, size, key)
            receiver = path.codec(1, 0, 2, size, key)
            row(f"{name}: write{tags}", functools.partial(sender.write, rows, burst))
            row(f"{name}: check{tags}", functools.partial(_check, receiver, rows))

            placer = path.placer(receiver)
            arrived = np.zeros(count, bool)
            into = np.zeros(nbytes, np.uint8)
            placer.open(1, [ExpectedShard(stage=0, sender=1, arrived=arrived, into=into)])
            check_and_place = functools.partial(_place, placer, rows, arrived)
            row(f"{name}: check and place{tags}", check_and_place)

        for ranks in (2, 4):
            own = torch.rand(nbytes // 4)
            pieces = np.zeros((ranks - 1, count, payload), np.uint8)
            all_arrived = np.ones((ranks - 1, count), bool)
            raw = own.view(torch.uint8).numpy()
            average = functools.partial(
                path.average, raw, own.dtype, 0, pieces, 0, all_arrived, True
            )
            row(f"{name}: average of {ranks}", average)

    for ranks in (2, 4):
        own = torch.rand(nbytes // 4)
        contributions = torch.rand(ranks - 1, nbytes // 4)
        average_by_torch = functools.partial(_average, own, contributions)
        row(f"torch, add_ and div_: average of {ranks}", average_by_torch)


def _check(receiver: Codec, rows: Bytes) -> None:
    for _ in receiver.read(rows, Counter()):
        pass


def _place(placer: Placer, rows: Bytes, arrived: np.ndarray) -> None:
    arrived[:] = False
    placer.read(rows)


def _average(own: torch.Tensor, contributions: torch.Tensor) -> None:
    for contribution in contributions:
        own.add_(contribution)
    own.div_(len(contributions) + 1)


if __name__ == "__main__":
    main()
