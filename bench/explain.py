"""Who is named, by ``latecomer explain`` and by torch's own analyzer, in jobs whose fault is known.

    python -m bench.explain                     NVIDIA's four jobs: examples/dumps
    python -m bench.explain --ranks 1000        time and memory, for dumps that are made up

Torch's analyzer is ``torch.distributed.flight_recorder`` (``torchfrtrace``), run on the same files
as its manual says; the ranks that it prints as culprits or missing are taken for those it blames.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / "examples" / "dumps" / "nvidia.tar.gz"
TRUTH = {
    "gpu_error_1st": {12, 14},
    "gpu_error_2nd": {9, 14},
    "lock_gil_1st": {9, 14},
    "lock_gil_2nd": {10, 15},
}
RANKS_PER_GROUP = 8
MISSING = re.compile(r"[Mm]issing ranks: \{([\d, ]*)\}")
CULPRIT = re.compile(r"Culprit rank (\d+)")


def main() -> None:
    """Print the table, or the time and memory."""
    parser = argparse.ArgumentParser(prog="bench.explain", description=__doc__)
    parser.add_argument("--ranks", type=int, help="of a job that is made up")
    parser.add_argument("--entries", type=int, default=2000, help="of each of its dumps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.ranks:
            _measure(Path(folder), options.ranks, options.entries)
        else:
            _compare(Path(folder))


def _compare(folder: Path) -> None:
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(folder, filter="data")
    print("| job | the fault was on | `latecomer explain` | s | torch's analyzer | s |")
    print("|:--|:--|:--|--:|:--|--:|")
    for job, truth in TRUTH.items():
        ours, ours_s = _ours(folder / job)
        theirs, theirs_s = _torchs(folder / job)
        cells = [job, _said(truth), _said(ours), f"{ours_s:.1f}", _said(theirs), f"{theirs_s:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def _ours(folder: Path) -> tuple[set[int], float]:
    began_s = time.monotonic()
    command = [sys.executable, "-m", "latecomer", "explain", str(folder), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    verdicts = json.loads(result.stdout)["verdicts"]
    took_s = time.monotonic() - began_s
    return {rank for verdict in verdicts for rank in verdict["ranks"]}, took_s


def _torchs(folder: Path) -> tuple[set[int], float]:
    began_s = time.monotonic()
    module = "torch.distributed.flight_recorder.fr_trace"
    command = [sys.executable, "-m", module, str(folder), "-p", "_dump_"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    took_s = time.monotonic() - began_s
    text = result.stdout + result.stderr
    named = {int(rank) for rank in CULPRIT.findall(text)}
    for ranks in MISSING.findall(text):
        named |= {int(rank) for rank in ranks.split(",") if rank.strip()}
    return named, took_s


def _said(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks))) or "nobody"


def _measure(folder: Path, ranks: int, entries: int) -> None:
    for rank in range(ranks):
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(_dump(rank, ranks, entries), protocol=2))
    nbytes = sum(path.stat().st_size for path in folder.iterdir())
    named, took_s = _ours(folder)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{ranks} ranks, {entries} entries each, {nbytes / 2**20:.0f} MiB: named {_said(named)}; "
        f"{took_s:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processors, "
        f"{used.ru_maxrss / 2**20:.2f} GiB in the largest process"
    )


def _dump(rank: int, ranks: int, entries: int) -> dict[str, object]:
    """Of a job in which rank 5 does not come to the last operation of all ranks."""
    first = rank // RANKS_PER_GROUP * RANKS_PER_GROUP
    group = list(range(first, min(first + RANKS_PER_GROUP, ranks)))
    name = str(1 + rank // RANKS_PER_GROUP)
    members = {"0": list(range(ranks)), name: group}
    counts = dict.fromkeys(members, 0)
    frame = {"name": "step", "filename": "/job/train.py", "line": 31}
    recorded = []
    for number in range(entries):
        is_last = number == entries - 1
        if is_last and rank == 5:
            break
        where = "0" if is_last or number % 3 == 2 else name
        counts[where] += 1
        recorded.append(
            {
                "record_id": number,
                "pg_id": 0 if where == "0" else 1,
                "process_group": (where, "default_pg" if where == "0" else "tensor parallel"),
                "collective_seq_id": counts[where],
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": 10**18 + 1000 * number + rank,
                "input_sizes": [[1024 + number % 7, 4096]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[1024 + number % 7, 4096]],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if is_last else "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": not is_last,
                "timeout_ms": 600_000,
                "is_p2p": False,
                "frames": [frame] * 12,
            }
        )
    config = {
        each: {"name": each, "desc": "", "ranks": str(its_ranks)}
        for each, its_ranks in members.items()
    }
    return {"version": "2.10", "entries": recorded, "pg_config": config, "pg_status": {}}


if __name__ == "__main__":
    main()
