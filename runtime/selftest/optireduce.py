"""``python -m runtime selftest --algorithm optireduce``: the conformance suite over real sockets.

One process per rank runs every case through the engine (over UBT, then with every datagram
authenticated) and through the process group backend. Each element of each result is checked to the
last bit against what the ranks' ledgers say arrived (:mod:`audit`): a kernel may drop datagrams,
which is reported as loss, and is no wrong sum. What OptiReduce does not carry
(integers) goes over TCP or by Gloo, as it would in a job; how much did is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime import backend
from runtime.config import configure
from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.options import Options
from runtime.selftest import conformance
from runtime.selftest.audit import Audit
from runtime.selftest.processes import RanksFailed, Say, talk
from runtime.torch_versions import PrefixStore, Store

TIMEOUT_S = 60.0
DEADLINE_S = 240.0
"""A self-test that is not over by then has failed, whatever the machine is busy with."""
OPTIONS = Options(
    warmup_steps=0,
    bound_s=10.0,
    dead_s=20.0,  # a process that has to wait for a processor is not dead
    stop_window=50,  # steps of one datagram each, in part: a few that are late are no half
    hadamard="off",  # its rounding would hide what is checked to the last bit
)
SEALED = replace(OPTIONS, authenticate=True, offload=False)


def selftest(ranks: int, report: Callable[[str], None], *, deadline_s: float = DEADLINE_S) -> bool:
    """Run the suite, report a line for each way in; true if all passed."""
    try:
        for line in talk(_rank, ranks, timeout_s=TIMEOUT_S, deadline_s=deadline_s):
            report(line)
    except RanksFailed as failure:
        report(f"FAILED: {failure}")
        return False
    return True


def _rank(store: Store, rank: int, ranks: int, say: Say) -> None:
    ways: dict[str, Callable[[Store, int, int], str]] = {
        "engine": lambda *place: _engine(OPTIONS, *place),
        "authenticated": lambda *place: _engine(SEALED, *place),
        "backend": _backend,
    }
    for name, way in ways.items():
        began = time.monotonic()
        said = way(PrefixStore(name, store), rank, ranks)
        if rank == 0:
            say(f"{name:<14} {said} in {time.monotonic() - began:.1f} s")


def _engine(options: Options, store: Store, rank: int, ranks: int) -> str:
    engine = Engine(store, rank, ranks, options=options, timeout_s=TIMEOUT_S)

    def all_reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        submit = engine.submit if tensor.dtype in FLOATS else engine.reliable.submit
        return submit(tensor, average=average).wait(timedelta(seconds=TIMEOUT_S))

    audit = Audit(engine.ledger, PrefixStore("audit", store), rank, ranks, options.payload_bytes)
    cases = PrefixStore("cases", store)
    count = conformance.run(all_reduce, cases, rank, ranks, check=audit)
    steps, how = engine.ledger.totals["steps"], engine.how
    engine.close()
    return f"{count} cases, {steps} over UBT, {audit.said()} ({how})"


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

    group: Any = dist.group.WORLD
    ledger = group.engine.ledger
    audit = Audit(ledger, PrefixStore("audit", store), rank, ranks, OPTIONS.payload_bytes)
    cases = PrefixStore("cases", store)
    count = conformance.run(all_reduce, cases, rank, ranks, check=audit)
    paths = dict(group.paths)
    dist.destroy_process_group()
    return f"{count} cases, {audit.said()}, {paths}"
