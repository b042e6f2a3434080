"""One hash of all parameters: whoever is late, in every mode, on four ranks and on eight.

    python examples/same_bits.py [--quick] [--ranks 4 8] [--steps 200]
                                 [--picture FILE] [--json FILE]

A small network learns handwritten digits, again and again, in eight microbatches a step: in every
mode and by three schedules, with five patterns of lateness. With ``bits="same"`` all of these runs
must end with the same parameters, bit for bit, on whatever number of ranks; without it, in runs of
a quarter of the steps, they must not, or there would be nothing to see. Besides, a rank is stopped
for a second, and a loss has a spike that makes sums overflow. In the end the loss is compared with
that of plain DDP and of float64. Exit code 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from same_bits_job import (
    PATTERNS,
    STOPPED_S,
    Digits,
    Report,
    Run,
    in_float64,
    rank_side,
    ways,
)
from same_bits_picture import draw_losses
from same_bits_results import (
    Result,
    calm,
    faults,
    hashes,
    joined,
    spiked,
    without,
)

from latecomer.runtime.network.processes import RanksFailed, talk

QUICK_WAYS = ("native", "static")
DEADLINE_S = 3600.0
"""For all runs on one number of ranks; against hangs."""

Table = list[list[Run]]
"""Runs by row."""


def table_of(ranks: int, steps: int, *, quick: bool) -> Table:
    """All runs on one number of ranks; what goes the same way is together."""
    names = QUICK_WAYS if quick else tuple(ways(ranks))
    deciding, scheduled = ("static", "static") if quick else ("auto", "schedule, k = 8")
    spikes = [("native", "nobody"), (deciding, "random"), (scheduled, "one rank")]
    rows = [[Run(ranks, way, late, "same", steps) for late in PATTERNS] for way in names]
    rows += [[Run(ranks, way, late, "same", steps, has_spike=True)] for way, late in spikes]
    rows += [[Run(ranks, deciding, "nobody", "same", steps, is_stopped=True)]]
    rows += [[Run(ranks, way, late, "any", steps // 4) for late in PATTERNS] for way in names]
    rows += [[Run(ranks, "native", "nobody", "any", steps)]]  # plain DDP to compare with
    return sorted(rows, key=lambda row: (row[0].bits == "any", names.index(row[0].way)))


def show(table: Table, digits: Digits) -> list[Result]:
    """Run all of a table on the same processes, and print a row as its runs end."""
    results = results_of([run for row in table for run in row], digits)
    shown = []
    with contextlib.closing(results):
        for row in table:
            print(f"{_name(row)}", end="", flush=True)
            for result in (next(results) for _ in row):
                print(f"{result.digests[0][:8]:<13}", end="", flush=True)
                shown.append(result)
            again = sum(result.repeated for result in shown[-len(row) :])
            print(f"{again:>4}" if row[0].bits == "same" else "   -", flush=True)
    return shown


def _name(row: list[Run]) -> str:
    first = row[0]
    what = "a spike" if first.has_spike else "stopped" if first.is_stopped else ""
    late = first.pattern if len(row) == 1 else ""
    texts = (f'"{first.bits}"', f"{first.ranks} ranks", first.way, what, late)
    return f"{', '.join(text for text in texts if text):<56}"


def results_of(runs: list[Run], digits: Digits) -> Iterator[Result]:
    """Each run's result, in order, as soon as all ranks have reported."""
    ranks = runs[0].ranks
    reports: defaultdict[int, list[Report]] = defaultdict(list)
    said = talk(rank_side, ranks, digits, runs, timeout_s=60.0, deadline_s=DEADLINE_S)
    with contextlib.closing(said):
        for message in said:
            of_run = reports[message.number]
            of_run.append(message)
            if len(of_run) == ranks:
                yield joined(runs[message.number], reports.pop(message.number))


