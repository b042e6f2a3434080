"""Time of an all-reduce where the network has a tail or loses frames, on the lab.

    python -m bench.optireduce.tails [--short] [--networks clean ...] [--hosts 4] [--rate 100]
                                     [--mib 0.5] [--ops 500] [--cap 10]
    python -m bench.optireduce.tails --networks "paused rank" "cross traffic" --rate 200 --mib 4
    python -m bench.optireduce.tails --calibrate

On each network four ways run in turn, in blocks of five operations back to back (A B C D A B ...;
one by one where an operation takes more than half a second):

    Gloo ring      all_reduce of torch's Gloo (TCP, reno)
    Gloo TAR       transpose over the same library: all_to_all, mean, all_gather
    TAR over TCP   our executor of verified schedules
    TAR over UBT   after a warm-up of 20 operations

An operation's time is from when the last rank has entered it to when the last rank has its result;
all hosts have one clock. UBT runs ``--ops`` operations, each other way as many, or fewer where it
has had ``--cap`` seconds: how many is in the table. Results over TCP must be the exact mean and
those over UBT lie between the ranks' contributions, else there are no figures; what UBT lost its
ledger says.

Three networks run only when they are named. Two disturb whole flows: rank 1 is stopped now and
then, or host 0 sends bursts to host 1 (``bench.optireduce.disturbance``). "no tail" is the control
of the tails: frames pass through the process that delays them, and none is late.

A tail delays a share of the frames, each drawn on its own (seeded). ``--calibrate`` shows what
several of them do to Gloo's ring; the two in the table were chosen by it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.lab import LabUnavailable, Limits, Network, Tail
from bench.lab.mechanisms import choose, probe
from bench.lab.sandbox import Sandbox
from bench.optireduce.disturbance import beside
from bench.optireduce.places import TIMEOUT_S, RankProcess, run

MIB = 2**20
BLOCK = 5
GLOO = "Gloo ring"
GLOO_TAR = "Gloo TAR"
TCP = "TAR over TCP"
UBT = "TAR over UBT"
WAYS = (GLOO, GLOO_TAR, TCP, UBT)
NETWORKS = {
    # With the tails Gloo's ring has a p99 of about 1.5 and 3 times its p50 (``--calibrate``).
    "clean": Limits(),
    "lower tail": Limits(tails=(Tail(0.002, 0.05),)),
    "higher tail": Limits(tails=(Tail(0.01, 0.15),)),
    "0.1 % lost": Limits(loss=0.001),
    "1 % lost": Limits(loss=0.01),
    "5 % lost": Limits(loss=0.05),
    "10 % lost": Limits(loss=0.1),
    "no tail": Limits(tails=(Tail(0.01, 0.0),)),
    "paused rank": Limits(),
    "cross traffic": Limits(),
}
DISTURBED = {"paused rank": "pause", "cross traffic": "burst"}
DEFAULT = list(NETWORKS)[:7]
SHORT = ("clean", "higher tail", "1 % lost")
CANDIDATES = [(share, ms) for share in (0.0005, 0.002, 0.01) for ms in (50, 150)]
SLOW_S = 0.5
START_S = 8.0
"""Building the lab and starting the ranks, for the estimate."""


def ways_of(engine: Any, numel: int) -> dict[str, Callable[[Any], object]]:
    """By name, what averages a tensor over the ranks, in place."""
    import torch
    import torch.distributed as dist

    ranks = engine.size
    pieces = torch.empty(numel)

    def ring(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)
        tensor /= ranks

    def transpose(tensor: torch.Tensor) -> None:
        dist.all_to_all_single(pieces, tensor)
        dist.all_gather_into_tensor(tensor, pieces.view(ranks, -1).mean(0))

    return {
        GLOO: ring,
        GLOO_TAR: transpose,
        TCP: engine.reliable.average,
        UBT: lambda tensor: engine.submit(tensor, average=True).wait(),
    }


def disturbed(name: str, process: RankProcess) -> contextlib.AbstractContextManager[None]:
    """What disturbs this rank, or goes out from its host."""
    address = f"{process.rank}/address"
    process.store.set(address, os.environ.get("LATECOMER_ADDRESS", "127.0.0.1"))
    if DISTURBED.get(name) == "pause" and process.rank == 1:
        return beside("pause", str(os.getpid()), 1)
    if DISTURBED.get(name) == "burst" and process.rank == 0:
        return beside("burst", process.store.get("1/address").decode(), 1)
    return contextlib.nullcontext()


def rank_side(mib: float, ops: int, cap_s: float, ways: list[str], name: str) -> None:
    """One rank of the job; every rank prints its times."""
    process = RankProcess.from_environment()
    rank = Averager(process, mib, ways)
    rank.warm_up()
    with disturbed(name, process):
        rank.run_blocks(ops, cap_s)

    ledger = rank.engine.ledger
    result = {
        "times": rank.times,
        "wrong": rank.wrong,
        "ends": [ledger.totals[f"end {kind}"] for kind in ("complete", "early", "timeout")],
        "loss": ledger.totals["lost"] / max(1, ledger.totals["due"]),
        "bound": rank.engine.sync_point.bound_s,
    }
    if process.rank == 0:
        print(ledger.table(20), dict(ledger.dropped), file=sys.stderr)
    process.leave(result)


class Averager:
    """A rank that averages the same tensor with the others again and again.

    Attributes:
        times: by way, when each operation began and when this rank had its result.
        wrong: by way, how many results were wrong.
    """

    def __init__(self, process: RankProcess, mib: float, ways: list[str]) -> None:
        import torch
        from torch._C._distributed_c10d import PrefixStore

        from latecomer.runtime.optireduce.engine import OptiReduceEngine
        from latecomer.runtime.optireduce.options import Options

        self._process = process
        self._ranks = process.world_size
        self._ways = ways
        self._options = Options(hadamard="off", resync_steps=0, stop_loss=1.0, reliable_steps=1)
        self.engine = OptiReduceEngine(
            PrefixStore("engine", process.store),
            process.rank,
            self._ranks,
            options=self._options,
            timeout_s=TIMEOUT_S,
        )
        # As many elements on every rank: the transposes split them evenly.
        numel = int(mib * MIB / 4) // self._ranks * self._ranks
        self._numbers = torch.arange(numel, dtype=torch.float32) % 251
        self._average = ways_of(self.engine, numel)
        self.times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        self.wrong: dict[str, int] = dict.fromkeys(ways, 0)

    def warm_up(self) -> None:
        """The engine's own warm-up, then an operation in each way, which is not timed."""
        if UBT in self._ways:
            for _ in range(self._options.warmup_steps):
                self.engine.submit(self._contribution(), average=True).wait()
        for way in self._ways:
            self._once(way)
            self.times[way].clear()

    def run_blocks(self, ops: int, cap_s: float) -> None:
        """A block of each way in turn, until rank 0 says that none has to go on."""
        for block in itertools.count():
            operations = 0
            for way in self._ways:
                key = f"{block}/{way}"
                if self._process.rank == 0:
                    ways_cap_s = math.inf if way == UBT else cap_s
                    self._process.store.set(key, str(more(self.times[way], ops, ways_cap_s)))
                in_block = int(self._process.store.get(key))
                for _ in range(in_block):
                    self._once(way)
                operations += in_block
            if not operations:
                return

    def _contribution(self) -> Any:
        return self._numbers * (self._process.rank + 1)

    def _once(self, way: str) -> None:
        import torch

        tensor = self._contribution()
        began_s = time.monotonic()
        self._average[way](tensor)
        self.times[way].append((began_s, time.monotonic()))

        if way == UBT:  # a loss at an owner is in no other rank's ledger
            too_small = (tensor < self._numbers * 0.999).any()
            too_large = (tensor > self._numbers * self._ranks * 1.001).any()
            is_wrong = bool(too_small or too_large)
        else:
            mean = self._numbers * ((self._ranks + 1) / 2)
            is_wrong = not torch.allclose(tensor, mean, rtol=1e-5)
        self.wrong[way] += is_wrong


