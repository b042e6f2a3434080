"""``latecomer selftest``: the conformance suite on the user's own machine.

Starts one process per rank (on one GPU, all NCCL ranks on that GPU: NCCL takes them for different
hosts by ``NCCL_HOSTID`` and lets them talk over sockets) and runs the suite several times:

    schedules    each with every rank late in turn (where several are, each in every place), through
                 the executor and the process group backend; late ranks sleep before each case
    OptiReduce   through the engine over UBT, the same with every datagram authenticated, and the
                 backend, each audited. What it does not carry (integers) goes over TCP or by Gloo,
                 as it would in a job; how much did, and what was lost, is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime import backend
from latecomer.runtime.config import configure
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.load import Verified, load
from latecomer.runtime.executor.nccl.streams import take_gpu
from latecomer.runtime.host import host
from latecomer.runtime.network.processes import Say, passes, talk
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.hadamard import FLOATS
from latecomer.runtime.optireduce.loss import LossStats
from latecomer.runtime.optireduce.missing import Missing
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.selftest import conformance
from latecomer.runtime.selftest.audit import Audit
from latecomer.runtime.torch_versions import PrefixStore, Store
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError

TIMEOUT_S = conformance.TIMEOUT_S
LATE_S = 0.002  # how much later each late rank comes than the one before it
LINE_S = 60.0  # for each line of the report, and the start; a self-test that takes longer failed
OPTIREDUCE = Options(
    warmup_steps=0,
    bound_s=10.0,
    dead_s=20.0,  # a process that has to wait for a processor is not dead
    stop_window=50,  # steps of one datagram each, in part: a few that are late are no half
    hadamard="off",  # its rounding would hide what is checked to the last bit
)
# each datagram by itself, so that both ways through the kernel are tested
SEALED = replace(OPTIREDUCE, authenticate=True, offload=False)

SchedulesByName = Mapping[str, Schedule] | None
CasesRun = Callable[[Store, int, int], str]
"""(store, rank, world_size) -> what the report says of a run of all cases."""


def selftest(
    schedules: SchedulesByName, ranks: int, device: str, report: Callable[[str], None]
) -> bool:
    """Test the schedules (None: OptiReduce), and report a line for each run of the suite.

    Whether all passed; the first failure ends it. ArgumentError for ``cuda`` where there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("--device", device, "no CUDA device is visible to torch")
    limits = {"timeout_s": TIMEOUT_S, "deadline_s": LINE_S * (1 + len(_runs(schedules, device)))}
    return passes(talk(_rank, ranks, device, schedules, **limits), report)


def _rank(
    store: Store, rank: int, world_size: int, say: Say, device: str, schedules: SchedulesByName
) -> None:
    """What each process does: all runs, one after the other; rank 0 says how each went."""
    if device == "cuda":
        take_gpu(rank, world_size)

    for line, run in _runs(schedules, device).items():
        began = host.monotonic()
        try:
            result = run(PrefixStore(line, store), rank, world_size)
        except Exception as error:
            error.add_note(f"in: {line}")
            raise
        if rank == 0:
            say(f"{line} {result} in {host.monotonic() - began:.1f} s")


def _runs(schedules: SchedulesByName, device: str) -> dict[str, CasesRun]:
    """All runs of the suite, by how their lines begin."""
    if schedules is None:
        return {
            f"{'engine':<14}": partial(_engine, OPTIREDUCE),
            f"{'authenticated':<14}": partial(_engine, SEALED),
            f"{'backend':<14}": _optireduce_backend,
        }

    runs: dict[str, CasesRun] = {}
    for name, schedule in schedules.items():
        verified = load(schedule)
        for method, run in (("executor", _executor), ("backend", _backend)):
            for late in turns(verified):
                late_names = ", ".join(map(str, late)) or "nobody"
                line = f"{name:<12} {method:<9} late: {late_names:<8}"
                runs[line] = partial(run, verified, late, device)
    return runs


