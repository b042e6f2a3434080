"""Training to an accuracy on a network with a tail or with loss: OptiReduce beside Gloo's ring.

    python -m bench.optireduce.training [--short] [--hosts 4] [--rate 200] [--steps 120]
    python -m bench.optireduce.training --loopback [--hosts 4] [--steps 120]

A network of about 300,000 parameters learns handwritten digits (scikit-learn's) on hosts of the
lab, the same batches and the same start in both ways; after all steps the test accuracy of rank 0
is taken (OptiReduce: after a last re-synchronization). Times are of the steps after the warm-up.
With ``--loopback`` there is no lab: every rank throws away a share of the datagrams that it
receives, and only accuracy, loss and drift are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

from bench.lab import Lab, Limits, Network, Tail

TIMEOUT_S = 60.0
NETWORKS = {
    "clean": Limits(),
    "tail: 5 % by 40 ms": Limits(tails=(Tail(0.05, 0.04),)),
    "1 % lost": Limits(loss=0.01),
    "5 % lost": Limits(loss=0.05),
    "10 % lost": Limits(loss=0.1),
}
SHORT = ("clean", "5 % lost")
BATCH = 32
WARM_UP = 20


def lose(share: float, seed: int) -> None:
    """From now on this process throws away so large a share of the datagrams it receives."""
    import numpy as np

    from runtime.optireduce.ubt.sockets import Channel

    dice, receive = np.random.default_rng(seed), Channel.receive

    def lossy(channel: Channel) -> Any:
        rows = receive(channel)
        return None if rows is None else rows[dice.random(len(rows)) >= share]

    Channel.receive = lossy  # type: ignore[method-assign]


def rank_side(way: str, steps: int, lost: float) -> None:
    """One rank; rank 0 prints a JSON line."""
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from runtime import ddp
    from runtime.optireduce.options import Options

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    if lost:
        lose(lost, rank)
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attachment = None
    if way == "OptiReduce":
        options = Options(warmup_steps=WARM_UP, stop_loss=1.0)
        attachment = ddp.attach(
            model, algorithm="optireduce", options=options, optimizer=optimizer, timeout_s=TIMEOUT_S
        )
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).flatten(1)
    classes = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    train, test = order[:1437], order[1437:]
    times = []
    for step in range(steps):
        dice = torch.Generator().manual_seed(1000 * step + rank)
        mine = train[torch.randint(0, len(train), (BATCH,), generator=dice)]
        began = time.monotonic()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[mine]), classes[mine]).backward()
        optimizer.step()
        times.append(time.monotonic() - began)
    told = {"seconds": times[WARM_UP:], "loss": 0.0, "drift": 0.0}
    if attachment is not None:
        ledger = attachment.ledger
        told["drift"] = attachment.resync()
        told["loss"] = ledger.totals["lost"] / max(1, ledger.totals["due"])
    with torch.no_grad():
        right = (model.module(images[test]).argmax(1) == classes[test]).float().mean().item()
    if rank == 0:
        print(json.dumps({**told, "accuracy": right}), flush=True)
    dist.barrier()
    time.sleep(2.0 if rank == 0 else 0.0)  # it holds the store
    os._exit(0)  # a teardown over a lossy network is no part of the measurement


def loopback(ranks: int, steps: int) -> None:
    """Accuracy at several losses, the first way being Gloo."""
    print(f"{ranks} ranks, {steps} steps, datagrams thrown away on arrival\n")
    print("| way | thrown away | accuracy | lost | drift |\n|:--|--:|--:|--:|--:|", flush=True)
    for number, (way, share) in enumerate(
        [("Gloo", 0.0), *(("OptiReduce", share) for share in (0.0, 0.01, 0.05, 0.1))]
    ):
        argv = [sys.executable, "-m", "bench.optireduce.training", "--rank-side", way]
        argv += ["--steps", str(steps), "--lose", str(share)]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29_600 + number)}
        processes = [
            subprocess.Popen(
                argv,
                env={**os.environ, **place, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            said, _ = processes[0].communicate(timeout=300)
        finally:
            for process in processes:
                process.kill()
        found = json.loads(said.splitlines()[-1])
        print(
            f"| {way} | {share:.0%} | {found['accuracy']:.3f} | {found['loss']:.2%} "
            f"| {found['drift']:.1e} |",
            flush=True,
        )


def main() -> None:
    """All networks, both ways each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--short", action="store_true", help="two networks, 60 steps")
    parser.add_argument("--loopback", action="store_true", help="accuracy alone, without a lab")
    parser.add_argument("--rank-side", help=argparse.SUPPRESS)
    parser.add_argument("--lose", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    steps = min(60, options.steps) if options.short else options.steps
    if options.rank_side:
        rank_side(options.rank_side, steps, options.lose)
        return
    if options.loopback:
        loopback(options.hosts, steps)
        return
    print(f"{options.hosts} hosts, {options.rate:g} Mbit/s, {steps} steps\n")
    print("| network | way | step p50, ms | p99 | all, s | accuracy | lost | drift |")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in SHORT if options.short else NETWORKS:
        for way in ("Gloo", "OptiReduce"):
            network = Network(
                hosts=options.hosts, rate_mbit=options.rate, everywhere=NETWORKS[name]
            )
            argv = [sys.executable, "-m", "bench.optireduce.training", "--rank-side", way]
            with Lab(network) as lab:
                job = lab.run([*argv, "--steps", str(steps)], timeout_s=300.0).check()
            lines = [line for line in job.ranks[0].output.splitlines() if line.startswith("{")]
            found = json.loads(lines[-1])
            times = sorted(found["seconds"])
            p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
            print(
                f"| {name} | {way} | {statistics.median(times) * 1e3:.0f} | {p99 * 1e3:.0f} "
                f"| {sum(times):.1f} | {found['accuracy']:.3f} | {found['loss']:.2%} "
                f"| {found['drift']:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
