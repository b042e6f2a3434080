"""The engine for devices, all of it, with Gloo and simulated streams in place of NCCL and CUDA's.

Nothing of it is replaced here: what stays untested are NCCL's and CUDA's own parts.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from latecomer import runtime
from latecomer.runtime import Executor, load
from latecomer.runtime.device.simulated import SimulatedDevice
from latecomer.runtime.executor.nccl.groups import make_groups
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.selftest import conformance
from latecomer.runtime.torch_versions import PrefixStore
from latecomer.runtime.work import Observer
from latecomer.verify import Phase, Schedule, Transfer
from latecomer.verify.errors import ArgumentError, RankFailure
from tests.runtime import schedules
from tests.runtime.spawning import default_group, on_ranks, python, spawn, together, values

pytestmark = pytest.mark.gpu_logic  # they start ranks, several times

LIMIT = timedelta(seconds=60)


def _two_late():
    """Ranks 2 and 3 come one after the other; rank 0 sums chunk 0, rank 1 chunk 1."""

    def transfer(text):
        """From source, destination, chunk, r(educe) or c(opy)."""
        src, dst, chunk, op = text
        return Transfer(int(src), int(dst), int(chunk), {"r": "reduce", "c": "copy"}[op])

    def rounds(*texts):
        return tuple(tuple(map(transfer, text.split())) for text in texts)

    phases = (
        Phase("helpers", (2, 3), rounds("100r 011r")),
        Phase("second", (3,), rounds("200r", "211r")),
        Phase("all", (), rounds("300r", "311r 020c", "131c 010c", "121c 030c", "101c")),
    )
    return Schedule(ranks=4, chunks=2, late=(2, 3), phases=phases)


KINDS = {
    "straggler": schedules.straggler(4, m=2),
    "ring": schedules.ring(4),
    "direct": schedules.direct(4),
    "two late": _two_late(),
}


def _executor(rank, size, store, *kinds, backend="gloo", timeout_s=60.0, **options):
    """With a device of its own, under a default group of all ranks."""
    if not dist.is_initialized():
        default_group(backend, rank, size, store)
    return Executor(
        [load(schedule) for schedule in kinds],
        PrefixStore("executor", store),
        rank,
        size,
        device=SimulatedDevice(),
        timeout_s=timeout_s,
        **options,
    )


def _model(schedule, tensors, average=False):
    """The sum as the schedule has it, round by round: bit by bit what every rank must get."""
    n = schedule.ranks
    k = schedule.chunks
    numel = tensors[0].numel()
    bounds = [numel * chunk // k for chunk in range(k + 1)]
    start = {}
    for rank, tensor in enumerate(tensors):
        contribution = tensor / n if average else tensor
        for chunk in range(k):
            start[rank, chunk] = contribution[bounds[chunk] : bounds[chunk + 1]]

    sums = schedules.by_rounds(schedule, start, torch.add)

    return torch.cat([sums[0, chunk] for chunk in range(k)])


@dataclass(frozen=True)
class _Case:
    """An all-reduce by one of the executor's schedules."""

    schedule: int
    late: tuple[int, ...] | None
    numel: int
    dtype: torch.dtype
    average: bool

    def tensors(self, size, seed):
        """What each rank contributes; every rank knows all of it, and so what the sum must be."""
        data = torch.Generator().manual_seed(seed)
        return [torch.randn(self.numel, generator=data).to(self.dtype) for _ in range(size)]


def _cases(size):
    for index, schedule in enumerate(KINDS.values()):
        for turn in range(size if schedule.late else 1):
            late = tuple((turn + i) % size for i in range(len(schedule.late)))
            yield _Case(index, late or None, 7, torch.bfloat16, average=False)
            yield _Case(index, late or None, 1001, torch.float32, average=True)


@on_ranks(4)
def test_every_schedule_gives_the_models_bits_whoever_is_late(rank, size, store):
    """Up to a dozen operations in flight, with kernels before them that take their time."""
    executor = _executor(rank, size, store, *KINDS.values())
    dice = random.Random(rank)
    cases = list(_cases(size))
    contributions = [case.tensors(size, seed) for seed, case in enumerate(cases)]

    def submit(case, own):
        tensor = torch.empty_like(own)
        delay_s = 0.004 * dice.random()
        stream = executor.streams.current()
        stream.launch(lambda: time.sleep(delay_s))
        stream.launch(lambda: tensor.copy_(own))
        return executor.submit(tensor, schedule=case.schedule, late=case.late, average=case.average)

    works = []
    for case, tensors in zip(cases, contributions, strict=True):
        works.append(submit(case, tensors[rank]))
    for case, tensors, work in zip(cases, contributions, works, strict=True):
        schedule = executor.schedules[case.schedule].for_late(case.late)
        expected = _model(schedule, tensors, case.average)
        assert torch.equal(work.wait(LIMIT), expected), case

    def all_reduce(tensor, average):
        return executor.submit(tensor, average=average).wait(LIMIT)

    cases_store = PrefixStore("cases", store)
    assert conformance.run(all_reduce, cases_store, rank, size, sizes=(0, 1, 7)) == 51
    executor.close()


