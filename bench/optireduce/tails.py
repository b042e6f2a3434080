"""Time of an all-reduce where the network has a tail or loses frames, on the lab.

    python -m bench.optireduce.tails [--short] [--hosts 4] [--rate 200] [--mib 1] [--ops 100]

On each network three ways run in turn, in blocks of ten operations back to back (A B C A B C):
Gloo's all_reduce (TCP, reno), our TAR over TCP, TAR over UBT after its warm-up. A time is that of
one rank, from its entry to its result. Results over TCP are compared with the exact mean, those
over UBT must lie between the ranks' contributions; its loss is what its ledger says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from datetime import timedelta

from bench.lab import Lab, Limits, Network, Tail

MIB = 2**20
TIMEOUT_S = 60.0
BLOCK = 10
BUDGET_S = 8.0
NETWORKS = {
    "clean": Limits(),
    "tail: 1 % by 20 ms": Limits(tails=(Tail(0.01, 0.02),)),
    "tail: 5 % by 40 ms": Limits(tails=(Tail(0.05, 0.04),)),
    "0.1 % lost": Limits(loss=0.001),
    "1 % lost": Limits(loss=0.01),
    "5 % lost": Limits(loss=0.05),
}
SHORT = ("clean", "tail: 5 % by 40 ms", "1 % lost")


def rank_side(mib: float, ops: int) -> None:
    """One rank of the job; every rank prints its times."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    from runtime.optireduce.engine import Engine
    from runtime.optireduce.options import Options

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank, size = dist.get_rank(), dist.get_world_size()
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port + 1, size, rank == 0, timedelta(seconds=TIMEOUT_S))
    options = Options(hadamard="off", resync_steps=0, stop_loss=1.0, warmup_steps=10)
    engine = Engine(PrefixStore("e", store), rank, size, options=options, timeout_s=TIMEOUT_S)
    number = torch.arange(int(mib * MIB / 4), dtype=torch.float32) % 251
    bad: dict[str, int] = {}

    def once(way: str) -> float:
        tensor = number * (rank + 1)
        began = time.monotonic()
        if way == "Gloo":
            dist.all_reduce(tensor)
            tensor /= size
        elif way == "TAR over TCP":
            engine.reliable.average(tensor)
        else:
            engine.submit(tensor, average=True).wait()
        took = time.monotonic() - began
        if way == "TAR over UBT":  # a loss at an owner is in no other rank's ledger
            wrong = bool((tensor < number * 0.999).any() or (tensor > number * size * 1.001).any())
        else:
            wrong = not torch.allclose(tensor, number * ((size + 1) / 2), rtol=1e-5)
        bad[way] = bad.get(way, 0) + wrong
        return took

    for _ in range(options.warmup_steps):
        engine.submit(number * (rank + 1), average=True).wait()
    ways = ["Gloo", "TAR over TCP", "TAR over UBT"]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:
        once(way)
    for block in range(ops // BLOCK):
        for way in ways:
            key = f"{block}/{way}"
            if rank == 0:
                spent = sum(times[way])
                store.set(key, str(BLOCK if spent < BUDGET_S or block < 2 else 0))
            for _ in range(int(store.get(key))):
                times[way].append(once(way))
    ledger = engine.ledger
    ends = {kind: ledger.totals[f"end {kind}"] for kind in ("complete", "early", "timeout")}
    share = ledger.totals["lost"] / max(1, ledger.totals["due"])
    told = {"times": times, "bad": bad, "ends": ends, "loss": share}
    print(json.dumps({**told, "bound": engine.council.bound_s}), flush=True)
    print(ledger.table(20), dict(ledger.dropped), file=sys.stderr)
    store.set(f"over/{rank}", "")
    store.wait([f"over/{r}" for r in range(size)], timedelta(seconds=TIMEOUT_S))
    time.sleep(2.0 if rank == 0 else 0.0)  # it holds the store
    os._exit(0)  # a teardown over a lossy network is no part of the measurement


def measure(name: str, options: argparse.Namespace) -> None:
    """One network: build the lab, run the job, print a row for each way."""
    network = Network(hosts=options.hosts, rate_mbit=options.rate, everywhere=NETWORKS[name])
    argv = [sys.executable, "-m", "bench.optireduce.tails", "--rank-side"]
    argv += ["--mib", f"{options.mib:g}", "--ops", str(options.ops)]
    with Lab(network) as lab:
        job = lab.run(argv, timeout_s=400.0).check()
    found = [json.loads(line) for rank in job.ranks for line in rank.output.splitlines()
             if line.startswith('{"times"')]  # fmt: skip
    if bad := [one["bad"] for one in found if any(one["bad"].values())]:
        raise SystemExit(f"{name}: wrong results: {bad}")
    for way in found[0]["times"]:
        times = sorted(t for one in found for t in one["times"][way])
        p50, p99 = statistics.median(times), times[min(len(times) - 1, int(0.99 * len(times)))]
        cells = f"{p50 * 1e3:.0f} | {p99 * 1e3:.0f} | {times[-1] * 1e3:.0f} | {p99 / p50:.2f}"
        extra = "- | - | -"
        if way == "TAR over UBT":
            loss = statistics.mean(one["loss"] for one in found)
            ends = {kind: sum(one["ends"][kind] for one in found) for kind in found[0]["ends"]}
            bound = f"{found[0]['bound'] * 1e3:.0f}"
            extra = f"{loss:.2%} | {bound} | {'/'.join(map(str, ends.values()))}"
        print(f"| {name} | {way} | {len(times)} | {cells} | {extra} |", flush=True)


def main() -> None:
    """All networks, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--mib", type=float, default=1.0)
    parser.add_argument("--ops", type=int, default=100)
    parser.add_argument("--short", action="store_true", help="three networks, 20 operations")
    parser.add_argument("--rank-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side:
        rank_side(options.mib, options.ops)
        return
    options.ops = min(options.ops, 20) if options.short else options.ops
    print(f"{options.hosts} hosts, {options.rate:g} Mbit/s, {options.mib:g} MiB, milliseconds\n")
    print(
        "| network | way | times | p50 | p99 | max | p99/p50 | lost | t_B | whole/early/time-out |"
    )
    print("|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in SHORT if options.short else NETWORKS:
        measure(name, options)


if __name__ == "__main__":
    main()