def more(times: list[tuple[float, float]], ops: int, cap_s: float) -> int:
    """How many operations of a way come next: a block, or one where it is slow, or none."""
    spent_s = sum(done - began for began, done in times)
    if spent_s >= cap_s:
        return 0
    is_slow = spent_s > SLOW_S * len(times)
    return min(ops - len(times), 1 if is_slow else BLOCK)


def emulated(names: Sequence[str]) -> list[str]:
    """Those of the networks that this machine can emulate; prints why not of the others."""
    with Sandbox() as sandbox:
        mechanisms = probe(sandbox)
    possible = []
    for name in names:
        try:
            choose(Network(hosts=2, rate_mbit=100.0, everywhere=NETWORKS[name]), mechanisms)
        except LabUnavailable as refused:
            print(f"left out: {name}: {refused}\n", flush=True)
        else:
            possible.append(name)
    return possible


def collect(
    limits: Limits, options: argparse.Namespace, ways: list[str], name: str = "clean"
) -> dict[str, Any]:
    """Run one network's job; per way its operations' seconds, and what UBT tells."""
    network = Network(
        hosts=options.hosts, rate_mbit=options.rate, everywhere=limits, seed=options.seed
    )
    argv = ["bench.optireduce.tails", "--rank-side", *ways, "--mib", f"{options.mib:g}"]
    argv += ["--ops", str(options.ops), "--cap", f"{options.cap:g}", "--networks", name]
    results = run(argv, options.hosts, network, limit_s=600.0)
    wrong = [result["wrong"] for result in results]
    if any(sum(counts.values()) for counts in wrong):
        raise SystemExit(f"wrong results: {wrong}")

    seconds = {}
    for way in ways:
        operations = zip(*(result["times"][way] for result in results), strict=True)
        seconds[way] = [operation_s(times) for times in operations]
    ends = zip(*(result["ends"] for result in results), strict=True)
    return {
        "seconds": seconds,
        "loss": statistics.mean(result["loss"] for result in results),
        "ends": [sum(of_ranks) for of_ranks in ends],
        "bound": results[0]["bound"],
    }