@on_ranks(3)
def test_some_ranks_of_the_backend_have_an_engine_and_graphs_of_their_own(rank, size, store):
    """Under the default group ``latecomer``; a graph is captured, replayed, and refused."""
    runtime.configure(schedules.ring(3))
    default_group("latecomer", rank, size, store)
    if rank == 0:
        return
    swapping = schedules.swapping()
    executor = _executor(rank - 1, 2, PrefixStore("some", store), swapping)
    device = executor.streams
    tensor = torch.zeros(5)

    def refused(text):
        with device.capture("thread_local"), pytest.raises(ArgumentError, match=text):
            executor.submit(tensor)

    refused("has not run before")

    gate = threading.Event()
    device.current().launch(gate.wait)
    work = executor.submit(tensor)
    refused("in flight")
    gate.set()
    work.wait(LIMIT)

    with device.capture() as graph:
        captured = executor.submit(tensor)
        assert captured.future().wait() is tensor
    data = torch.Generator()
    for step in range(3):
        data.manual_seed(step)
        tensors = [torch.randn(5, generator=data) for _ in range(2)]
        tensor.copy_(tensors[rank - 1])
        graph.replay()
        device.synchronize()
        assert torch.equal(tensor, _model(swapping, tensors))
    assert executor.submit(torch.ones(3)).wait(LIMIT).tolist() == [2.0] * 3
    executor.close()


class _TellsTheStore(Observer):
    """Says in the store which steps have ended."""

    def __init__(self, store, rank):
        self._store = store
        self._rank = rank

    def step_ends(self, operation, phase, round):
        self._store.set(f"{self._rank} {operation} {phase} {round}", "")


@on_ranks(4)
def test_helpers_go_on_with_the_next_operation_while_the_late_rank_is_missing(rank, size, store):
    """Rank 3's device comes only when the helpers have reduced both operations; no host waits."""
    schedule = KINDS["straggler"]
    executor = _executor(rank, size, store, schedule, observer=_TellsTheStore(store, rank))
    last_round = len(schedule.phases[0].rounds) - 1
    keys = [
        f"{helper} {operation} reduce_scatter {last_round}"
        for helper in range(3)
        for operation in range(2)
    ]
    if rank == 3:
        executor.streams.current().launch(lambda: store.wait(keys))

    works = [executor.submit(torch.full((50,), float(rank))) for _ in range(2)]
    assert [work.wait(LIMIT)[7].item() for work in works] == [6.0, 6.0]
    executor.close()


def _lost(rank, size, store, victim, fault):
    """Whom a survivor names when the victim dies, or its device hangs or breaks."""
    executor = _executor(rank, size, store, KINDS["straggler"], timeout_s=4.0)
    executor.submit(torch.ones(50)).wait(LIMIT)
    together(store, rank, size, "begun")
    if rank == victim and fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == victim and fault == "hangs":
        executor.streams.current().launch(threading.Event().wait)
    if rank == victim and fault == "breaks":
        executor.streams.current().launch(lambda: 1 / 0)

    with pytest.raises(RankFailure) as failed:
        executor.submit(torch.ones(50)).wait(LIMIT)
    with pytest.raises(RankFailure):
        executor.submit(torch.ones(50)).wait(LIMIT)
    executor.close()
    return failed.value.ranks


@pytest.mark.parametrize("fault", ["dies", "hangs", "breaks"])
def test_a_rank_or_a_device_that_is_lost_is_named_by_all(fault):
    victims = [1] if fault == "dies" else []
    outcomes = spawn(_lost, 4, 1, fault, timeout_s=60, victims=victims)
    if victims:
        del outcomes[1]
    assert values(outcomes) == [(1,)] * len(outcomes)


def test_without_a_default_group_the_remedy_is_named():
    alone = StoreExchange(dist.HashStore(), 0, 1, 1.0)
    with pytest.raises(ArgumentError, match="init_process_group"):
        make_groups(SimulatedDevice(), alone, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_selftest_on_cuda():
    result = python("-m", "latecomer", "selftest", "--device", "cuda", "--ranks", "4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout
