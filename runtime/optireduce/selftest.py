"""``python -m runtime selftest --algorithm optireduce``: the conformance suite over real sockets.

One process per rank runs every case through the engine (over UBT, then with every datagram
authenticated) and through the process group backend. The bound is generous, so on a healthy
machine nothing is lost and results are compared like those of any schedule. What OptiReduce does
not carry (integers) goes over TCP or by Gloo, as it would in a job; how much did is reported.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from runtime import backend, conformance
from runtime.configuration import configure
from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.options import Options
from runtime.torch_versions import PrefixStore, Store, TCPStore

TIMEOUT_S = 60.0
OPTIONS = Options(warmup_steps=0, bound_s=10.0)
SEALED = Options(warmup_steps=0, bound_s=10.0, authenticate=True, offload=False)


def selftest(ranks: int, report: Callable[[str], None]) -> bool:
    """Run the suite, report a line for each way in; true if all passed."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=TIMEOUT_S))
    context = mp.get_context("spawn")
    lines: Any = context.Queue()
    processes = [
        context.Process(target=_rank, args=(r, ranks, store.port, lines), daemon=True)
        for r in range(ranks)
    ]
    for process in processes:
        process.start()
    passed, left = True, ranks
    try:
        while left:
            line, failed = lines.get(timeout=10 * TIMEOUT_S)
            left -= not line
            passed = passed and not failed
            if line:
                report(line)
    finally:
        for process in processes:
            process.join(timeout=TIMEOUT_S if passed else 1.0)
            process.kill()
    return passed


def _rank(rank: int, ranks: int, port: int, lines: Any) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=TIMEOUT_S))
    ways: dict[str, Callable[[Store, int, int], str]] = {
        "engine": lambda *place: _engine(OPTIONS, *place),
        "authenticated": lambda *place: _engine(SEALED, *place),
        "backend": _backend,
    }
    name = ""
    try:
        for name, way in ways.items():
            began = time.monotonic()
            said = way(PrefixStore(name, store), rank, ranks)
            if rank == 0:
                lines.put((f"{name:<14} {said} in {time.monotonic() - began:.1f} s", False))
    except Exception:
        lines.put((f"{name}, rank {rank}: FAILED\n{traceback.format_exc()}", True))
    lines.put(("", False))


def _engine(options: Options, store: Store, rank: int, ranks: int) -> str:
    engine = Engine(store, rank, ranks, options=options, timeout_s=TIMEOUT_S)

    def all_reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        submit = engine.submit if tensor.dtype in FLOATS else engine.reliable.submit
        return submit(tensor, average=average).wait(timedelta(seconds=TIMEOUT_S))

    count = conformance.run(all_reduce, PrefixStore("cases", store), rank, ranks)
    totals, how = engine.ledger.totals, engine.how
    engine.close()
    return (
        f"{count} cases, {totals['steps']} over UBT, "
        f"{totals['lost']} of {totals['due']} datagrams lost ({how})"
    )


def _backend(store: Store, rank: int, ranks: int) -> str:
    configure(algorithm="optireduce", options=OPTIONS)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        backend.BACKEND, store=store, rank=rank, world_size=ranks, timeout=timeout
    )

    def all_reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        carried = tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor  # as Gloo does
        dist.all_reduce(carried, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
        return carried.to(tensor.dtype)

    count = conformance.run(all_reduce, PrefixStore("cases", store), rank, ranks)
    paths: Any = dist.group.WORLD
    paths = dict(paths.paths)
    dist.destroy_process_group()
    return f"{count} cases, {paths}"
