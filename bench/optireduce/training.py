"""Training to an accuracy on a network with a tail or with loss: OptiReduce beside Gloo's ring.

    python -m bench.optireduce.training [--short] [--tasks digits images] [--networks clean ...]
                                        [--hosts 4] [--rate 200] [--steps 60] [--cap 20]
    python -m bench.optireduce.training --loopback [--short] [--tasks digits images]

On the lab: the same model, start and batches with plain DDP over Gloo and with OptiReduce; time of
a step after the warm-up (rank 0's, councils and re-synchronizations among them) and test accuracy
after all steps (OptiReduce: after a last re-synchronization). A way that has had ``--cap`` seconds
stops: how many steps it made is in the table, and it has no accuracy then.

With ``--loopback`` accuracy alone: four ranks on one machine, each throws away a share of the
datagrams that it receives. Gloo there is the lossless baseline. The bound is set by hand: loopback
is so much faster by TCP that one measured over it is too short.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from bench.lab import Network
from bench.optireduce.models import TASKS
from bench.optireduce.places import TIMEOUT_S, Place, run
from bench.optireduce.tails import NETWORKS

GLOO, OURS = "Gloo", "OptiReduce"
BATCH = 32
WARM_UP = 8
SHARES = (0.0, 0.01, 0.05, 0.1)
LOOPBACK_BOUND_S = 3.0
SHORT = ("clean", "higher tail")
ASK_EVERY = 5
"""Steps between two looks at whether the time is up."""


def lose(share: float, seed: int) -> None:
    """From now on this process throws away so large a share of the datagrams it receives."""
    import numpy as np

    from runtime.optireduce.ubt.sockets import Channel

    dice, receive = np.random.default_rng(seed), Channel.receive

    def lossy(channel: Channel) -> Any:
        rows = receive(channel)
        return None if rows is None else rows[dice.random(len(rows)) >= share]

    Channel.receive = lossy  # type: ignore[method-assign]


def rank_side(options: argparse.Namespace) -> None:
    """One rank; every rank prints what it found."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from runtime import ddp
    from runtime.optireduce.options import Options

    place = Place.find()
    if options.lose:
        lose(options.lose, place.rank)
    task = TASKS[options.tasks[0]]()
    model = DistributedDataParallel(task.model, bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)
    attachment = None
    if options.rank_side == OURS:
        chosen = Options(warmup_steps=WARM_UP, bound_s=options.bound)
        attachment = ddp.attach(
            model, algorithm="optireduce", options=chosen, optimizer=optimizer, timeout_s=TIMEOUT_S
        )
    inputs, classes = task.train
    times: list[float] = []
    for step in range(options.steps):
        if step >= WARM_UP and step % ASK_EVERY == 0:
            if place.rank == 0:
                place.store.set(f"go/{step}", str(int(sum(times[WARM_UP:]) < options.cap)))
            if not int(place.store.get(f"go/{step}")):
                break
        dice = torch.Generator().manual_seed(1000 * step + place.rank)
        mine = torch.randint(0, len(inputs), (BATCH,), generator=dice)
        began = time.monotonic()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[mine]), classes[mine]).backward()
        optimizer.step()
        times.append(time.monotonic() - began)
    told: dict[str, Any] = {"seconds": times[WARM_UP:], "lost": 0.0, "drift": 0.0, "skipped": 0}
    if attachment is not None:
        totals = attachment.ledger.totals
        if len(times) == options.steps:
            told["drift"] = attachment.resync()
        told |= {"lost": totals["lost"] / max(1, totals["due"]), "skipped": totals["skipped"]}
        told["bound"] = attachment.engine.council.bound_s
    with torch.no_grad():
        right = (model.module(task.test[0]).argmax(1) == task.test[1]).float().mean().item()
    told["accuracy"] = right if len(times) == options.steps else None
    place.leave(told)


def train(
    options: argparse.Namespace, way: str, task: str, network: Network | None, lost: float = 0.0
) -> dict[str, Any]:
    """What came of it: rank 0's word, but the mean loss of all ranks."""
    argv = ["bench.optireduce.training", "--rank-side", way, "--tasks", task]
    argv += ["--steps", str(options.steps), "--cap", str(options.cap), "--lose", str(lost)]
    argv += ["--bound", str(0.0 if network else LOOPBACK_BOUND_S)]
    found = run(argv, options.hosts, network, limit_s=600.0)
    return {**found[0], "lost": statistics.mean(one["lost"] for one in found)}


def loopback(options: argparse.Namespace) -> None:
    """Accuracy against loss."""
    print(f"{options.hosts} ranks, {options.steps} steps, datagrams thrown away on arrival\n")
    print("| task | way | thrown away | accuracy | against Gloo | lost | drift | skipped |")
    print("|:--|:--|--:|--:|--:|--:|--:|--:|", flush=True)
    options.cap = 1e9
    for task in options.tasks:
        exact = 0.0
        for way, share in [(GLOO, 0.0), *((OURS, share) for share in SHARES)]:
            found = train(options, way, task, None, share)
            exact = found["accuracy"] if way == GLOO else exact
            against = "-" if way == GLOO else f"{100 * (found['accuracy'] - exact):+.1f} points"
            print(
                f"| {task} | {way} | {share:.0%} | {found['accuracy']:.3f} | {against} "
                f"| {found['lost']:.2%} | {found['drift']:.1e} | {found['skipped']} |",
                flush=True,
            )


def on_lab(options: argparse.Namespace) -> None:
    """Time and accuracy."""
    place = f"{options.hosts} hosts, {options.rate:g} Mbit/s, reno, {options.steps} steps"
    most_s = len(options.tasks) * len(options.networks) * 2 * (options.cap + 8)
    print(f"{place} (at most about {most_s:.0f} s)\n")
    print("| task | network | way | steps | step p50, ms | p99 | Gloo's p50 over this | accuracy "
          "| lost | t_B |")  # fmt: skip
    print("|:--|:--|:--|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for task in options.tasks:
        for name in options.networks:
            native = 0.0
            for way in (GLOO, OURS):
                network = Network(
                    hosts=options.hosts, rate_mbit=options.rate, everywhere=NETWORKS[name]
                )
                found = train(options, way, task, network)
                times = sorted(found["seconds"])
                p50, p99 = statistics.median(times), times[int(0.99 * (len(times) - 1))]
                native = p50 if way == GLOO else native
                accuracy = "-" if found["accuracy"] is None else f"{found['accuracy']:.3f}"
                extra = "- | -"
                if way == OURS:
                    extra = f"{found['lost']:.2%} | {found['bound'] * 1e3:.0f}"
                print(
                    f"| {task} | {name} | {way} | {len(times)} | {p50 * 1e3:.0f} "
                    f"| {p99 * 1e3:.0f} | {native / p50:.2f} | {accuracy} | {extra} |",
                    flush=True,
                )


def main() -> None:
    """Either table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cap", type=float, default=20.0, help="seconds of steps, per way")
    parser.add_argument("--short", action="store_true", help="digits, 40 steps, two networks")
    parser.add_argument("--loopback", action="store_true", help="accuracy alone, without a lab")
    parser.add_argument("--rank-side", choices=(GLOO, OURS), help=argparse.SUPPRESS)
    parser.add_argument("--lose", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--bound", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.short:
        options.steps, options.tasks = 40, ["digits"]
        options.networks = [name for name in options.networks if name in SHORT]
    if options.rank_side:
        rank_side(options)
    elif options.loopback:
        loopback(options)
    else:
        on_lab(options)


if __name__ == "__main__":
    main()
