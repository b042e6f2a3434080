"""Many seeds, and all mutants, of the shipped kernel's PTX.

    python -m tests.runtime.device.ptx --seeds 10000 [--first 0] [--seconds 60]
    python -m tests.runtime.device.ptx --seed 123     one seed, and what it runs
    python -m tests.runtime.device.ptx --mutants      all mutants of two builds

Exit code 1: something does not hold, or a mutant got away.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.runtime.device.ptx.builds import shipped_ptx
from tests.runtime.device.ptx.harmless import MUTATED, judge
from tests.runtime.device.ptx.mutants import mutants
from tests.runtime.device.ptx.plan import Tally, drawn, execute
from tests.runtime.device.ptx.regions import Wrong

STRETCH = 20  # seeds that a process runs at a time
TELL_S = 60.0  # between two lines of progress


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.runtime.device.ptx", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seconds", type=float, help="begin no more seeds after so long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--mutants", action="store_true", help="all mutants, in place of seeds")
    return parser.parse_args()


def _stretch(seeds: range) -> tuple[Tally, list[str]]:
    """What a process does."""
    total = Tally()
    failed = []
    for seed in seeds:
        try:
            total.add(execute(drawn(seed)))
        except Wrong as error:
            failed.append(f"seed {seed}: {error}")
    return total, failed


def _stretches(options: argparse.Namespace) -> Iterator[range]:
    end = options.first + options.seeds
    began_s = time.monotonic()
    for low in range(options.first, end, STRETCH):
        if options.seconds is None or time.monotonic() < began_s + options.seconds:
            yield range(low, min(low + STRETCH, end))


def _hunt(options: argparse.Namespace) -> int:
    """All seeds: how many failed."""
    began_s = told_s = time.monotonic()
    total = Tally()
    failed = 0
    seeds = 0
    with ProcessPoolExecutor(options.processes) as pool:
        batch = 4 * options.processes
        stretches = _stretches(options)
        while taken := [stretch for _, stretch in zip(range(batch), stretches, strict=False)]:
            for stretch, (tally, texts) in zip(taken, pool.map(_stretch, taken), strict=True):
                total.add(tally)
                failed += len(texts)
                seeds += len(stretch)
                for text in texts:
                    print(text, flush=True)
            if time.monotonic() > told_s + TELL_S:
                told_s = time.monotonic()
                print(f"{seeds:,} seeds, {failed} failed", file=sys.stderr, flush=True)
    print(f"{seeds:,} seeds in {time.monotonic() - began_s:.0f} s; {failed} failed")
    print(
        f"{total.runs:,} interleavings of {total.steps:,} steps, {total.old:,} loads of old "
        f"messages, {total.rows:,} rows compared; {total.stopped:,} with a stop, in which "
        f"{total.given_up:,} blocks gave up"
    )
    return failed


def _judged(which: tuple[tuple[int, str, bool], int]) -> tuple[str, str]:
    build, number = which
    mutant = mutants(shipped_ptx(*build))[number]
    return f"{build}: {mutant.name}", judge(mutant, *build)


def _judge_all(options: argparse.Namespace) -> int:
    """All mutants: how many got away."""
    began_s = time.monotonic()
    all_of_them = [
        (build, number) for build in MUTATED for number in range(len(mutants(shipped_ptx(*build))))
    ]
    verdicts = {"caught": 0, "harmless": 0, "": 0}
    with ProcessPoolExecutor(options.processes) as pool:
        for name, verdict in pool.map(_judged, all_of_them, chunksize=16):
            kind = next(k for k in verdicts if verdict.startswith(k))
            verdicts[kind] += 1
            if kind != "caught":
                print(f"{name}: {verdict or 'GOT AWAY'}", flush=True)
    print(
        f"{len(all_of_them):,} mutants in {time.monotonic() - began_s:.0f} s: "
        f"{verdicts['caught']:,} caught, {verdicts['harmless']:,} harmless, {verdicts['']} got away"
    )
    return verdicts[""]


def main() -> int:
    """Run, and print what does not hold."""
    options = _options()
    if options.seed is not None:
        plan = drawn(options.seed)
        print(plan)
        print(execute(plan))
        return 0
    return 1 if (_judge_all(options) if options.mutants else _hunt(options)) else 0


if __name__ == "__main__":
    sys.exit(main())
