"""How ``verify`` scales: seconds and memory for straggler schedules of up to 1024 ranks.

One rank is late, its n - 1 helpers own one chunk each. Without it they reduce-scatter around a
ring; with it every owner exchanges its chunk with the late rank, one per round, and the helpers
pass the results on in a rotation. Both phases have about n² transfers. Every file is verified in a
process of its own: ``python -m bench.verify_scaling [n ...]`` prints a markdown table.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from latecomer.verify import Phase, Schedule, Transfer, write
from latecomer.verify.core.schedule import Round

SIZES = (16, 64, 256, 512, 1024)


def straggler(n: int) -> Schedule:
    """Ring ReduceScatter without rank n-1; exchanges with it; rotation AllGather of the helpers."""
    helpers = n - 1
    late = n - 1

    def ring_round(t: int) -> Round:
        return tuple(
            Transfer(i, (i + 1) % helpers, (i - t - 1) % helpers, "reduce") for i in range(helpers)
        )

    def exchange_round(owner: int) -> Round:
        return Transfer(late, owner, owner, "reduce"), Transfer(owner, late, owner, "reduce")

    def rotation_round(step: int) -> Round:
        return tuple(Transfer(i, (i + step) % helpers, i, "copy") for i in range(helpers))

    reduce_scatter = tuple(ring_round(t) for t in range(helpers - 1))
    exchange = tuple(exchange_round(owner) for owner in range(helpers))
    rotation = tuple(rotation_round(step) for step in range(1, helpers))
    return Schedule(
        ranks=n,
        chunks=helpers,
        late=(late,),
        phases=(
            Phase("reduce_scatter", (late,), reduce_scatter),
            Phase("completion", (), exchange + rotation),
        ),
    )


def measure(path: Path) -> tuple[float, float, int]:
    """Wall seconds, peak MiB and exit code of ``verify -q path``."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "latecomer.verify", "-q", str(path)])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    return seconds, usage.ru_maxrss / 1024, process.returncode


def main(sizes: tuple[int, ...]) -> None:
    """Print the table for schedules of ``sizes`` ranks."""
    print("| ranks | transfers | of the completion | file MiB | verify s | peak MiB | growth |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    before: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            schedule = straggler(n)
            path = Path(folder) / f"straggler-{n}.json"
            write(schedule, path)
            completion = sum(map(len, schedule.phases[1].rounds))
            transfers = completion + sum(map(len, schedule.phases[0].rounds))
            del schedule

            seconds, mib, code = measure(path)
            if code:
                sys.exit(f"verify ended with exit code {code} at n = {n}")

            growth = ""
            if before is not None:
                n_before, seconds_before = before
                exponent = math.log(seconds / seconds_before, n / n_before)
                growth = f"n^{exponent:.2f}"

            size = path.stat().st_size / 2**20
            print(
                f"| {n} | {transfers:,} | {completion:,} | {size:.1f} | {seconds:.2f} "
                f"| {mib:.0f} | {growth} |",
                flush=True,
            )
            before = (n, seconds)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
