"""A training job with late ranks on an emulated network: time per step of every mode.

    python -m bench.auto [--rate 200] [--scenarios persistent random tails none]
                         [--modes static predict eager auto] [--steps 4]

8 hosts of ``bench.lab`` train a network of 10.5 million parameters, each way on a model of its own:
plain DDP (Gloo), and the modes static, predict, eager and auto. In turn, one step each (A B C D E
A B C ...), after warm-up steps without an update in which the modes that learn do so. A step is
timed from all ranks' common start to the last rank's end of the optimizer step; a late rank sleeps
before its backward. At the end of each scenario all ways must have the same bits on all ranks, and
plain DDP's parameters up to rounding; else there are no figures.

    persistent   rank 5 is late by 1.2 S*beta in every step; static names it, here and below
    random       another rank in every step, drawn at random
    tails        every rank by a delay of its own, Pareto with shape 1.2 from 20 ms, at most 2 s
    none         no rank is late on purpose
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import statistics
import sys
import time
from datetime import timedelta
from typing import Any

from bench.lab import Lab, Network

HOSTS = 8
LATE = 5
PARAMETERS_BYTES = 42e6
DELAY = 1.2
"""Of S*beta: long enough for the others to do their part."""
BUCKET_MB = 8
WIDTH = 1870
"""Three square layers of it are 10.5 million parameters."""
BATCH = 4
WARM_UP = 3
LEARNING = ("predict", "eager", "auto")
TIMEOUT_S = 120.0
CLOSE = 1e-4
PLAIN = "plain DDP"
MODES = ("static", "predict", "eager", "auto")
SCENARIOS = ("persistent", "random", "tails", "none")


def delays(scenario: str, step: int, mbit: float) -> list[float]:
    """Seconds by which each rank sleeps in one step; the same for all ways."""
    dice = random.Random(f"{scenario} {step}")
    if scenario == "tails":
        return [min(2.0, 0.02 * dice.paretovariate(1.2)) for _ in range(HOSTS)]

    of_ranks = [0.0] * HOSTS
    delay_s = DELAY * PARAMETERS_BYTES * 8e-6 / mbit
    if scenario == "persistent":
        of_ranks[LATE] = delay_s
    elif scenario == "random":
        of_ranks[dice.randrange(HOSTS)] = delay_s
    return of_ranks


class Job:
    """One rank's models, one for each way, and how a step of each is timed."""

    def __init__(self, modes: list[str]) -> None:
        import torch
        import torch.distributed as dist

        from latecomer import runtime

        self._began_s = time.monotonic()
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
        self.rank = dist.get_rank()
        self.models = {PLAIN: _model()}
        self.attached: dict[str, Any] = {}
        self.profile: Any = None
        for mode in modes:
            self.models[mode] = _model()
            self.attached[mode] = runtime.ddp.attach(
                self.models[mode],
                mode=mode,  # type: ignore[arg-type]
                late=LATE if mode == "static" else None,
                profile=self.profile,
                timeout_s=TIMEOUT_S,
            )
            self.profile = self.attached[mode].reducer.profile
            self.progress(f"{mode} attached")
        self.optimizers = {
            way: torch.optim.SGD(model.parameters(), lr=1e-3) for way, model in self.models.items()
        }

    def progress(self, text: str) -> None:
        """Say how far the job is, on rank 0."""
        if self.rank == 0:
            print(f"{time.monotonic() - self._began_s:.1f} s: {text}", flush=True)

    def step(self, way: str, delay_s: float, inputs: Any, *, update: bool) -> float:
        """Seconds from the common start to the last rank's end."""
        import torch.distributed as dist

        dist.barrier()
        began = time.monotonic()
        self.optimizers[way].zero_grad()
        loss = self.models[way](inputs).square().mean()
        time.sleep(delay_s)
        loss.backward()
        if update:
            self.optimizers[way].step()

        times: list[Any] = [None] * HOSTS
        dist.all_gather_object(times, (began, time.monotonic()))
        first_began = min(began for began, _ in times)
        last_ended = max(ended for _, ended in times)
        return last_ended - first_began

    def close(self) -> None:
        """Release all connections."""
        import torch.distributed as dist

        for attachment in self.attached.values():
            attachment.close()
        dist.destroy_process_group()


def rank_side(mbit: float, scenarios: list[str], modes: list[str], steps: int) -> None:
    """One rank of the job; rank 0 prints a JSON line for each scenario."""
    import torch

    job = Job(modes)
    for way in job.models:  # DDP arranges its buckets after the first step
        job.step(way, 0.0, torch.ones(BATCH, WIDTH), update=False)
    job.progress("all ways have done a step")
    for scenario in scenarios:
        row = run(job, scenario, mbit, steps)
        if job.rank == 0:
            print(json.dumps(row), flush=True)
        if row["wrong"]:
            raise SystemExit(f"wrong: {row['wrong']}")
    job.close()


