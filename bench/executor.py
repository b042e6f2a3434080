"""The executor against Gloo's own all_reduce on one host: no straggler, and one late rank.

    python -m bench.executor [--ranks 8] [--m 1] [--repeats 9] [--sizes 64 1024 4096 16384 65536]

All ways are measured in one run, in turn (A B C A B C), on the same processes and tensors, and
every result is checked. With no straggler it is the time from a common start to the last rank's
result, for the straggler schedule and for a ring schedule (the ring moves as many bytes as Gloo's
own algorithm); with one late, the time from the late rank's arrival to the last rank's result.
Medians; the ratio is Gloo's time over the executor's.

On one host the processor is the limit, so the CPU time of all ranks stands next to it, from each
rank's arrival to its result, in seconds per GB of the buffers of all ranks together. *Plain
sockets* is what Python can reach at best: the bytes of a ring in pieces of 1 MiB by ``sendall`` and
``recv_into``, half of them added with torch, and no protocol at all.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import PrefixStore, TCPStore

from runtime import Executor, load
from runtime.network.mesh import connect
from runtime.network.store_exchange import StoreExchange

KIB = 1024
SIZES = [64, 1024, 4096, 16384, 65536]
DELAY_S = 0.1
DELAY_S_PER_BYTE = 6e-9  # more than the others need for their own part
PIECE = 1024 * KIB


class PlainSockets:
    """A ring of blocking sockets that moves and adds as many bytes as an all-reduce."""

    def __init__(self, store: Any, rank: int, ranks: int) -> None:
        lower, higher = connect(
            StoreExchange(store, rank, ranks, 60),
            "127.0.0.1",
            b"bench.executor..",
            to=range(rank),
            origin=range(rank + 1, ranks),
        )
        links = lower | higher
        self._to = links[(rank + 1) % ranks]
        self._come = links[(rank - 1) % ranks]
        for link in links.values():
            link.setblocking(True)
        self._part = 2 * (ranks - 1) / ranks
        self._buffer = torch.empty(PIECE // 4)

    def run(self, tensor: torch.Tensor) -> None:
        """Send and receive; the sums are not those of an all-reduce."""
        half = int(self._part * tensor.numel() * 4) // 8 * 4
        source = tensor.view(torch.uint8).numpy().data[:half]
        sender = threading.Thread(target=self._send, args=(source,))
        sender.start()
        into = self._buffer.view(torch.uint8).numpy().data
        for add in (True, False):
            for begin in range(0, half, PIECE):
                end = min(begin + PIECE, half)
                got = 0
                while got < end - begin:
                    got += self._come.recv_into(into[got : end - begin])
                if add:
                    tensor[begin // 4 : end // 4] += self._buffer[: (end - begin) // 4]
        sender.join()

    def _send(self, source: memoryview) -> None:
        for _ in range(2):
            self._to.sendall(source)


def by(executor: Executor) -> Callable[[torch.Tensor], Any]:
    """An all-reduce by the executor's schedule."""
    return lambda tensor: executor.submit(tensor).wait()


def measure(
    rank: int, ranks: int, port: int, schedules: Any, sizes: list[int], repeats: int, out: Any
) -> None:
    """Rank's part; rank 0 puts (KiB, instance, {way: (seconds, CPU seconds)}) rows."""
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60))
    dist.init_process_group("gloo", store=PrefixStore("gloo", store), rank=rank, world_size=ranks)
    straggler, ring = (
        Executor(load(schedule), PrefixStore(f"{i}", store), rank, ranks, timeout_s=120)
        for i, schedule in enumerate(schedules)
    )
    plain = PlainSockets(PrefixStore("plain", store), rank, ranks)
    (late,) = straggler.late

    def once(run: Callable[[torch.Tensor], Any], tensor: torch.Tensor, delay_s: float) -> Any:
        tensor.fill_(rank + 1)
        dist.barrier()
        if rank == late:
            time.sleep(delay_s)
        arrived = time.monotonic()
        cpu_s = time.process_time()
        run(tensor)
        done = time.monotonic()
        cpu_s = time.process_time() - cpu_s
        right = run == plain.run or bool((tensor == ranks * (ranks + 1) / 2).all())
        said: list[Any] = [None] * ranks
        dist.all_gather_object(said, (arrived, done, cpu_s, right))
        if not all(right for *_, right in said):
            raise SystemExit("wrong sum")
        last_s = max(done for _, done, _, _ in said) - max(arrived for arrived, *_ in said)
        return last_s, sum(cpu_s for _, _, cpu_s, _ in said)

    for size in sizes:
        tensor = torch.empty(size * KIB // 4)
        for instance, ours, delay_s in [
            ("no straggler, ring schedule", ring, 0.0),
            ("no straggler, straggler schedule", straggler, 0.0),
            ("one late, straggler schedule", straggler, DELAY_S + DELAY_S_PER_BYTE * size * KIB),
        ]:
            ways: dict[str, Callable[[torch.Tensor], Any]] = {
                "Gloo": dist.all_reduce,
                "executor": by(ours),
            }
            if ours is ring:
                ways["plain"] = plain.run
            found: dict[str, list[Any]] = {name: [] for name in ways}
            for repeat in range(1 + (repeats if size < 2**14 else max(3, repeats // 2))):
                for name, run in ways.items():
                    took = once(run, tensor, delay_s if repeat else 0.0)
                    if repeat:
                        found[name].append(took)
            if rank == 0:
                medians = {
                    name: tuple(map(statistics.median, zip(*took, strict=True)))
                    for name, took in found.items()
                }
                out.put((size, instance, medians))
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
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="KiB")
    options = parser.parse_args()
    import synth

    schedules = synth.generate(options.ranks, m=options.m), synth.ring(options.ranks)
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60))
    context = mp.get_context("spawn")
    out = context.Queue()
    arguments = (options.ranks, store.port, schedules, options.sizes, options.repeats, out)
    processes = [
        context.Process(target=measure, args=(rank, *arguments), daemon=True)
        for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    print(
        "| KiB | instance | Gloo | executor | ratio | CPU s/GB: Gloo | executor | plain sockets |"
    )
    print("|--:|:--|--:|--:|--:|--:|--:|--:|")
    while (row := out.get(timeout=600)) is not None:
        size, instance, ways = row
        gb = options.ranks * size * KIB / 1e9
        (gloo_s, gloo_cpu_s), (ours_s, ours_cpu_s) = ways["Gloo"], ways["executor"]
        floor = f"{ways['plain'][1] / gb:.2f}" if "plain" in ways else ""
        print(
            f"| {size} | {instance} | {gloo_s * 1e3:.1f} ms | {ours_s * 1e3:.1f} ms "
            f"| {gloo_s / ours_s:.2f} | {gloo_cpu_s / gb:.2f} | {ours_cpu_s / gb:.2f} | {floor} |",
            flush=True,
        )
    for process in processes:
        process.join(timeout=30)


if __name__ == "__main__":
    main()
