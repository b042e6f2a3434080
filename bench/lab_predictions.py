"""What ``latecomer whatif`` predicts, against the lab: steps of real traces replayed on its hosts.

    python -m bench.lab_predictions [--steps 12] [--size 8MiB] [--rate 200]

Of the three traces in examples/arrivals (of SE every fourth rank) the first steps are replayed,
each rank a host of ``bench.lab``: it sleeps as long as it came later, and sums one buffer over all,
by Gloo, by mode static, which is told of the rank that is last most often, and by mode auto; in
turn (A B C A B C), every result compared with the exact sum. Lateness is scaled from a buffer of
S*beta = 687 ms (2 GiB at 25 Gbit/s) to that of the lab, and cut where a rank comes earlier than
2.2 S*beta before the last: it would only wait.

A row has milliseconds from the last arrival to the last result, averages over the steps: Gloo as
predicted and as measured; then what is saved, as predicted (*now*, with schedules for these
arrivals, and the limit), and as measured. Predicted is for the same arrivals on this link: its idle
round trip, and what TCP can reach of its rate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from bench.lab import Lab, Network
from bench.lab_rank import NATIVE, TIMEOUT_S, LabRank
from bench.predictions import ARRIVALS, TRACES
from latecomer.runtime.simulation.arrivals import read
from latecomer.runtime.whatif.gains import Link
from latecomer.runtime.whatif.operations import Operation, Recording
from latecomer.runtime.whatif.report import Case, answer
from latecomer.synth.units import parse_bytes

FROM_S = 0.687  # S*beta of the job whose lateness is scaled
LONGEST = 2.2  # S*beta before the last rank
MOST_RANKS = 8
TCP_SHARE = 1448 / 1514
MODES = ("static", "auto")


def lateness_s(name: str, steps: int, port_s: float) -> list[list[float]]:
    """By step, each rank's lateness on the lab, where a port needs so long for the buffer."""
    trace = read(ARRIVALS / f"{name}.json")
    stride = max(1, trace.ranks // MOST_RANKS)
    scaled = []
    for step in trace.steps[:steps]:
        offsets_s = [each * port_s / FROM_S for each in step.offsets_s[::stride]]
        first_s = max(0.0, max(offsets_s) - LONGEST * port_s)
        scaled.append([max(0.0, each - first_s) for each in offsets_s])
    return scaled


def usually_last(steps: list[list[float]]) -> int:
    """The rank that is last most often."""
    return statistics.mode(step.index(max(step)) for step in steps)


class Rank(LabRank):
    """One rank, with the modes beside Gloo."""

    def __init__(self, folder: Path, rate_mbit: float, late: int) -> None:
        super().__init__(folder, rate_mbit)
        from torch._C._distributed_c10d import PrefixStore

        from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
        from latecomer.runtime.policy.options import Options

        options = {"static": Options("static", late=(late,)), "auto": Options("auto")}
        self.modes = {
            mode: AllReduceDispatcher(
                PrefixStore(mode, self.store),
                self.rank,
                self.ranks,
                options=options[mode],
                timeout_s=TIMEOUT_S,
            )
            for mode in MODES
        }

    def run(self, way: str, tensor: Any) -> None:
        """By Gloo, or in a mode."""
        if way == NATIVE:
            super().run(way, tensor)
        else:
            self.modes[way].submit(tensor).wait()

    def close(self) -> None:
        """Release all connections."""
        for dispatcher in self.modes.values():
            dispatcher.close()
        super().close()


def rank_side(options: argparse.Namespace) -> None:
    """One rank of a job; rank 0 prints a JSON line at the end."""
    nbytes = parse_bytes("--size", options.size)
    steps = lateness_s(options.trace, options.steps, nbytes * 8e-6 / options.rate)
    rank = Rank(options.rank_side, options.rate, usually_last(steps))
    seconds: dict[str, list[float]] = {way: [] for way in (NATIVE, *MODES)}
    for is_measured in (False, True):  # first mode auto learns
        for step in steps:
            for way, took_s in seconds.items():
                one_s = rank.from_last_arrival_s(partial(rank.run, way), nbytes, step[rank.rank])
                if is_measured:
                    took_s.append(one_s)
    if rank.rank == 0:
        print(json.dumps({"seconds": seconds}), flush=True)
    rank.close()


def measure(name: str, options: argparse.Namespace) -> None:
    """Build a lab, replay a trace on it, and print its row."""
    nbytes = parse_bytes("--size", options.size)
    steps = lateness_s(name, options.steps, nbytes * 8e-6 / options.rate)
    rows: list[dict[str, list[float]]] = []

    def line(rank: int, text: str) -> None:
        if text.startswith('{"seconds"'):
            rows.append(json.loads(text)["seconds"])
        else:
            print(f"[{rank}] {text}", file=sys.stderr, flush=True)

    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(Network(hosts=len(steps[0]), rate_mbit=options.rate)) as lab,
    ):
        argv = [sys.executable, "-m", "bench.lab_predictions", *sys.argv[1:]]
        argv += ["--trace", name, "--rank-side", folder]
        link = Link(
            latency_s=lab.describe()["rtt_ms"] / 1e3,
            bandwidth=options.rate * 1e6 / 8 * TCP_SHARE,
        )
        lab.run(argv, timeout_s=1800.0, on_line=line).check()

    recording = Recording(
        source=name,
        event="",
        operations=tuple(Operation(arrivals_s=tuple(step)) for step in steps),
        steps=len(steps),
        lasted_s=1.0,
    )
    (predicted,) = answer(recording, [Case(link=link, nbytes=nbytes)]).rows
    (seconds,) = rows
    measured_s = {way: statistics.fmean(each) for way, each in seconds.items()}
    saved_s = [measured_s[NATIVE] - measured_s[mode] for mode in MODES]
    cells = [
        predicted.native_s,
        measured_s[NATIVE],
        predicted.now_s,
        predicted.limit_s,
        *saved_s,
    ]
    texts = " | ".join(f"{each_s * 1e3:.0f}" for each_s in cells)
    print(f"| {name} | {len(steps[0])} | {texts} |", flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--size", default="8MiB")
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of a port")
    parser.add_argument("--trace", help=argparse.SUPPRESS)
    parser.add_argument("--rank-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side is not None:
        rank_side(options)
        return
    print(
        f"{options.size} at {options.rate:g} Mbit/s, {options.steps} steps, {os.cpu_count()} cores"
    )
    print(
        "| trace | ranks | Gloo: predicted | measured | now: predicted | limit | "
        "static: measured | auto: measured |"
    )
    print("|:--|--:|--:|--:|--:|--:|--:|--:|")
    for name in TRACES:
        measure(name, options)


if __name__ == "__main__":
    main()