def compare(results: list[Result], digits: Digits, picture: Path | None) -> dict[str, object]:
    """Print how far losses and parameters are from those in float64; the same for --json."""
    same = calm(results)[0]
    plain = next(
        each
        for each in results
        if each.run.bits == "any" and each.run.steps == same.run.steps and each.run.way == "native"
    )
    curves = {'bits="same"': same, "plain DDP, float32": plain}
    parameters, exact = in_float64(digits, same.run.steps)
    print(f"\nloss in the end, float64: {np.mean(exact[-10:]):.6f}")
    compared: dict[str, object] = {"float64": exact}
    for name, result in curves.items():
        off = np.abs(np.array(result.losses) - np.array(exact))
        error = np.linalg.norm(result.parameters - parameters) / np.linalg.norm(parameters)
        print(
            f"  {name:<20} {np.mean(result.losses[-10:]):.6f}, never off by more than "
            f"{off.max():.1e}; parameters off by {error:.1e}"
        )
        compared[name] = {"most_off": float(off.max()), "parameters_off": float(error)}
    if picture is not None:
        draw_losses({name: each.losses for name, each in curves.items()}, exact, picture)
        print(f"picture of the losses: {picture}")
    return compared


def summary(results: list[Result]) -> None:
    """Print what there is to see."""
    stopped = [each for each in results if each.run.is_stopped]
    print(
        f'\nwith bits="same", {len(calm(results))} runs: {len(hashes(calm(results)))} hash, '
        f"{hashes(calm(results))[0]}\n"
        f"  a rank stopped for {STOPPED_S:g} s in {len(stopped)} of them: steps of "
        f"{', '.join(f'{each.longest_step_s:.2f} s' for each in stopped)}\n"
        f"  with a spike of the loss, {len(spiked(results))} runs: "
        f"{len(hashes(spiked(results)))} hash, {hashes(spiked(results))[0]}; "
        f"sums done again: {_range(each.repeated for each in spiked(results))}, "
        f"without the spike {_range(each.repeated for each in calm(results))}"
    )
    for ranks, of_ranks in without(results).items():
        print(f"without it, {len(of_ranks)} runs on {ranks} ranks: {len(hashes(of_ranks))} hashes")


def _range(numbers: Iterator[int]) -> str:
    distinct = sorted(set(numbers))
    return f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two modes, 20 steps, 4 and 5 ranks")
    parser.add_argument("--ranks", type=int, nargs="+", choices=range(4, 9))
    parser.add_argument("--steps", type=int, help="of each run (default 200)")
    parser.add_argument("--picture", type=Path, help="draw the losses here (.svg, .png)")
    parser.add_argument("--json", type=Path, help="write all results here")
    options = parser.parse_args()
    options.ranks = options.ranks or ([4, 5] if options.quick else [4, 8])
    options.steps = options.steps or (20 if options.quick else 200)
    return options


def main() -> int:
    from sklearn.datasets import load_digits

    options = parse()
    torch.set_num_threads(1)  # beside other work two wait for each other more than they compute
    # So that the server that forks the ranks imports their module, and torch, once for all.
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    images, classes = load_digits(return_X_y=True)
    digits = Digits((images / 16).astype(np.float32), classes)
    began_s = time.monotonic()
    print(f"{'':<56}{''.join(f'{late:<13}' for late in PATTERNS)}again")
    results = []
    for ranks in options.ranks:
        results += show(table_of(ranks, options.steps, quick=options.quick), digits)
    summary(results)
    compared = compare(results, digits, options.picture)

    wrong = faults(results)
    if options.json is not None:
        report = {
            "runs": [each.as_json() for each in results],
            "compared": compared,
            "faults": wrong,
        }
        options.json.write_text(json.dumps(report))
    print(f"{len(results)} runs in {time.monotonic() - began_s:.0f} s")
    for fault in wrong:
        print(f"WRONG: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the ranks end with this process
    try:
        sys.exit(main())
    except RanksFailed as failure:
        sys.exit(f"FAILED: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