def operation_s(times: Sequence[tuple[float, float]]) -> float:
    """From the last rank's entry to the last rank's result."""
    last_entry_s = max(began_s for began_s, _ in times)
    last_result_s = max(done_s for _, done_s in times)
    return last_result_s - last_entry_s


def percentiles(seconds: list[float]) -> tuple[float, float, float]:
    """(p50, p99, longest) in ms."""
    times = sorted(seconds)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    return statistics.median(times) * 1e3, p99 * 1e3, times[-1] * 1e3


def measure(name: str, options: argparse.Namespace) -> None:
    """Print a row for each way."""
    collected = collect(NETWORKS[name], options, list(WAYS), name)
    for way, seconds in collected["seconds"].items():
        p50, p99, longest = percentiles(seconds)
        extra = "- | - | -"
        if way == UBT:
            ends = "/".join(map(str, collected["ends"]))
            extra = f"{collected['loss']:.2%} | {collected['bound'] * 1e3:.0f} | {ends}"
        print(
            f"| {name} | {way} | {len(seconds)} | {p50:.0f} | {p99:.0f} | {longest:.0f} "
            f"| {p99 / p50:.2f} | {extra} |",
            flush=True,
        )


def calibrate(options: argparse.Namespace) -> None:
    """What tails do to Gloo's ring."""
    print("| share of frames | later by, ms | operations | p50 | p99 | max | p99/p50 |")
    print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for share, ms in CANDIDATES:
        limits = Limits(tails=(Tail(share, ms / 1e3),))
        seconds = collect(limits, options, [GLOO])["seconds"][GLOO]
        p50, p99, longest = percentiles(seconds)
        cells = f"{len(seconds)} | {p50:.0f} | {p99:.0f} | {longest:.0f} | {p99 / p50:.2f}"
        print(f"| {share:.2%} | {ms} | {cells} |", flush=True)


def main() -> None:
    """All networks, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=DEFAULT)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=100.0, help="Mbit/s")
    parser.add_argument("--mib", type=float, default=0.5)
    parser.add_argument("--ops", type=int, default=500)
    parser.add_argument("--cap", type=float, default=10.0, help="seconds, per way over TCP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="three networks, 100 operations")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--rank-side", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.rank_side:
        rank_side(options.mib, options.ops, options.cap, options.rank_side, options.networks[0])
        return
    if options.short:
        options.ops = min(options.ops, 100)
        options.cap = min(options.cap, 5.0)
        options.networks = [name for name in options.networks if name in SHORT]

    options.networks = emulated(options.networks)
    setting = f"{options.hosts} hosts, {options.rate:g} Mbit/s, reno, {options.mib:g} MiB"
    ours_s = options.ops * SLOW_S / 5
    most_s = len(options.networks) * (3 * options.cap + ours_s + START_S)
    print(f"{setting}, seed {options.seed}; milliseconds (at most about {most_s:.0f} s)\n")
    if options.calibrate:
        calibrate(options)
        return
    print("| network | way | operations | p50 | p99 | max | p99/p50 | lost | t_B | ends |")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in options.networks:
        measure(name, options)


if __name__ == "__main__":
    main()