def turns(verified: Verified) -> list[tuple[int, ...]]:
    """Late ranks, in order of arrival, such that every rank is in every place once."""
    ranks = verified.schedule.ranks
    late_count = len(verified.late)
    if not late_count:
        return [()]
    return [
        tuple((first + position) % ranks for position in range(late_count))
        for first in range(ranks)
    ]


def late_s(rank: int, late: tuple[int, ...]) -> float:
    """How long ``rank`` sleeps before a case when the ranks ``late`` come one after the other."""
    return LATE_S * (late.index(rank) + 1) if rank in late else 0.0


def _executor(
    verified: Verified,
    late: tuple[int, ...],
    device: str,
    store: Store,
    rank: int,
    world_size: int,
) -> str:
    def reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        return executor.submit(tensor, average=average).wait()

    with ExitStack() as stack:
        if device != "cpu":  # its process groups need a default one
            default_store = PrefixStore("default", store)
            stack.enter_context(_process_group(default_store, rank, world_size, kind="nccl"))
        executor = Executor(
            verified, store, rank, world_size, device=device, late=late, timeout_s=TIMEOUT_S
        )
        stack.enter_context(closing(executor))
        return _cases(reduce, store, rank, world_size, device=device, late_s=late_s(rank, late))


def _backend(
    verified: Verified,
    late: tuple[int, ...],
    device: str,
    store: Store,
    rank: int,
    world_size: int,
) -> str:
    configure(verified, late=late)
    with _process_group(store, rank, world_size):
        return _cases(
            _all_reduce, store, rank, world_size, device=device, late_s=late_s(rank, late)
        )


def _engine(options: Options, store: Store, rank: int, world_size: int) -> str:
    engine = OptiReduceEngine(store, rank, world_size, options=options, timeout_s=TIMEOUT_S)

    def reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        submit = engine.submit if tensor.dtype in FLOATS else engine.reliable.submit
        return submit(tensor, average=average).wait(timedelta(seconds=TIMEOUT_S))

    with closing(engine):
        cases, lost = _audited(reduce, engine.ledger, options, store, rank, world_size)
        return f"{cases}, {engine.ledger.totals['steps']} over UBT, {lost} ({engine.how})"


def _optireduce_backend(store: Store, rank: int, world_size: int) -> str:
    def reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
        carried = tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor  # as Gloo does
        return _all_reduce(carried, average).to(tensor.dtype)

    configure(algorithm="optireduce", options=OPTIREDUCE)
    with _process_group(store, rank, world_size) as group:
        ledger = group.engine.ledger
        cases, lost = _audited(reduce, ledger, OPTIREDUCE, store, rank, world_size)
        return f"{cases}, {lost}, {dict(group.paths)}"


def _audited(
    reduce: conformance.AllReduce,
    stats: LossStats,
    options: Options,
    store: Store,
    rank: int,
    world_size: int,
) -> tuple[str, str]:
    """How many cases passed, and what was lost."""
    records = list[Missing]()
    stats.missing = records
    audit_store = PrefixStore("audit", store)
    audit = Audit(records, options.payload_bytes, audit_store, rank, world_size)
    cases = _cases(reduce, store, rank, world_size, check=audit)
    return cases, audit.losses()


def _cases(
    reduce: conformance.AllReduce, store: Store, rank: int, world_size: int, **options: Any
) -> str:
    """How many cases passed; ``options`` are those of :func:`conformance.run`."""
    count = conformance.run(reduce, PrefixStore("cases", store), rank, world_size, **options)
    return f"{count} cases"


@contextmanager
def _process_group(
    store: Store, rank: int, world_size: int, *, kind: str = backend.BACKEND
) -> Iterator[Any]:
    limit = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(kind, store=store, rank=rank, world_size=world_size, timeout=limit)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _all_reduce(tensor: torch.Tensor, average: bool) -> torch.Tensor:
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG if average else dist.ReduceOp.SUM)
    return tensor
