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
from bench.optireduce.tails import DEFAULT, NETWORKS, emulated
from bench.optireduce.trainer import GLOO, MARKS, OURS, Job, Run

WARM_UP = 8
SHARES = (0.0, 0.01, 0.05, 0.1)
LAB_STEPS = 40
LAB_CAP_S = 20.0
LOOPBACK_DATAGRAM_BYTES = 8192
"""Loopback carries them whole, and a datagram costs much the same whatever its size."""
SHORT = ("clean", "higher tail")

Result = dict[str, Any]
"""What came of a run: what ``bench.optireduce.trainer.train`` returns, and its accuracy."""


def train(job: Job, hosts: int, network: Network | None) -> dict[Run, Result]:
    """What came of each run: rank 0's word, but the losses and right answers of all ranks."""
    outputs = run(job.argv(), hosts, network, limit_s=900.0)
    results = {}
    for number, training in enumerate(job.runs):
        results[training] = _together([output["runs"][number] for output in outputs])
    return results


def _together(of_ranks: Sequence[Result]) -> Result:
    tested = sum(result["tested"] for result in of_ranks)
    right_by_mark = zip(*(result["right"] for result in of_ranks), strict=True)
    return {
        **of_ranks[0],
        "lost": statistics.mean(result.get("lost", 0.0) for result in of_ranks),
        "skipped": sum(result.get("skipped", 0) for result in of_ranks),
        "accuracy": [sum(right) / tested for right in right_by_mark],
    }


def spread(values: Sequence[float]) -> str:
    """Standard deviation of a sample, for a table."""
    if len(values) < 2:
        return ""
    return f" ± {statistics.stdev(values):.2f}"


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
        job = Job(
            task=name,
            runs=runs,
            steps=options.steps,
            warm_up=WARM_UP,
            cap_s=1e9,
            datagram_bytes=LOOPBACK_DATAGRAM_BYTES,
        )

        results = train(job, options.hosts, None)
        lossless = [results[Run(GLOO, 0.0, seed)] for seed in seeds]
        for way, share in ways:
            by_seed = [results[Run(way, share, seed)] for seed in seeds]
            print(f"| {name} | {way} | {share:.0%} {loopback_cells(way, by_seed, lossless)} |",
                  flush=True)  # fmt: skip


def loopback_cells(way: str, by_seed: list[Result], lossless: list[Result]) -> str:
    """A row of the table of accuracy, after its first three columns."""
    by_mark = zip(*(result["accuracy"] for result in by_seed), strict=True)
    accuracies = " | ".join(percents(shares) for shares in by_mark)

    points = []  # of per cent, against Gloo's training of the same seed
    for result, baseline in zip(by_seed, lossless, strict=True):
        points.append(100 * (result["accuracy"][-1] - baseline["accuracy"][-1]))
    against_gloo = "- | -"
    if way != GLOO:
        each_seed = " ".join(f"{difference:+.2f}" for difference in points)
        against_gloo = f"{each_seed} | {statistics.mean(points):+.2f}{spread(points)}"

    lost = statistics.mean(result["lost"] for result in by_seed)
    drift = max(result.get("drift", 0.0) for result in by_seed)
    skipped = sum(result["skipped"] for result in by_seed)
    return f"| {accuracies} | {against_gloo} | {lost:.2%} | {drift:.1e} | {skipped}"


def on_lab(options: argparse.Namespace) -> None:
    """Time and accuracy."""
    steps = options.steps or LAB_STEPS
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    trainings = f"{options.seeds} x {steps} steps"

    most_s = len(options.tasks) * len(options.networks) * (2 * len(seeds) * options.cap + 8)
    print(f"{options.hosts} hosts, {options.rate:g} Mbit/s, reno, {trainings} "
          f"(at most about {most_s:.0f} s)\n")  # fmt: skip
    print("| task | network | way | steps | step mean, ms | p50 | p99 | Gloo's mean over this "
          "| accuracy | lost | t_B |")  # fmt: skip
    print("|:--|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)

    for task in options.tasks:
        for name in options.networks:
            network = Network(
                hosts=options.hosts, rate_mbit=options.rate, everywhere=NETWORKS[name]
            )
            runs = [Run(way, 0.0, seed) for seed in seeds for way in (GLOO, OURS)]
            job = Job(task=task, runs=runs, steps=steps, warm_up=WARM_UP, cap_s=options.cap)
            results = train(job, options.hosts, network)

            of_gloo = [results[Run(GLOO, 0.0, seed)] for seed in seeds]
            gloo_mean_s = statistics.mean(step_seconds(of_gloo))
            for way in (GLOO, OURS):
                by_seed = [results[Run(way, 0.0, seed)] for seed in seeds]
                print(f"| {task} | {name} | {way} {lab_cells(way, by_seed, gloo_mean_s)} |",
                      flush=True)  # fmt: skip


def step_seconds(by_seed: list[Result]) -> list[float]:
    """The times of the steps of all trainings, in ascending order."""
    times: list[float] = []
    for result in by_seed:
        times += result["seconds"]
    return sorted(times)


def lab_cells(way: str, by_seed: list[Result], gloo_mean_s: float) -> str:
    """A row of the table of times and accuracy, after its first three columns."""
    times = step_seconds(by_seed)
    mean_s = statistics.mean(times)
    p50_s = statistics.median(times)
    p99_s = times[int(0.99 * (len(times) - 1))]

    accuracy = "-"
    if all(len(result["accuracy"]) == MARKS for result in by_seed):  # none has stopped
        accuracy = percents([result["accuracy"][-1] for result in by_seed])

    of_ubt = "- | -"
    if way == OURS:
        lost = statistics.mean(result["lost"] for result in by_seed)
        bound_s = max(result["bound_s"] for result in by_seed)
        of_ubt = f"{lost:.2%} | {bound_s * 1e3:.0f}"
    return (
        f"| {len(times)} | {mean_s * 1e3:.0f} | {p50_s * 1e3:.0f} | {p99_s * 1e3:.0f} "
        f"| {gloo_mean_s / mean_s:.2f} | {accuracy} | {of_ubt}"
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

    if not options.seeds:
        options.seeds = 3 if options.loopback else 1
    if options.short:
        options.steps = 40
        options.tasks = ["digits"]
        options.seeds = 1
        options.networks = [name for name in options.networks if name in SHORT]

    began_s = time.monotonic()
    if options.loopback:
        loopback(options)
    else:
        options.networks = emulated(options.networks)
        on_lab(options)
    print(f"\n{time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
