"""What it costs an operation that a watch writes while the job runs.

    python -m bench.watching [--operations 50000] [--repeat 9] [--directory DIR]

One process, without a network: the records are made as a rank makes them. A row is the smallest of
the repeats, in microseconds of processor time of the thread that it is about:

    record      on the thread that has moved the data: remember an operation, as in any watch
    and feed    the same while files are written: what comes on top is the price of live writing
    write       on the thread of the watch: number, encode and write an operation
    idle        on the thread of the watch: a look (two a second) when nothing has happened
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._distributed_c10d import HashStore

from latecomer.runtime.network.clock import Alignment
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.telemetry.files import Line, encode
from latecomer.runtime.telemetry.live import Journal
from latecomer.runtime.telemetry.origin import new_watch, origin
from latecomer.runtime.telemetry.recorder import OperationRecorder
from latecomer.runtime.telemetry.session import FILE_BYTES, FILES
from latecomer.runtime.telemetry.writer import RankFiles
from latecomer.runtime.work import AllReduceWork

WAY = "one late, k = 8"
REASON = "missing, and likely to come much later"


def main() -> None:
    """Measure, and print a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--directory", type=Path, help="default: a temporary one")
    options = parser.parse_args()
    operations = options.operations

    group = StoreExchange(HashStore(), rank=0, world_size=1, timeout_s=5.0)
    recorder = OperationRecorder(group, lambda: Alignment(0.0, 1e-4), lambda: operations)
    work = AllReduceWork(0, torch.zeros(4), average=False)
    work.settle()

    def record() -> None:
        for number in range(operations):
            recorder.record(work, number, WAY, REASON, late=(2,))

    rows = {"record": _fastest_us(record, lambda: None, options.repeat) / operations}

    feed = recorder.feed()
    rows["and feed"] = _fastest_us(record, feed.take, options.repeat) / operations
    recorder.unfeed(feed)

    with tempfile.TemporaryDirectory() as temporary:
        own = origin(new_watch(), rank=0, ranks=1, offset_s=0.0)
        place = options.directory or Path(temporary)
        files = RankFiles(place, 0, encode(Line(origin=own)), FILE_BYTES, FILES)
        journal = Journal(recorder, files)

        def look() -> None:
            journal.look(False)

        rows["write"] = _fastest_us(look, record, options.repeat) / operations
        rows["idle"] = _fastest_us(look, lambda: None, options.repeat)
        files.close()

    for name, microseconds in rows.items():
        print(f"{name:<10} {microseconds:8.2f} us")


def _fastest_us(measured: Callable[[], None], before: Callable[[], object], repeat: int) -> float:
    """The least processor time of this thread for it, of several calls, each after ``before``."""
    times_s = []
    for _ in range(repeat):
        before()
        begin_s = time.thread_time()
        measured()
        times_s.append(time.thread_time() - begin_s)
    return min(times_s) * 1e6


if __name__ == "__main__":
    main()
