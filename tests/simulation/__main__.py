"""Swarms of simulated executions: the code that ships, faults, and what must hold.

    python -m tests.simulation --seeds 1000 [--first 0] [--seconds 60] [--kind auto]
    python -m tests.simulation --seed 123         one execution, and what it tells
    python -m tests.simulation --plan '{...}'     one that was printed

A seed for which something does not hold is shrunk, and printed with the line that replays it. Exit
code 1: there was one.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from typing import Any

from tests.simulation.campaign import ELASTIC, Campaign, allreduces, elastic, shrunk
from tests.simulation.plan import KINDS
from tests.simulation.swarm import be_quiet, swarm

TELL_S = 60.0  # between two lines of progress
KIND_HELP = f"only of this kind; {ELASTIC} is in no other swarm"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seconds", type=float, help="begin no more seeds after so long")
    parser.add_argument("--kind", choices=(*KINDS, ELASTIC), help=KIND_HELP)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--plan", help="this one alone, as JSON")
    parser.add_argument("--show", type=int, default=5, help="so many failing seeds are shrunk")
    return parser.parse_args()


def main() -> int:
    """Run, and print what does not hold."""
    options = _options()
    campaign = _campaign(options.kind)
    if options.plan is not None or options.seed is not None:
        plan = campaign.read(options.plan) if options.plan else campaign.draw(options.seed)
        return _show_one(campaign, plan)

    began_s = time.monotonic()
    end_s = began_s + options.seconds if options.seconds else float("inf")
    seeds = range(options.first, options.first + options.seeds)
    failing: list[Any] = []  # plans
    executions = 0
    steps = 0
    told_s = began_s
    for stretch in swarm(campaign, seeds, options.processes, end_s):
        executions += stretch.executions
        steps += stretch.steps
        for plan, text in stretch.failing:
            failing.append(plan)
            print(f"seed {plan.seed}: {text}", flush=True)
        now_s = time.monotonic()
        if now_s > told_s + TELL_S:
            told_s = now_s
            rate = executions / (now_s - began_s)
            print(
                f"{executions:,} of {len(seeds):,} executions, {rate:.1f} a second, "
                f"{len(failing)} failed",
                file=sys.stderr,
                flush=True,
            )

    seconds = time.monotonic() - began_s
    print(
        f"{executions} executions, {steps} steps in {seconds:.0f} s "
        f"({steps / seconds:,.0f} steps/s); {len(failing)} failed"
    )
    be_quiet()
    for plan in sorted(failing, key=lambda plan: plan.seed)[: options.show]:
        smallest = shrunk(campaign, plan)
        print(f"\nseed {plan.seed}, shrunk: {campaign.execute(smallest).summary}")
        kind = f"--kind {options.kind} " if options.kind else ""
        print(f"  python -m tests.simulation {kind}--plan '{smallest.as_json()}'", flush=True)
    return bool(failing)


def _campaign(kind: str | None) -> Campaign:
    if kind is None:
        return allreduces()
    return elastic() if kind == ELASTIC else allreduces((kind,))  # type: ignore[arg-type]


def _show_one(campaign: Campaign, plan: Any) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(plan.as_json())
    execution = campaign.execute(plan)
    print(execution.describe())
    print(f"trace {execution.trace}, {execution.steps} steps, {execution.elapsed_s:.3f} s")
    print("\n".join(execution.problems) or "all holds")
    return bool(execution.problems)


if __name__ == "__main__":
    sys.exit(main())
