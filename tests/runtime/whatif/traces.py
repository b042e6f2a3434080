"""Traces as torch's profiler writes them, of jobs whose arrivals are known.

What is written is what torch 2.13 writes for NCCL's kernels and for Gloo's operations; the module
shares nothing with what reads it.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """By step, when each rank comes to its all-reduce, on one true clock."""

    arrivals_s: list[list[float]]
    took_s: float = 0.003
    step_s: float = 0.5
    elements: int = 1_000_000

    @property
    def ranks(self) -> int:
        return len(self.arrivals_s[0])


def job(seed, ranks, steps=5):
    """Ranks that come at random moments of each step."""
    dice = random.Random(seed)
    return Job([[dice.uniform(0, 0.2) for _ in range(ranks)] for _ in range(steps)])


def trace(job, rank, *, clock_s=0.0, library="nccl", ranks_told=True, host=""):
    """The trace of one rank, whose clock is ahead by so much."""
    events = []
    for step, arrivals_s in enumerate(job.arrivals_s):
        begin_s = 100.0 + step * job.step_s + clock_s
        end_s = begin_s + max(arrivals_s) + job.took_s
        start_s = begin_s + arrivals_s[rank]
        span = {"ph": "X", "ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6}
        if library == "gloo":
            events.append(span | {"cat": "user_annotation", "name": "gloo:all_reduce", "args": {}})
        else:
            arguments = {
                "stream": 20,
                "Collective name": "allreduce",
                "In msg nelems": job.elements,
                "Out msg nelems": job.elements,
                "Group size": job.ranks,
                "dtype": "BFloat16",
                "Process Group Name": "0",
                "Process Group Description": "default_pg",
                "Process Group Ranks": str(list(range(job.ranks))) if ranks_told else "[0, 1, ...]",
            }
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            events.append(span | {"cat": "kernel", "name": name, "args": arguments})
        marked = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step + 7}"}
        events.append(marked | {"ts": begin_s * 1e6, "dur": job.step_s * 1e6, "args": {}})
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": job.ranks}
    told = {"backend": library, "rank": rank, "world_size": job.ranks}
    told["pg_config"] = [group | {"ranks": list(range(job.ranks))}] if ranks_told else []
    content = {"schemaVersion": 1, "distributedInfo": told, "traceEvents": events}
    return content | ({"host_name": host} if host else {})


def write(folder: Path, traces, *, packed=False):
    """The files, by rank."""
    paths = []
    for rank, content in enumerate(traces):
        data = json.dumps(content).encode()
        path = folder / (f"rank{rank}.json.gz" if packed else f"rank{rank}.json")
        path.write_bytes(gzip.compress(data) if packed else data)
        paths.append(path)
    return paths
