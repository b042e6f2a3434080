"""Against the published StragglAR generator: ``python -m bench.published CHECKOUT [--to 128]``.

CHECKOUT is a clone of ``github.com/arjundevraj/stragglar`` (it needs numpy and networkx; none of it
is part of this project). Rounds of both for every even n it takes, each of ours proved by the
verifier; then the time to generate n = 256 and a few others, its own printing included as it comes,
A B A B in one run; then predicted times, from 1 MiB to 4 GiB.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.cost import (
    Link,
    best_chunks,
    completion_cost_of,
    doubling_cost,
    rhd_cost,
    ring_cost,
    straggler_cost,
)
from latecomer.synth.straggler.generate import search
from latecomer.synth.units import format_bytes, format_seconds

TIMED = (64, 128, 256)
LINK = Link(3e-6, 450e9)


class GeneratorFailed(Exception):
    """The published generator ended without a schedule."""


def published(checkout: Path, n: int, limit_s: float = 900) -> tuple[int, float]:
    """Its rounds for n, and the seconds that its command took."""
    kind = "pow2" if n & (n - 1) == 0 else "nonpow2"
    script = checkout / "stragglar" / f"synthesizer_{kind}.py"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, script, str(n)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    seconds = time.monotonic() - start
    match = re.search(r"Actual number of rounds (\d+)", done.stdout)
    if done.returncode or match is None:
        raise GeneratorFailed(f"{script.name} {n}: {done.stderr.strip().splitlines()[-1:]}")
    return int(match[1]), seconds


def ours(n: int) -> float:
    """The seconds that ``synth generate`` takes: started, searched, proved and written."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "schedule.json.zst"
        start = time.monotonic()
        subprocess.run(
            [Path(sys.executable).parent / "synth", "generate", "--n", str(n), "-q", "-o", file],
            check=True,
        )
        return time.monotonic() - start


def rounds(checkout: Path, to: int) -> None:
    print("| n | bound | ours | published | |\n|--:|--:|--:|--:|:--|")

    ties = []
    worse = []
    failed = []
    for n in range(4, to + 1, 2):
        generated = search(n)
        try:
            their_rounds = published(checkout, n)[0]
        except GeneratorFailed as error:
            failed.append(str(error))
            continue

        our_rounds = generated.report.completion_rounds
        if our_rounds == their_rounds:
            ties.append(n)
            continue
        if our_rounds > their_rounds:
            worse.append(n)
        bound = generated.report.lower_bound
        fewer = their_rounds - our_rounds
        print(f"| {n} | {bound} | {our_rounds} | {their_rounds} | {fewer:+} |")

    print(f"\nEqual, and at the bound: n = {', '.join(map(str, ties))}. Ours has more: {worse}.")
    print(f"The published generator fails: {failed}")


def seconds(checkout: Path, repeats: int) -> None:
    print("\n| n | published | ours, proved and written | ratio |\n|--:|--:|--:|--:|")
    for n in TIMED:
        theirs_s = []
        ours_s = []
        for _ in range(repeats):
            _, published_s = published(checkout, n)
            theirs_s.append(published_s)
            ours_s.append(ours(n))
        theirs_median_s = statistics.median(theirs_s)
        ours_median_s = statistics.median(ours_s)
        ratio = theirs_median_s / ours_median_s
        print(f"| {n} | {theirs_median_s:.2f} s | {ours_median_s:.2f} s | {ratio:.1f} |")


def predicted(checkout: Path, n: int) -> None:
    theirs = completion_cost_of(published(checkout, n)[0], n - 1)
    print(
        f"\n| S, n = {n} | ring | halving-doubling | doubling | published, k = n - 1 | ours | k |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for size in (4**i * 2**20 for i in range(7)):
        k = best_chunks(n, size, LINK)
        costs = (ring_cost(n), rhd_cost(n), doubling_cost(n), theirs, straggler_cost(n, k))
        times = " | ".join(format_seconds(cost.over(size, LINK)) for cost in costs)
        print(f"| {format_bytes(size)} | {times} | {k} |")


def main(
    checkout: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    to: Annotated[int, typer.Option(help="The largest n of the table of rounds.")] = 128,
    repeats: Annotated[int, typer.Option(help="Timed runs of each.")] = 3,
) -> None:
    rounds(checkout, to)
    seconds(checkout, repeats)
    for n in (8, 20, 48):
        predicted(checkout, n)


if __name__ == "__main__":
    typer.run(main)
