"""How much arrives in a second: UBT against TCP, both directions at once between two hosts.

    python -m bench.optireduce.goodput [--short] [--rates 0 100 400 1000] [--seconds 1]
                                       [--repeats 5]

On loopback (rate 0) and on lab ports, six ways in turn in one run (A B C ... A B ...); medians:

    TCP            two plain streams, sendall and recv_into: what the machine and the wire give;
                   with Reno, since BBR, where it is the default, is slower on loopback
    TAR over TCP   our executor of verified schedules
    UBT, numpy     several operations in flight (1472 bytes a datagram); the data path is numpy's
    UBT, compiled  the same with the compiled data path (the extra ``fast``)
    ..., tags      the same, every datagram authenticated

A rank of two sends as many bytes as a tensor has, and receives as many, so goodput is tensor bytes
per second and direction, from the first rank's start to the last one's end; of UBT only what
arrived counts. The bound is set so high that only the network and the processor count. Processor
seconds are those of both ranks together, kernel included, per GB delivered to both. Wrong bytes are
an error.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.lab import Network
from bench.optireduce.places import TIMEOUT_S, Place, run

IN_FLIGHT = 4
TCP = "TCP"
TAR = "TAR over TCP"
UBT: dict[str, dict[str, Any]] = {
    f"UBT, {path}{tags}": {"compiled": compiled, "authenticate": bool(tags)}
    for tags in ("", ", tags")
    for path, compiled in (("numpy", "off"), ("compiled", "on"))
}
"""Options of each way over UBT."""
WAYS = (TCP, TAR, *UBT)
LOOPBACK_BYTES = 64 * 2**20
"""Moved in one go where no rate says how much a second is."""


class Streams:
    """A TCP connection each way between two ranks."""

    def __init__(self, place: Place) -> None:
        with socket.create_server(("0.0.0.0", 0)) as server:
            host = os.environ.get("LATECOMER_ADDRESS", "127.0.0.1")
            place.store.set(f"stream/{place.rank}", f"{host} {server.getsockname()[1]}")
            to, port = place.store.get(f"stream/{1 - place.rank}").decode().split()
            self._out = socket.create_connection((to, int(port)), timeout=TIMEOUT_S)
            self._out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            self._in, _ = server.accept()
        self._in.settimeout(TIMEOUT_S)

    def exchange(self, source: memoryview, into: memoryview) -> None:
        """Send all of one and fill the other, at the same time."""
        sending = threading.Thread(target=self._out.sendall, args=(source,))
        sending.start()
        filled = 0
        while filled < len(into):
            got = self._in.recv_into(into[filled:])
            if not got:
                raise SystemExit("the stream ended")
            filled += got
        sending.join()


def rank_side(moved_bytes: int, repeats: int, ways: list[str]) -> None:
    """One of two ranks."""
    import torch
    from torch._C._distributed_c10d import PrefixStore

    from runtime.optireduce.engine import OptiReduceEngine
    from runtime.optireduce.options import Options

    place = Place.find()
    rank = place.rank
    fixed: dict[str, Any] = {"warmup_steps": 0, "bound_s": 30.0, "resync_steps": 0}
    fixed |= {"hadamard": "off", "stop_loss": 1.0, "skip_loss": 1.0}
    engines = {
        way: OptiReduceEngine(
            PrefixStore(way, place.store),
            rank,
            2,
            options=Options(**fixed, **UBT.get(way, {})),
            timeout_s=TIMEOUT_S,
        )
        for way in ways
        if way in UBT or (way == TAR and not UBT.keys() & ways)
    }
    reliable = next(iter(engines.values())).reliable if engines else None
    streams = Streams(place)
    numel = moved_bytes // 4 // IN_FLIGHT
    right = torch.arange(numel, dtype=torch.float32) % 251
    rows: dict[str, list[tuple[float, float, float, float]]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way in ways:
            tensors = [right * (rank + 1) for _ in range(IN_FLIGHT)]
            spare = [torch.empty(numel) for _ in range(IN_FLIGHT)] if way == TCP else []
            engine = engines[way] if way in UBT else None
            before = dict(engine.ledger.totals) if engine else {}
            place.meet(f"{number}/{way}")
            began_s = time.monotonic()
            busy_s = sum(os.times()[:2])
            if way == TCP:
                for tensor, into in zip(tensors, spare, strict=True):
                    views = (t.numpy().view("u1").data for t in (tensor, into))
                    streams.exchange(*views)
            else:
                submit = (engine or reliable).submit
                for operation in [submit(tensor, average=True) for tensor in tensors]:
                    operation.wait()
            ended_s = time.monotonic()
            busy_s = sum(os.times()[:2]) - busy_s
            totals = engine.ledger.totals if engine else {}
            due, lost = (totals.get(k, 0) - before.get(k, 0) for k in ("due", "lost"))
            place.store.set(f"{number}/{way}/lost/{rank}", str(lost))
            elsewhere = int(place.store.get(f"{number}/{way}/lost/{1 - rank}"))
            check(way, rank, right, spare or tensors, lost + elsewhere)
            if number:
                rows[way].append((began_s, ended_s, busy_s, lost / max(1, due)))
    place.leave({"rows": rows})


def check(way: str, rank: int, right: Any, found: list[Any], lost: int) -> None:
    """Leave with an error where bytes are wrong.

    Args:
        lost: by both ranks; what an owner has lost is in the other's result, too.
    """
    for tensor in found:
        if way == TCP:
            good = bool((tensor == right * (2 - rank)).all())
        elif lost:
            good = bool(((tensor >= right * 0.999) & (tensor <= right * 2.001)).all())
        else:
            good = bool((tensor == right * 1.5).all())
        if not good:
            raise SystemExit(f"{way}: wrong bytes")


def measure(rate: float, options: argparse.Namespace) -> None:
    """Print a row for each way."""
    moved = int(rate * 1e6 / 8 * options.seconds) if rate else LOOPBACK_BYTES
    argv = ["bench.optireduce.goodput", "--rank-side", str(moved)]
    argv += ["--repeats", str(options.repeats), "--ways"]
    network = Network(hosts=2, rate_mbit=rate) if rate else None
    reached = dict[str, float]()
    found = dict[str, list[Any]]()
    for ways in [options.ways] if options.pairs == 1 else [[way] for way in options.ways]:
        with ThreadPoolExecutor(options.pairs) as pool:
            commands = [[*argv, *ways]] * options.pairs
            told = list(pool.map(lambda each: run(each, 2, network, 300.0), commands))
        found |= {way: [[side["rows"][way] for side in pair] for pair in told] for way in ways}
    for way in options.ways:
        speeds = []
        each_busy = []
        each_lost = []
        for first, second in found[way]:
            pairs = list(zip(first, second, strict=True))
            each_lost += [row[3] for pair in pairs for row in pair]
            speeds.append(
                statistics.median(
                    moved * (1 - (a[3] + b[3]) / 2) / (max(a[1], b[1]) - min(a[0], b[0]))
                    for a, b in pairs
                )
            )
            each_busy += [(a[2] + b[2]) / (2 * moved / 1e9) for a, b in pairs]
        reached[way], lost = sum(speeds), statistics.mean(each_lost)
        busy = statistics.median(each_busy)
        place = f"{rate:g} Mbit/s" if rate else "loopback"
        print(
            f"| {place} | {way} | {reached[way] * 8e-6:.0f} | {reached[way] / reached[TCP]:.2f} "
            f"| {busy:.2f} | {lost:.2%} |",
            flush=True,
        )


def main() -> None:
    """All rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 100, 400, 1000])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run on a lab port")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="TCP first")
    parser.add_argument("--pairs", type=int, default=1, help="at once; their goodput is added up")
    parser.add_argument("--short", action="store_true", help="two repeats of half a second")
    parser.add_argument("--rank-side", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.short:
        options.repeats = 2
        options.seconds = 0.5
    if options.rank_side:
        rank_side(options.rank_side, options.repeats, options.ways)
        return
    print(f"2 hosts, {os.cpu_count()} cores, {options.repeats} repeats; TCP with Reno\n")
    print("| ports | way | Mbit/s each way | of TCP | CPU s per GB | lost |")
    print("|:--|:--|--:|--:|--:|--:|", flush=True)
    for rate in options.rates:
        measure(rate, options)


if __name__ == "__main__":
    main()
