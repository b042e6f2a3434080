"""What a firewall that drops UDP does to each mode: three hosts of the lab, TCP between them only.

    python -m bench.blocked_udp [--modes auto optireduce] [--open]

In each mode a DDP job runs some steps, in which rank 1 is late. What goes on is run again, and
rank 1 dies: is that noticed, and who is named? ``--open``: without the firewall, to compare.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass

from bench.lab import Job, Lab, Network
from bench.lab.firewall import EVERY_TCP_PORT

HOSTS = 3
RATE_MBIT = 200.0
SIDE = 700  # of the square layer whose gradients, 2 MB, are summed
TIMEOUT_S = 12.0
JOB_S = 100.0  # a job that has not ended by then hangs
LATE_S = 0.3
STEPS = 8
DIES_AT = 4
MODES = ("native", "schedule", "static", "predict", "eager", "auto", "optireduce")
ENDED = "ended"
DIED = 9  # the return code of the rank that dies


@dataclass(frozen=True)
class Outcome:
    """How a job went: as its ranks told it, in seconds from the call of ``attach``."""

    attached_s: float
    ended_s: float
    text: str

    def __str__(self) -> str:
        if self.text == ENDED:
            return f"all {STEPS} steps"
        return f"{self.text} (after {self.ended_s:.0f} s)"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    parser.add_argument("--open", action="store_true", help="without the firewall")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        mode, dies = arguments.rank
        run_rank(mode, dies=dies == "dies")
        return

    with Lab(Network(HOSTS, RATE_MBIT)) as lab:
        if not arguments.open:
            lab.admit([EVERY_TCP_PORT])
        print("| mode | attached after | the job | where rank 1 dies |\n|:--|--:|:--|:--|")
        for mode in arguments.modes:
            whole = run_job(lab, mode, dies=False)
            with_death = run_job(lab, mode, dies=True) if whole.text == ENDED else "-"
            print(f"| {mode} | {whole.attached_s:.1f} s | {whole} | {with_death} |", flush=True)


def run_job(lab: Lab, mode: str, *, dies: bool) -> Outcome:
    """Run it, and see what rank 0 tells."""
    command = [sys.executable, "-m", "bench.blocked_udp", "--rank", mode]
    command.append("dies" if dies else "lives")
    job = lab.run(command, timeout_s=JOB_S, keep_going=True)
    return outcome(job)


def outcome(job: Job) -> Outcome:
    """From what rank 0 printed."""
    attached_s = float("nan")
    for line in job.ranks[0].output.splitlines():
        word, _, rest = line.partition(" ")
        if word == "ATTACHED":
            attached_s = float(rest)
        elif word in ("ENDED", "FAILED"):
            seconds, _, text = rest.partition(" ")
            return Outcome(attached_s, float(seconds), text or ENDED)
    how = "hangs" if job.timed_out else f"ended with {job.ranks[0].returncode}"
    return Outcome(attached_s, JOB_S, how)


def run_rank(mode: str, *, dies: bool) -> None:
    """One rank of the job."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(SIDE, SIDE))
    began_s = time.monotonic()

    def tell(word: str, text: str = "") -> None:
        print(f"{word} {time.monotonic() - began_s:.2f} {text}".rstrip(), flush=True)

    try:
        attachment = attach(model, mode)
        tell("ATTACHED")
        for step in range(STEPS):
            if rank == 1:
                time.sleep(LATE_S)
                if dies and step == DIES_AT:
                    os._exit(DIED)
            model(torch.ones(2, SIDE)).square().mean().backward()
        attachment.close()
        tell("ENDED")
    except Exception as error:
        first_line, *_ = str(error).splitlines()
        _, _, failure = first_line.rpartition("callback: ")
        tell("FAILED", failure)
    os._exit(0)


def attach(model, mode: str):
    """Attach to a model what the table's row is about."""
    from latecomer import ddp
    from latecomer.synth import generate

    if mode == "schedule":
        return ddp.attach(model, generate(HOSTS), timeout_s=TIMEOUT_S)
    if mode == "optireduce":
        return ddp.attach(model, algorithm="optireduce", timeout_s=TIMEOUT_S)
    late = {"late": 1} if mode == "static" else {}
    return ddp.attach(model, mode=mode, timeout_s=TIMEOUT_S, **late)


if __name__ == "__main__":
    main()
