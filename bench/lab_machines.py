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
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.lab import Lab, Network
from synth.candidates import two_level_schedules
from synth.straggler.generate import generate
from synth.units import format_bytes, parse_bytes
from verify.output import write

NATIVE = "Gloo"
FLAT = "flat, k = 7"
FLAT_CHUNKS = 7
AUTO = "mode auto"
LEARNT_FROM = 6
"""Operations that mode auto sees before it is measured."""
TIMEOUT_S = 120.0
LATER_THAN_ANY_WAIT = 3.0
"""The late rank comes so many times later than the port needs for the buffer."""


def rank_side(folder: Path, options: argparse.Namespace) -> None:
    """One rank of the job; rank 0 prints a JSON line for each size."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    from runtime import Executor, load
    from runtime.policy.dispatcher import AllReduceDispatcher
    from runtime.policy.options import Options

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"]) + 1
    store = TCPStore(host, port, world_size, rank == 0, timedelta(seconds=TIMEOUT_S))
    paths = sorted(folder.glob("*.json"))
    schedules = [load(path) for path in paths]
    executor = Executor(
        schedules, dist.PrefixStore("schedules", store), rank, world_size, timeout_s=TIMEOUT_S
    )
    auto = AllReduceDispatcher(
        dist.PrefixStore("auto", store),
        rank,
        world_size,
        options=Options("auto"),
        timeout_s=TIMEOUT_S,
    )

    def completion_s(way: str, nbytes: int, late: bool) -> float:
        """Seconds from the last arrival to the last rank's result."""
        numbers = torch.arange(nbytes // 4, dtype=torch.float32) % 251
        tensor = numbers * (rank + 1)
        dist.barrier()
        if late and rank == world_size - 1:
            time.sleep(0.1 + LATER_THAN_ANY_WAIT * nbytes * 8e-6 / options.rate)

        arrived_s = time.monotonic()
        if way == NATIVE:
            dist.all_reduce(tensor)
        elif way == AUTO:
            auto.submit(tensor).wait()
        else:
            index = [path.stem for path in paths].index(way)
            executor.submit(tensor, schedule=index).wait()
        done_s = time.monotonic()

        is_right = torch.equal(tensor, numbers * (world_size * (world_size + 1) // 2))
        by_rank: list[Any] = [None] * world_size
        dist.all_gather_object(by_rank, (arrived_s, done_s, is_right))
        wrong_ranks = [peer for peer, (_, _, right) in enumerate(by_rank) if not right]
        if wrong_ranks:
            raise SystemExit(f"wrong sum on rank(s) {wrong_ranks}")
        last_done_s: float = max(done for _, done, _ in by_rank)
        return last_done_s - max(arrived for arrived, _, _ in by_rank)

    ways = [NATIVE, *(path.stem for path in paths), AUTO]
    for text in options.sizes:
        nbytes = parse_bytes("--sizes", text)
        for way in ways:
            completion_s(way, nbytes, late=False)  # warms connections and buffers

        for late in (True, False):
            for _ in range(LEARNT_FROM):
                completion_s(AUTO, nbytes, late)
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(options.repeats):
                for way in ways:
                    seconds[way].append(completion_s(way, nbytes, late))
            if rank == 0:
                ran_by = sorted({record.way for record in list(auto.records)[-options.repeats :]})
                row = {"nbytes": nbytes, "late": late, "seconds": seconds, "ran_by": ran_by}
                print(json.dumps(row), flush=True)
    auto.close()
    executor.close()
    dist.destroy_process_group()


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
        medians = {way: statistics.median(taken) for way, taken in row["seconds"].items()}
        cells = []
        for way, taken in row["seconds"].items():
            noise = (max(taken) - min(taken)) / medians[way] / 2
            cells.append(f"{medians[way] * 1e3:.1f} ms ±{noise:.0%}")
        print(
            f"| {format_bytes(row['nbytes'])} | {'late' if row['late'] else 'with the others'} "
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
