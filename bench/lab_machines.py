"""Completion after the late rank's arrival where several ranks share a machine and its port.

    python -m bench.lab_machines [--machines 2] [--ranks-per-machine 4] [--rate 200]
                                 [--sizes 64KiB 1MiB 8MiB] [--repeats 5]

Machines are hosts of ``bench.lab`` with one port of so many Mbit/s each; ranks of one machine speak
over its loopback. The last rank arrives late by more than the others need for their own part, or
(second line of a size) with all others. Measured from the last arrival to the last rank's result,
in one run and in turn (A B C A B C), every result compared with the exact sum:

    Gloo          its own ``all_reduce``, a ring
    flat          the closed form for equal ranks, in 7 chunks
    two-level     the candidates that the modes take on such machines
    mode auto     with a profile that it measures itself; the last column says what it ran by

Before each line mode auto sees a few operations of its kind. Medians, and half the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.lab import Lab, Network
from bench.lab_rank import NATIVE, TIMEOUT_S, LabRank
from latecomer.synth.candidates import two_level_schedules
from latecomer.synth.straggler.generate import generate
from latecomer.synth.units import format_bytes, parse_bytes
from latecomer.verify.output import write

FLAT = "flat, k = 7"
FLAT_CHUNKS = 7
AUTO = "mode auto"
LEARNT_FROM = 6
"""Operations that mode auto sees before it is measured."""
LATER_THAN_ANY_WAIT = 3.0
"""The late rank comes so many times later than the port needs for the buffer."""


def rank_side(folder: Path, options: argparse.Namespace) -> None:
    """One rank of the job; rank 0 prints a JSON line for each size."""
    rank = Rank(folder, options.rate)
    for text in options.sizes:
        nbytes = parse_bytes("--sizes", text)
        for way in rank.ways:
            rank.completion_s(way, nbytes, late=False)  # warms connections and buffers

        for late in (True, False):
            for _ in range(LEARNT_FROM):
                rank.completion_s(AUTO, nbytes, late)
            seconds: dict[str, list[float]] = {way: [] for way in rank.ways}
            for _ in range(options.repeats):
                for way in rank.ways:
                    seconds[way].append(rank.completion_s(way, nbytes, late))
            if rank.rank == 0:
                ran_by = rank.last_ran_by(options.repeats)
                row = {"nbytes": nbytes, "late": late, "seconds": seconds, "ran_by": ran_by}
                print(json.dumps(row), flush=True)
    rank.close()


class Rank(LabRank):
    """One rank, with mode auto beside the executor.

    Attributes:
        ways: Gloo, the schedules by their files' names, mode auto.
    """

    def __init__(self, folder: Path, rate_mbit: float) -> None:
        super().__init__(folder, rate_mbit)
        from torch._C._distributed_c10d import PrefixStore

        from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
        from latecomer.runtime.policy.options import Options

        self.ways = [NATIVE, *self.schedules, AUTO]
        self._auto = AllReduceDispatcher(
            PrefixStore("auto", self.store),
            self.rank,
            self.ranks,
            options=Options("auto"),
            timeout_s=TIMEOUT_S,
        )

    def run(self, way: str, tensor: Any) -> None:
        """As for all, or by mode auto."""
        if way == AUTO:
            self._auto.submit(tensor).wait()
        else:
            super().run(way, tensor)

    def completion_s(self, way: str, nbytes: int, late: bool) -> float:
        """Seconds from the last arrival to the last rank's result."""
        late_s = 0.0
        if late:
            late_s = 0.1 + LATER_THAN_ANY_WAIT * self.port_s(nbytes)
        return self.from_last_arrival_s(partial(self.run, way), nbytes, self.if_last(late_s))

    def last_ran_by(self, operations: int) -> list[str]:
        """By what the last operations of mode auto ran."""
        return sorted({record.way for record in list(self._auto.records)[-operations:]})

    def close(self) -> None:
        """Release all connections."""
        self._auto.close()
        super().close()


def measure(options: argparse.Namespace) -> None:
    """Build a lab, run the job, print a Markdown table."""
    ranks = options.machines * options.ranks_per_machine
    with tempfile.TemporaryDirectory() as folder:
        flat = generate(ranks, chunks=FLAT_CHUNKS, owners="free")
        write(flat, Path(folder) / f"{FLAT}.json")
        for name, schedule in two_level_schedules(ranks, options.ranks_per_machine):
            write(schedule, Path(folder) / f"{name}.json")

        argv = [sys.executable, "-m", "bench.lab_machines", *sys.argv[1:], "--rank-side", folder]
        with Lab(Network(hosts=options.machines, rate_mbit=options.rate)) as lab:
            print(
                f"\n{options.machines} machines of {options.ranks_per_machine} ranks, a port of "
                f"{options.rate:g} Mbit/s each, {os.cpu_count()} cores\n"
            )
            schedules = sorted(path.stem for path in Path(folder).glob("*.json"))
            names = [NATIVE, *schedules, AUTO]
            print(
                f"| size | last rank | {' | '.join(names)} | Gloo over auto | S·beta | auto ran |"
            )
            print("|--:|:--|" + "--:|" * (len(names) + 2) + ":--|", flush=True)
            lab.run(
                argv,
                ranks_per_host=options.ranks_per_machine,
                timeout_s=1800.0,
                on_line=_table(options.rate),
            ).check()


def _table(mbit: float) -> Callable[[int, str], None]:
    """Prints a row as rank 0 reports it; what is not a report goes to stderr."""

    def line(rank: int, text: str) -> None:
        if not text.startswith('{"nbytes"'):
            print(f"[{rank}] {text}", file=sys.stderr, flush=True)
            return
        row = json.loads(text)
        medians = {}
        cells = []
        for way, seconds in row["seconds"].items():
            median = statistics.median(seconds)
            noise = (max(seconds) - min(seconds)) / median / 2
            cells.append(f"{median * 1e3:.1f} ms ±{noise:.0%}")
            medians[way] = median
        last_rank = "late" if row["late"] else "with the others"
        print(
            f"| {format_bytes(row['nbytes'])} | {last_rank} "
            f"| {' | '.join(cells)} | {medians[NATIVE] / medians[AUTO]:.2f} "
            f"| {row['nbytes'] * 8e-3 / mbit:.1f} ms | {', '.join(row['ran_by'])} |",
            flush=True,
        )

    return line


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--ranks-per-machine", type=int, default=4)
    parser.add_argument("--rate", type=float, default=200.0, help="Mbit/s of a machine's port")
    parser.add_argument("--sizes", nargs="+", default=["64KiB", "1MiB", "8MiB"], metavar="SIZE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rank-side", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_side is not None:
        rank_side(options.rank_side, options)
    else:
        measure(options)


if __name__ == "__main__":
    main()
