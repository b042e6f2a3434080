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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

from bench.lab import Network
from bench.optireduce.places import TIMEOUT_S, RankProcess, run

IN_FLIGHT = 4
TCP = "TCP"
TAR = "TAR over TCP"
UBT: dict[str, dict[str, Any]] = {
    "UBT, numpy": {"compiled": "off", "authenticate": False},
    "UBT, compiled": {"compiled": "on", "authenticate": False},
    "UBT, numpy, tags": {"compiled": "off", "authenticate": True},
    "UBT, compiled, tags": {"compiled": "on", "authenticate": True},
}
"""Options of each way over UBT."""
WAYS = (TCP, TAR, *UBT)
LOOPBACK_BYTES = 64 * 2**20
"""Moved in one go where no rate says how much a second is."""


class Streams:
    """A TCP connection each way between two ranks."""

    def __init__(self, process: RankProcess) -> None:
        with socket.create_server(("0.0.0.0", 0)) as server:
            host = os.environ.get("LATECOMER_ADDRESS", "127.0.0.1")
            process.store.set(f"stream/{process.rank}", f"{host} {server.getsockname()[1]}")
            peer, port = process.store.get(f"stream/{1 - process.rank}").decode().split()
            self._out = socket.create_connection((peer, int(port)), timeout=TIMEOUT_S)
            self._out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            self._in, _ = server.accept()
        self._in.settimeout(TIMEOUT_S)

    def exchange(self, source: memoryview, into: memoryview) -> None:
        """Send all of one and fill the other, at the same time."""
        sending = threading.Thread(target=self._out.sendall, args=(source,))
        sending.start()
        filled = 0
        while filled < len(into):
            received = self._in.recv_into(into[filled:])
            if not received:
                raise SystemExit("the stream ended")
            filled += received
        sending.join()


class Row(NamedTuple):
    """What one rank measured of one go: monotonic times, processor seconds, share lost."""

    began_s: float
    ended_s: float
    busy_s: float
    lost: float


class Exchanger:
    """One of two ranks, with a connection or an engine for each way."""

    def __init__(self, moved_bytes: int, ways: list[str]) -> None:
        import torch

        self._process = RankProcess.from_environment()
        self._engines = {
            way: self._engine(way)
            for way in ways
            if way in UBT or (way == TAR and not UBT.keys() & ways)
        }
        self._streams = Streams(self._process)
        self._numel = moved_bytes // 4 // IN_FLIGHT
        self._right = torch.arange(self._numel, dtype=torch.float32) % 251

    def _engine(self, way: str) -> Any:
        from torch._C._distributed_c10d import PrefixStore

        from latecomer.runtime.optireduce.engine import OptiReduceEngine
        from latecomer.runtime.optireduce.options import Options

        options = Options(
            warmup_steps=0,
            bound_s=30.0,
            resync_steps=0,
            hadamard="off",
            stop_loss=1.0,
            skip_loss=1.0,
            **UBT.get(way, {}),
        )
        store = PrefixStore(way, self._process.store)
        return OptiReduceEngine(store, self._process.rank, 2, options=options, timeout_s=TIMEOUT_S)

    def go(self, way: str, name: str) -> Row:
        """Move all bytes in one way; ``name`` is the same on both ranks, and no other go's."""
        rank = self._process.rank
        tensors = [self._right * (rank + 1) for _ in range(IN_FLIGHT)]
        received = self._empty() if way == TCP else []
        due_before, lost_before = self._due_and_lost(way)

        self._process.meet(name)
        began_s = time.monotonic()
        busy_before_s = time.process_time()
        if way == TCP:
            for tensor, into in zip(tensors, received, strict=True):
                self._streams.exchange(_bytes_of(tensor), _bytes_of(into))
        else:
            submit = self._submit(way)
            for operation in [submit(tensor, average=True) for tensor in tensors]:
                operation.wait()
        ended_s = time.monotonic()
        busy_s = time.process_time() - busy_before_s

        due, lost = self._due_and_lost(way)
        due -= due_before
        lost -= lost_before
        self._process.store.set(f"{name}/lost/{rank}", str(lost))
        lost_elsewhere = int(self._process.store.get(f"{name}/lost/{1 - rank}"))
        check(way, rank, self._right, received or tensors, lost + lost_elsewhere)
        return Row(began_s, ended_s, busy_s, lost / max(1, due))

    def _empty(self) -> list[Any]:
        import torch

        return [torch.empty(self._numel) for _ in range(IN_FLIGHT)]

    def _submit(self, way: str) -> Callable[..., Any]:
        """What starts an operation; its result, in place, is the mean of both ranks' tensors."""
        if way in UBT:
            return self._engines[way].submit
        any_engine = next(iter(self._engines.values()))
        return any_engine.reliable.submit  # the executor over TCP, which every engine has

    def _due_and_lost(self, way: str) -> tuple[int, int]:
        """Until now, over UBT."""
        if way not in UBT:
            return 0, 0
        totals = self._engines[way].ledger.totals
        return totals.get("due", 0), totals.get("lost", 0)

    def leave(self, rows: dict[str, list[Row]]) -> NoReturn:
        """Print what was measured, and end."""
        self._process.leave({"rows": rows})


