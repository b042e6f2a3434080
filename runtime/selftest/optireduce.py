"""``python -m runtime selftest --algorithm optireduce``: the conformance suite over real sockets.

One process per rank runs every case through the engine (over UBT, then with every datagram
authenticated) and through the process group backend. Each element of each result is checked to the
last bit against what the ranks' ledgers say arrived (:mod:`audit`): a kernel may drop datagrams,
which is reported as loss, and is no wrong sum. What OptiReduce does not carry (integers) goes over
TCP or by Gloo, as it would in a job; how much did is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch

from runtime.config import configure
from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.loss import LossStats
from runtime.optireduce.options import Options
from runtime.selftest import conformance
from runtime.selftest.audit import Audit
from runtime.selftest.processes import Place, passes
from runtime.selftest.schedules import TIMEOUT_S, all_reduce, process_group
from runtime.torch_versions import PrefixStore, Store

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
    return passes(_rank, ranks, report=report, timeout_s=TIMEOUT_S, deadline_s=deadline_s)


def _rank(place: Place) -> None:
    methods = {"engine": OPTIONS, "authenticated": SEALED, "backend": None}
    for name, options in methods.items():
        began, store = time.monotonic(), PrefixStore(name, place.store)
        said = _engine(options, store, place) if options else _backend(store, place)
        if place.rank == 0:
            place.say(f"{name:<14} {said} in {time.monotonic() - began:.1f} s")


def _engine(options: Options, store: Store, place: Place) -> str:
    engine = Engine(store, place.rank, place.size, options=options, timeout_s=TIMEOUT_S)

    def reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        submit = engine.submit if tensor.dtype in FLOATS else engine.reliable.submit
        return submit(tensor, average=average).wait(timedelta(seconds=TIMEOUT_S))

    count, lost = _audited(reduce, engine.ledger, options, store, place)
    steps, how = engine.ledger.totals["steps"], engine.how
    engine.close()
    return f"{count} cases, {steps} over UBT, {lost} ({how})"


def _backend(store: Store, place: Place) -> str:
    def reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        carried = tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor  # as Gloo does
        return all_reduce(carried, average).to(tensor.dtype)

    configure(algorithm="optireduce", options=OPTIONS)
    with process_group(store, place.rank, place.size) as group:
        count, lost = _audited(reduce, group.engine.ledger, OPTIONS, store, place)
        return f"{count} cases, {lost}, {dict(group.paths)}"


def _audited(
    reduce: conformance.AllReduce, ledger: LossStats, options: Options, store: Store, place: Place
) -> tuple[int, str]:
    """How many cases passed, and what was lost."""
    rank, size = place.rank, place.size
    audit = Audit(ledger, PrefixStore("audit", store), rank, size, options.payload_bytes)
    count = conformance.run(reduce, PrefixStore("cases", store), rank, size, check=audit)
    return count, audit.said()
