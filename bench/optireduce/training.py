"""Training to an accuracy on a network with a tail or with loss: OptiReduce beside Gloo's ring.

    python -m bench.optireduce.training [--short] [--tasks digits images] [--networks clean ...]
                                        [--hosts 4] [--rate 200] [--seeds 1] [--steps 40] [--cap 20]
    python -m bench.optireduce.training --loopback [--short] [--tasks digits images] [--seeds 3]
                                        [--first-seed 0] [--shares 0 0.01 0.05 0.1] [--steps 0]

On the lab: the same models, starts and batches with plain DDP over Gloo and with OptiReduce, in
turn; time of a step after the warm-up (rank 0's, with sync points and re-synchronizations) and
test accuracy after all steps (OptiReduce: after a last re-synchronization). The mean step says how
long a training takes. A run that has had ``--cap`` seconds stops: how many steps there were is in
the table, and it has no accuracy then.

With ``--loopback`` accuracy alone: four ranks on one machine, each throws away a share of the
datagrams that it receives. Gloo there is the lossless baseline. Each seed is a training with each
way: what differs between ways is taken seed by seed. Without ``--steps`` trainings run until
accuracy rises no more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.lab import Network
from bench.optireduce.models import TASKS
from bench.optireduce.places import run
from bench.optireduce.tails import DEFAULT, NETWORKS
from bench.optireduce.trainer import GLOO, MARKS, OURS, Job, Run

WARM_UP = 8
SHARES = (0.0, 0.01, 0.05, 0.1)
LAB_STEPS = 40
LAB_CAP_S = 20.0
LOOPBACK_DATAGRAM_BYTES = 8192
"""Loopback carries them whole, and a datagram costs much the same whatever its size."""
SHORT = ("clean", "higher tail")

Found = dict[Run, dict[str, Any]]


def train(job: Job, hosts: int, network: Network | None) -> Found:
    """What came of each run: rank 0's word, but the losses and right answers of all ranks."""
    told = [one["runs"] for one in run(job.argv(), hosts, network, limit_s=900.0)]
    return {each: _together(ranks) for each, *ranks in zip(job.runs, *told, strict=True)}


def _together(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tested = sum(one["tested"] for one in ranks)
    rights = zip(*(one["right"] for one in ranks), strict=True)
    return {
        **ranks[0],
        "lost": statistics.mean(one.get("lost", 0.0) for one in ranks),
        "skipped": sum(one.get("skipped", 0) for one in ranks),
        "accuracy": [sum(right) / tested for right in rights],
    }


def spread(values: Sequence[float]) -> str:
    """Standard deviation of a sample, for a table."""
    return f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""


def percents(shares: Sequence[float]) -> str:
    """Mean and spread over seeds."""
    values = [100 * share for share in shares]
    return f"{statistics.mean(values):.2f}{spread(values)}"


def loopback(options: argparse.Namespace) -> None:
    """Accuracy against loss."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(f"{options.hosts} ranks, seeds {seeds[0]} to {seeds[-1]}; per cent and points, mean and "
          "standard deviation over the seeds\n")  # fmt: skip
    print("| task | way | thrown away | at 1/4 of the steps | at 3/4 | accuracy "
          "| against Gloo, by seed | mean | lost | drift | skipped |")  # fmt: skip
    print("|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    ways = [(GLOO, 0.0), *((OURS, share) for share in options.shares)]
    for name in options.tasks:
        runs = [Run(way, share, seed) for seed in seeds for way, share in ways]
        job = Job(name, runs, options.steps, WARM_UP, 1e9, LOOPBACK_DATAGRAM_BYTES)
        found = train(job, options.hosts, None)
        for way, share in ways:
            mine = [found[Run(way, share, seed)] for seed in seeds]
            exact = [found[Run(GLOO, 0.0, seed)] for seed in seeds]
            pairs = zip(mine, exact, strict=True)
            points = [100 * (a["accuracy"][-1] - b["accuracy"][-1]) for a, b in pairs]
            against = f"{' '.join(f'{p:+.2f}' for p in points)} | {statistics.mean(points):+.2f}"
            marks = [percents(mark) for mark in zip(*(a["accuracy"] for a in mine), strict=True)]
            print(
                f"| {name} | {way} | {share:.0%} | {' | '.join(marks)} "
                f"| {'- | -' if way == GLOO else against + spread(points)} "
                f"| {statistics.mean(a['lost'] for a in mine):.2%} "
                f"| {max(a.get('drift', 0.0) for a in mine):.1e} "
                f"| {sum(a['skipped'] for a in mine)} |",
                flush=True,
            )


def on_lab(options: argparse.Namespace) -> None:
    """Time and accuracy."""
    steps = options.steps or LAB_STEPS
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    place = f"{options.hosts} hosts, {options.rate:g} Mbit/s, reno, {options.seeds} x {steps} steps"
    most_s = len(options.tasks) * len(options.networks) * (2 * len(seeds) * options.cap + 8)
    print(f"{place} (at most about {most_s:.0f} s)\n")
    print("| task | network | way | steps | step mean, ms | p50 | p99 | Gloo's mean over this "
          "| accuracy | lost | t_B |")  # fmt: skip
    print("|:--|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for task in options.tasks:
        for name in options.networks:
            network = Network(
                hosts=options.hosts, rate_mbit=options.rate, everywhere=NETWORKS[name]
            )
            runs = [Run(way, 0.0, seed) for seed in seeds for way in (GLOO, OURS)]
            job = Job(task, runs, steps, WARM_UP, options.cap)
            found = train(job, options.hosts, network)
            native = 0.0
            for way in (GLOO, OURS):
                mine = [found[Run(way, 0.0, seed)] for seed in seeds]
                times = sorted(one for each in mine for one in each["seconds"])
                mean = statistics.mean(times)
                p50 = statistics.median(times)
                p99 = times[int(0.99 * (len(times) - 1))]
                native = mean if way == GLOO else native
                whole = all(len(each["accuracy"]) == MARKS for each in mine)
                accuracy = percents([each["accuracy"][-1] for each in mine]) if whole else "-"
                extra = "- | -"
                if way == OURS:
                    lost = statistics.mean(each["lost"] for each in mine)
                    extra = f"{lost:.2%} | {max(each['bound_s'] for each in mine) * 1e3:.0f}"
                print(
                    f"| {task} | {name} | {way} | {len(times)} | {mean * 1e3:.0f} "
                    f"| {p50 * 1e3:.0f} | {p99 * 1e3:.0f} | {native / mean:.2f} | {accuracy} "
                    f"| {extra} |",
                    flush=True,
                )


def main() -> None:
    """Either table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--networks", nargs="+", choices=DEFAULT, default=DEFAULT)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s")
    parser.add_argument("--seeds", type=int, help="trainings; 1 on the lab, 3 on loopback")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--steps", type=int, default=0, help="0: 40 on the lab, else by the task")
    parser.add_argument("--cap", type=float, default=LAB_CAP_S, help="seconds of steps, per run")
    parser.add_argument("--short", action="store_true", help="digits, 40 steps, few networks")
    parser.add_argument("--loopback", action="store_true", help="accuracy alone, without a lab")
    options = parser.parse_args()
    options.seeds = options.seeds or (3 if options.loopback else 1)
    if options.short:
        options.steps = 40
        options.tasks = ["digits"]
        options.seeds = 1
        options.networks = [name for name in options.networks if name in SHORT]
    began_s = time.monotonic()
    (loopback if options.loopback else on_lab)(options)
    print(f"\n{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