def _bytes_of(tensor: Any) -> memoryview:
    return tensor.numpy().view("u1").data


def rank_side(moved_bytes: int, repeats: int, ways: list[str]) -> None:
    """One of two ranks; the first go in each way is not measured."""
    exchanger = Exchanger(moved_bytes, ways)
    rows: dict[str, list[Row]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way in ways:
            row = exchanger.go(way, f"{number}/{way}")
            if number:
                rows[way].append(row)
    exchanger.leave(rows)


def check(way: str, rank: int, right: Any, results: list[Any], lost: int) -> None:
    """Leave with an error where bytes are wrong.

    Args:
        lost: by both ranks; what an owner has lost is in the other's result, too.
    """
    for tensor in results:
        if way == TCP:
            is_right = bool((tensor == right * (2 - rank)).all())
        elif lost:
            is_right = bool(((tensor >= right * 0.999) & (tensor <= right * 2.001)).all())
        else:
            is_right = bool((tensor == right * 1.5).all())
        if not is_right:
            raise SystemExit(f"{way}: wrong bytes")


def measure(rate: float, options: argparse.Namespace) -> None:
    """Print a row for each way."""
    if rate:
        network = Network(hosts=2, rate_mbit=rate)
        ports = f"{rate:g} Mbit/s"
        moved = int(rate * 1e6 / 8 * options.seconds)
    else:
        network = None
        ports = "loopback"
        moved = LOOPBACK_BYTES

    goes = collect(network, moved, options)
    tcp_speed = 0.0
    for way in options.ways:
        speed, busy, lost = summary(goes[way], moved)
        if way == TCP:
            tcp_speed = speed
        print(
            f"| {ports} | {way} | {speed * 8e-6:.0f} | {speed / tcp_speed:.2f} "
            f"| {busy:.2f} | {lost:.2%} |",
            flush=True,
        )


Goes = list[tuple[Row, Row]]
"""Of one pair of ranks, in one way: the rows of both ranks for each go."""


def collect(
    network: Network | None, moved: int, options: argparse.Namespace
) -> dict[str, list[Goes]]:
    """By way, the goes of each pair of ranks."""
    argv = ["bench.optireduce.goodput", "--rank-side", str(moved)]
    argv += ["--repeats", str(options.repeats), "--ways"]
    # Several pairs at once have to be on the same way all the time: a job for each way.
    jobs = [options.ways] if options.pairs == 1 else [[way] for way in options.ways]

    goes: dict[str, list[Goes]] = {way: [] for way in options.ways}
    for ways in jobs:
        with ThreadPoolExecutor(options.pairs) as pool:
            running = [
                pool.submit(run, [*argv, *ways], 2, network, 300.0) for _ in range(options.pairs)
            ]
        for pair in running:
            first, second = pair.result()
            for way in ways:
                first_rows = [Row(*row) for row in first["rows"][way]]
                second_rows = [Row(*row) for row in second["rows"][way]]
                goes[way].append(list(zip(first_rows, second_rows, strict=True)))
    return goes


def summary(pairs_goes: list[Goes], moved: int) -> tuple[float, float, float]:
    """Bytes that arrived in a second, of all pairs together; CPU seconds per GB; share lost."""
    speed = 0.0
    busy = []
    lost = []
    for goes in pairs_goes:
        speeds = []
        for first, second in goes:
            arrived = moved * (1 - (first.lost + second.lost) / 2)
            began_s = min(first.began_s, second.began_s)
            ended_s = max(first.ended_s, second.ended_s)
            speeds.append(arrived / (ended_s - began_s))
            busy.append((first.busy_s + second.busy_s) / (2 * moved / 1e9))
            lost += [first.lost, second.lost]
        speed += statistics.median(speeds)
    return speed, statistics.median(busy), statistics.mean(lost)


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
