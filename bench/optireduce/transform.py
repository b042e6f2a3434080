"""Throughput of the Hadamard transform and of the wire format's parts, in one process.

    python -m bench.optireduce.transform [--repeats 5]

Against copying as many bytes (the floor), and against the plain radix-2 transform of a whole
bucket. Medians, in turn.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from runtime.optireduce import hadamard
from runtime.optireduce.udp.datagram import Codec, Header

NUMEL = 2**22


def radix2(flat: torch.Tensor) -> None:
    """The textbook transform of the whole tensor, in place."""
    size = 1
    while size < flat.numel():
        pairs = flat.view(-1, 2, size)
        low, high = pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]
        pairs[:, 0], pairs[:, 1] = low, high
        size *= 2
    flat /= math.sqrt(flat.numel())


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    x, y = torch.randn(NUMEL), torch.empty(NUMEL)
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
    for way, taken in times.items():
        median = statistics.median(taken)
        print(f"| {way} | {median * 1e3:.1f} | {median / floor:.1f} |")

    source = np.random.default_rng(0).integers(0, 256, 44 * 1424, dtype=np.uint8)
    print("\n| 44 datagrams | write, us | read, us |\n|:--|--:|--:|")
    for name, key in (("no tag", b""), ("authenticated", b"k" * 32)):
        sender, receiver = Codec(1, 1, 2, 1472, key), Codec(1, 0, 2, 1472, key)
        rows = np.zeros((44, 1472), np.uint8)
        written, read = [], []
        for _ in range(200):
            began = time.perf_counter()
            sender.data(rows, source, 0, 40, Header(0, 0, 1))
            middle = time.perf_counter()
            list(receiver.read(rows, Counter()))
            written.append(middle - began)
            read.append(time.perf_counter() - middle)
        medians = [statistics.median(times) * 1e6 for times in (written, read)]
        print(f"| {name} | {medians[0]:.0f} | {medians[1]:.0f} |")


if __name__ == "__main__":
    main()
