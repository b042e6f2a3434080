"""Which source files of the runtime a gradient bucket in mode auto meets on rank 0.

    python -m bench.bucket_files [--ranks 4] [--operations 15] [--list]

What a reader has to open who wants to follow one bucket: the files of runtime/ in which a Python
function is called, on any thread of rank 0, between ``all_reduce`` and the end of its wait, on the
CPU, counted by ``threading.setprofile``. First without a straggler (all ranks come together, and
Gloo sums), then with one (the last rank comes late, and a schedule sums without it). A row is the
median over operations; ``--list`` names the files, and in how many of the operations each was met:
what belongs to none in particular (an exchange of clocks) is met in few.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from latecomer import runtime
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile

ELEMENTS = 2**18  # 1 MiB of float32
WARM_UP = 30  # operations: connections, the history of arrivals, the parts of schedules
LATE_S = 0.05
MOST_LATE_OPERATIONS = 300  # until enough of them have gone by a schedule
LIMIT_S = 120
RUNTIME = str(Path(runtime.__file__).parent) + "/"


class FilesMet:
    """Collects the runtime's files in which a function is called while it is ``counting``."""

    def __init__(self) -> None:
        self.counting = False
        self._files: set[str] = set()

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """What ``sys.setprofile`` and ``threading.setprofile`` take."""
        if self.counting and event == "call":
            self._files.add(frame.f_code.co_filename)

    def start(self) -> None:
        """Count from now on, from nothing."""
        self._files = set()
        self.counting = True

    def stop(self) -> set[str]:
        """The files of the runtime since then, as ``policy/dispatcher.py``."""
        self.counting = False
        return {name.removeprefix(RUNTIME) for name in self._files if name.startswith(RUNTIME)}


def measure(rank: int, ranks: int, port: int, operations: int, out: Any) -> None:
    """Rank's part; rank 0 puts, by case, the files of each operation."""
    torch.set_num_threads(1)
    met = FilesMet()
    threading.setprofile(met.profile)  # of threads that are started from here on
    sys.setprofile(met.profile)

    limit = timedelta(seconds=LIMIT_S)
    store = dist.TCPStore("127.0.0.1", port, None, False, limit)
    # given, so that the decisions do not depend on what else this machine does
    link = AlphaBeta(alpha_s=1e-4, beta_s=1e-9)
    profile = Profile(ranks, native=link, schedule=link)
    runtime.configure(mode="auto", profile=profile)
    dist.init_process_group("latecomer", store=store, rank=rank, world_size=ranks, timeout=limit)

    group: Any = dist.group.WORLD
    x = torch.empty(ELEMENTS)

    def all_reduce(late: bool) -> set[str]:
        dist.barrier()
        if late and rank == ranks - 1:
            time.sleep(LATE_S)
        x.fill_(rank)
        met.start()
        dist.all_reduce(x)
        files = met.stop()
        assert x[0].item() == sum(range(ranks)), "a wrong sum"
        return files

    for _ in range(WARM_UP):
        all_reduce(late=False)

    no_straggler: list[set[str]] = []
    straggler: list[set[str]] = []
    for _ in range(operations):
        files = all_reduce(late=False)
        if group.reducer.records[-1].way == "native":
            no_straggler.append(files)
    for _ in range(MOST_LATE_OPERATIONS):
        files = all_reduce(late=True)
        if group.reducer.records[-1].way != "native":
            straggler.append(files)
        # all ranks take the same decisions, so all end here with the same operation
        if len(straggler) == operations + 1:
            break

    if rank == 0:
        out.put({"no straggler": no_straggler, "straggler": straggler[1:]})
    dist.barrier()
    dist.destroy_process_group()


def count(ranks: int, operations: int) -> dict[str, list[set[str]]]:
    """By case, the files that each operation met on rank 0."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=LIMIT_S))
    context = mp.get_context("spawn")
    out = context.Queue()
    arguments = (ranks, store.port, operations, out)
    processes = mp.spawn(measure, arguments, ranks, join=False)
    while True:
        try:
            files: dict[str, list[set[str]]] = out.get(timeout=0.1)
            break
        except queue.Empty:
            processes.join(0.01)  # raises if a rank has died
    while not processes.join():
        pass
    return files


def report(case: str, operations: list[set[str]]) -> dict[str, Any]:
    """A row of the result."""
    times_met = Counter(file for files in operations for file in sorted(files))
    return {
        "case": case,
        "operations": len(operations),
        "files": statistics.median(map(len, operations)),
        "times_met": dict(times_met.most_common()),
    }


def main() -> None:
    """Count, and print a row for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--operations", type=int, default=15, help="counted in each case")
    parser.add_argument("--list", action="store_true", help="the files, too")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each case")
    arguments = parser.parse_args()

    for case, operations in count(arguments.ranks, arguments.operations).items():
        row = report(case, operations)
        if arguments.json:
            print(json.dumps(row))
            continue
        print(f"{case}: {row['files']:.0f} files (median of {row['operations']} operations)")
        if arguments.list:
            for file, times in row["times_met"].items():
                print(f"  {times:4d}  {file}")


if __name__ == "__main__":
    main()