def run(job: Job, scenario: str, mbit: float, steps: int) -> dict[str, Any]:
    """Warm up, then time ``steps`` steps of all ways in turn."""
    import torch

    from latecomer import runtime

    for number in range(-WARM_UP, 0):
        for way in [mode for mode in LEARNING if mode in job.attached]:
            delay_s = delays(scenario, number, mbit)[job.rank]
            job.step(way, delay_s, torch.ones(BATCH, WIDTH), update=False)
    job.progress(f"{scenario}: warmed up")

    seconds: dict[str, list[float]] = {way: [] for way in job.models}
    watches = {mode: runtime.watch(attachment.reducer) for mode, attachment in job.attached.items()}
    with contextlib.ExitStack() as stack:
        for watch in watches.values():
            stack.enter_context(watch)
        for number in range(steps):
            dice = torch.Generator().manual_seed(number)
            inputs = torch.randn(BATCH, WIDTH, generator=dice) + job.rank
            for way, of_way in seconds.items():
                delay_s = delays(scenario, number, mbit)[job.rank]
                of_way.append(job.step(way, delay_s, inputs, update=True))
            of_step = ", ".join(f"{way} {of_way[-1]:.2f} s" for way, of_way in seconds.items())
            job.progress(f"{scenario}: {of_step}")

    return {
        "scenario": scenario,
        "wrong": _wrong(job.models),
        "seconds": seconds,
        "modes": {mode: _about(watch) for mode, watch in watches.items()},
        "profile": repr(job.profile),
    }


def _model() -> Any:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
    )
    # all ranks have the same seed: no need to send 42 MB around
    return DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB, init_sync=False)


def _wrong(models: dict[str, Any]) -> list[str]:
    """Ways whose parameters differ between ranks, or from plain DDP's."""
    import torch
    import torch.distributed as dist

    def flat(model: Any) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    wrong: list[str] = []
    of_plain = flat(models[PLAIN])
    for way, model in models.items():
        parameters = flat(model)
        digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
        is_close = (parameters - of_plain).abs().max().item() < CLOSE
        of_ranks: list[Any] = [None] * HOSTS
        dist.all_gather_object(of_ranks, (digest, is_close))
        digests = {digest for digest, _ in of_ranks}
        if len(digests) > 1 or not all(is_close for _, is_close in of_ranks):
            wrong.append(way)
    return wrong


def _about(watch: Any) -> dict[str, Any]:
    """How operations ran and why, how long decisions took, messages."""
    summary = watch.summary()
    return {
        "ways": summary.ways,
        "reasons": summary.reasons,
        "latency_s": [summary.latency_p50_s, summary.latency_p99_s],
        "completion_s": summary.completion_s,
        "messages": summary.messages,
    }


class _Tables:
    """Prints what rank 0 reports."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def line(self, rank: int, text: str) -> None:
        """A scenario's row, or a line for stderr."""
        if not text.startswith('{"scenario"'):
            print(f"[{rank}] {text}", file=sys.stderr, flush=True)
            return
        row = json.loads(text)
        if row["wrong"]:
            print(f"{row['scenario']}: wrong results: {row['wrong']}", flush=True)
            return

        self.rows.append(row)
        of_plain = row["seconds"][PLAIN]
        cells = []
        for seconds in row["seconds"].values():
            median = statistics.median(seconds)
            ratios = [own / plain for own, plain in zip(seconds, of_plain, strict=True)]
            noise = (max(seconds) - min(seconds)) / median / 2
            cells.append(f"{median:.2f} s ±{noise:.0%} ({statistics.median(ratios):.2f})")
        print(f"| {row['scenario']} | {' | '.join(cells)} |", flush=True)

    def modes(self) -> None:
        """How operations ran in each mode, and what deciding took."""
        print("\n| scenario | mode | operations ran | because | decided p50, p99 | messages each |")
        print("|:--|:--|:--|:--|--:|--:|")
        for row in self.rows:
            for mode, summary in row["modes"].items():
                ways = ", ".join(f"{count} {way}" for way, count in summary["ways"].items())
                why = ", ".join(f"{count} {text}" for text, count in summary["reasons"].items())
                p50_s, p99_s = summary["latency_s"]
                print(
                    f"| {row['scenario']} | {mode} | {ways} | {why} "
                    f"| {p50_s * 1e3:.1f}, {p99_s * 1e3:.1f} ms | {summary['messages']:.1f} |"
                )
        if self.rows:
            print(f"\nprofile: {self.rows[0]['profile']}")


def measure(mbit: float, scenarios: list[str], modes: list[str], steps: int) -> None:
    """Build a lab, run the job, print Markdown tables."""
    argv = [sys.executable, "-m", "bench.auto", "--rank-side", "--steps", str(steps)]
    argv += ["--rate", f"{mbit:g}", "--scenarios", *scenarios, "--modes", *modes]
    with Lab(Network(hosts=HOSTS, rate_mbit=mbit)) as lab:
        description = lab.describe()
        print(
            f"\n{HOSTS} hosts, {mbit:g} Mbit/s, {description['congestion']}, "
            f"idle RTT {description['rtt_ms']:.2f} ms, {os.cpu_count()} cores; seconds per step, "
            f"median of {steps} (time over plain DDP's)\n"
        )
        print(f"| late | {' | '.join((PLAIN, *modes))} |")
        print(f"|:--|{'--:|' * (1 + len(modes))}", flush=True)
        tables = _Tables()
        lab.run(argv, timeout_s=1200.0, on_line=tables.line).check()
        tables.modes()


def main() -> None:
    """Run the chosen scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rank-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side:
        rank_side(options.rate, options.scenarios, options.modes, options.steps)
        return
    measure(options.rate, options.scenarios, options.modes, options.steps)


if __name__ == "__main__":
    main()
