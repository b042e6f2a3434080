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

from latecomer.runtime import Executor, load
from latecomer.runtime.network.mesh import connect
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.core.schedule import Schedule

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
        received_piece = self._buffer.view(torch.uint8).numpy().data
        for add in (True, False):
            for begin in range(0, half, PIECE):
                end = min(begin + PIECE, half)
                received = 0
                while received < end - begin:
                    received += self._come.recv_into(received_piece[received : end - begin])
                if add:
                    tensor[begin // 4 : end // 4] += self._buffer[: (end - begin) // 4]
        sender.join()

    def _send(self, source: memoryview) -> None:
        for _ in range(2):
            self._to.sendall(source)


AllReduce = Callable[[torch.Tensor], Any]


def by(executor: Executor) -> AllReduce:
    """An all-reduce by the executor's schedule."""
    return lambda tensor: executor.submit(tensor).wait()


class Rank:
    """One rank, and what it sums tensors by."""

    def __init__(
        self, rank: int, ranks: int, port: int, straggler: Schedule, ring: Schedule
    ) -> None:
        torch.set_num_threads(1)
        store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60))
        dist.init_process_group(
            "gloo", store=PrefixStore("gloo", store), rank=rank, world_size=ranks
        )
        self.rank = rank
        self._ranks = ranks
        self.straggler = Executor(
            load(straggler), PrefixStore("straggler", store), rank, ranks, timeout_s=120
        )
        self.ring = Executor(load(ring), PrefixStore("ring", store), rank, ranks, timeout_s=120)
        self.plain = PlainSockets(PrefixStore("plain", store), rank, ranks)
        (self._late,) = self.straggler.late

    def medians(
        self, ways: dict[str, AllReduce], kib: int, delay_s: float, repeats: int
    ) -> dict[str, tuple[float, float]]:
        """By way, seconds and CPU seconds; the first repeat is not counted, and nobody is late."""
        tensor = torch.empty(kib * KIB // 4)
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for repeat in range(1 + repeats):
            for name, run in ways.items():
                row = self._once(run, tensor, delay_s if repeat else 0.0)
                if repeat:
                    rows[name].append(row)

        medians = {}
        for name, of_way in rows.items():
            seconds = statistics.median(seconds for seconds, _ in of_way)
            cpu_s = statistics.median(cpu_s for _, cpu_s in of_way)
            medians[name] = (seconds, cpu_s)
        return medians

    def _once(self, run: AllReduce, tensor: torch.Tensor, delay_s: float) -> tuple[float, float]:
        """Seconds from the last arrival to the last result, and CPU seconds of all ranks."""
        tensor.fill_(self.rank + 1)
        dist.barrier()
        if self.rank == self._late:
            time.sleep(delay_s)

        arrived_s = time.monotonic()
        cpu_before_s = time.process_time()
        run(tensor)
        done_s = time.monotonic()
        cpu_s = time.process_time() - cpu_before_s

        is_sum = run != self.plain.run
        total = self._ranks * (self._ranks + 1) / 2
        is_right = not is_sum or bool((tensor == total).all())
        by_rank: list[Any] = [None] * self._ranks
        dist.all_gather_object(by_rank, (arrived_s, done_s, cpu_s, is_right))
        if not all(right for _, _, _, right in by_rank):
            raise SystemExit("wrong sum")
        last_arrived_s = max(arrived for arrived, _, _, _ in by_rank)
        last_done_s = max(done for _, done, _, _ in by_rank)
        return last_done_s - last_arrived_s, sum(cpu for _, _, cpu, _ in by_rank)

    def close(self) -> None:
        """Release all connections."""
        self.straggler.close()
        self.ring.close()
        dist.destroy_process_group()


def measure(
    number: int,
    ranks: int,
    port: int,
    straggler: Schedule,
    ring: Schedule,
    sizes: list[int],
    repeats: int,
    out: Any,
) -> None:
    """Rank's part; rank 0 puts (KiB, instance, {way: (seconds, CPU seconds)}) rows."""
    rank = Rank(number, ranks, port, straggler, ring)
    for kib in sizes:
        late_s = DELAY_S + DELAY_S_PER_BYTE * kib * KIB
        repeats_of_size = repeats if kib < 2**14 else max(3, repeats // 2)
        for instance, executor, delay_s in [
            ("no straggler, ring schedule", rank.ring, 0.0),
            ("no straggler, straggler schedule", rank.straggler, 0.0),
            ("one late, straggler schedule", rank.straggler, late_s),
        ]:
            ways: dict[str, AllReduce] = {"Gloo": dist.all_reduce, "executor": by(executor)}
            if executor is rank.ring:
                ways["plain"] = rank.plain.run
            medians = rank.medians(ways, kib, delay_s, repeats_of_size)
            if number == 0:
                out.put((kib, instance, medians))

    if number == 0:
        out.put(None)
    rank.close()


def main() -> None:
    """Run and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--m", type=int, default=1, help="chunks per helper")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="KiB")
    options = parser.parse_args()

    from latecomer import synth

    straggler = synth.generate(options.ranks, m=options.m)
    ring = synth.ring(options.ranks)
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60))
    context = mp.get_context("spawn")
    out = context.Queue()
    arguments = (
        options.ranks,
        store.port,
        straggler,
        ring,
        options.sizes,
        options.repeats,
        out,
    )
    processes = []
    for rank in range(options.ranks):
        process = context.Process(target=measure, args=(rank, *arguments), daemon=True)
        process.start()
        processes.append(process)

    print(
        "| KiB | instance | Gloo | executor | ratio | CPU s/GB: Gloo | executor | plain sockets |"
    )
    print("|--:|:--|--:|--:|--:|--:|--:|--:|")
    while (row := out.get(timeout=600)) is not None:
        kib, instance, medians = row
        gb = options.ranks * kib * KIB / 1e9
        gloo_s, gloo_cpu_s = medians["Gloo"]
        ours_s, ours_cpu_s = medians["executor"]
        floor = ""
        if "plain" in medians:
            _, plain_cpu_s = medians["plain"]
            floor = f"{plain_cpu_s / gb:.2f}"
        print(
            f"| {kib} | {instance} | {gloo_s * 1e3:.1f} ms | {ours_s * 1e3:.1f} ms "
            f"| {gloo_s / ours_s:.2f} | {gloo_cpu_s / gb:.2f} | {ours_cpu_s / gb:.2f} | {floor} |",
            flush=True,
        )
    for process in processes:
        process.join(timeout=30)


if __name__ == "__main__":
    main()
