"""The engine: right in all that arrived; what ends it names the dead rank."""

from __future__ import annotations

import os
import signal
import socket
import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore

from latecomer import runtime
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.sync import Replicas
from latecomer.runtime.optireduce.udp.events import Burst, DatagramHeader
from latecomer.runtime.selftest.audit import Audit
from latecomer.runtime.selftest.conformance import Case
from latecomer.verify.errors import ArgumentError, RankFailure
from tests.runtime.simulated import NEVER_S, blamed_by, die, on_hosts, stop
from tests.runtime.spawning import on_ranks, together

SIZE = 3
VICTIM = 1
WAIT = timedelta(seconds=300)  # against hangs, no claim on speed
WARM = Options(warmup_steps=60, reliable_steps=59, dead_s=90.0)
OVER_UBT = Options(warmup_steps=0, bound_s=5.0, dead_s=90.0)
"""What UBT suspects takes longer than the test: it is not what notices."""
CASES = [
    Case(torch.float32, 0, average=True, exact=False),
    Case(torch.float32, 1, average=False, exact=False),
    Case(torch.bfloat16, 1000, average=True, exact=False),
    Case(torch.float16, 70_001, average=True, exact=False),
    Case(torch.float32, 300_000, average=False, exact=False),
]


@on_ranks(SIZE, timeout_s=100)
def test_sums_are_what_follows_from_what_arrived(rank, size, store):
    """Three operations are in flight together; those of the first step go over TCP."""
    options = Options(warmup_steps=2, reliable_steps=1, bound_floor_s=10.0, hadamard="off")
    engine = OptiReduceEngine(store, rank, size, options=options, timeout_s=30)
    engine.ledger.missing = []
    audited = []
    audit = Audit(audited, options.payload_bytes, PrefixStore("audit", store), rank, size)
    for step, case in enumerate(CASES):
        dice = torch.Generator().manual_seed(step)
        inputs = torch.randn(3, size, case.numel, generator=dice).to(case.dtype)
        tensors = [tensor.clone() for tensor in inputs[:, rank]]
        works = []
        for number, tensor in enumerate(tensors):
            works.append(engine.submit(tensor, average=case.average, last=number == 2))
        for work in works:
            work.wait(WAIT)

        for contributions, result in zip(inputs, tensors, strict=True):
            if step > 0:  # nothing is recorded of what went over TCP
                audited.append(engine.ledger.missing.pop(0))
            audit(case, list(contributions), result)
    together(store, rank, size, "done")
    engine.close()
    assert engine.failure is None
    assert engine.ledger.reliable == 3
    assert engine.ledger.totals["lost"] == audit.lost[rank]


@on_ranks(SIZE, timeout_s=110)
def test_a_flood_is_counted_and_does_not_hold_up_or_corrupt_anything(rank, size, store):
    """Rank 2 floods rank 0, while all three go on."""
    options = Options(warmup_steps=0, bound_s=1.0, dead_s=20.0)
    engine = OptiReduceEngine(store, rank, size, options=options, timeout_s=30)
    over = threading.Event()
    if rank == 2:
        header = DatagramHeader(stage=0, receiver=0, operation=2**63 + 5)
        source = np.zeros(options.payload_bytes, np.uint8)
        burst = Burst(header, source, first=0, marks_from=9, passed=np.zeros(1, np.int64))
        (stale,) = engine._loop.endpoint.placer.codec.burst(burst)

        def flood():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
                while not over.is_set():
                    for data in (b"noise", os.urandom(1472), stale.tobytes()):
                        attacker.sendto(data, engine._session.addresses[0])
                    over.wait(0.001)  # more than a machine can take in would be loss

        threading.Thread(target=flood, daemon=True).start()
    for _ in range(20):
        tensor = torch.full((20_000,), rank + 1.0)
        engine.submit(tensor, average=True).wait(WAIT)
        # every element is a mean of contributions, its own among them, or its own
        assert 1 - 1e-6 <= tensor.min() <= tensor.max() <= 3 + 1e-6
    together(store, rank, size, "over")
    over.set()
    if rank == 0:
        by_sender = engine.ledger.dropped_from
        assert engine.ledger.dropped["malformed"] > 0
        assert 2 in {sender for sender, *_ in by_sender}  # who floods is among those named
    engine.close()


@on_ranks(SIZE)
def test_the_backend_carries_what_it_can_and_counts_the_rest(rank, size, store):
    runtime.configure(algorithm="optireduce", options=OVER_UBT)
    dist.init_process_group("latecomer", store=store, rank=rank, world_size=size, timeout=WAIT)
    group = dist.group.WORLD
    records = []
    group.engine.ledger.missing = records

    inputs = [torch.arange(5000.0) * (peer + 1) for peer in range(size)]
    tensor = inputs[rank].clone()
    dist.all_reduce(tensor)
    audit = Audit(records, OVER_UBT.payload_bytes, PrefixStore("audit", store), rank, size)
    audit(Case(tensor.dtype, 5000, average=False, exact=True), inputs, tensor)

    largest = torch.tensor(rank)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    assert largest == 2
    assert dict(group.paths) == {"optireduce": 1, "operation MAX": 1}
    dist.destroy_process_group()


@on_ranks(SIZE, timeout_s=100, victims={VICTIM})
def test_a_process_that_is_killed_is_named(rank, size, store):
    """Real processes; the tests below have the other faults, on simulated hosts."""
    options = replace(OVER_UBT, dead_s=3.0)
    engine = OptiReduceEngine(store, rank, size, options=options, timeout_s=30.0)
    engine.submit(torch.ones(1000)).wait(WAIT)
    together(store, rank, size, "started")
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    assert blamed_by(engine, elements=1000, operations=50) == (VICTIM,)


def _simulated(rank, size, store, options, timeout_s):
    """An engine on a simulated host: the compiled data path hands addresses to system calls."""
    options = replace(options, compiled="off")
    return OptiReduceEngine(store, rank, size, options=options, timeout_s=timeout_s)


def test_ranks_with_other_options_refuse_to_start():
    def body(rank, size, store):
        options = Options(warmup_steps=0, bound_s=1.0 + rank)
        with pytest.raises(ArgumentError, match="Give all ranks the same options"):
            _simulated(rank, size, store, options, 20.0)

    on_hosts(2, lambda job: body)


@pytest.mark.parametrize("fault", [die, partial(stop, for_s=NEVER_S)], ids=["dies", "stops"])
@pytest.mark.parametrize(
    ("options", "timeout_s"),
    [(WARM, 8.0), (replace(OVER_UBT, dead_s=3.0), 30.0)],
    ids=["over TCP", "over UBT"],
)
def test_a_lost_rank_is_named_and_what_comes_later_fails_alike(options, timeout_s, fault):
    def made(job):
        def body(rank, size, store):
            engine = _simulated(rank, size, store, options, timeout_s)
            engine.submit(torch.ones(1000)).wait()
            together(store, rank, size, "all have reduced once")
            if rank == VICTIM:
                fault(job, rank)
            blamed = blamed_by(engine, elements=1000, operations=50)
            with pytest.raises(RankFailure) as again:
                engine.submit(torch.ones(9))
            assert again.value is engine.failure
            return blamed

        return body

    for outcomes in on_hosts(SIZE, made, victims=[VICTIM]):
        assert {outcomes[rank].result for rank in range(SIZE) if rank != VICTIM} == {(VICTIM,)}


def test_what_is_open_over_ubt_ends_when_a_resync_finds_a_rank_dead():
    def made(job):
        def body(rank, size, store):
            options = replace(OVER_UBT, absence_s=300.0)
            engine = _simulated(rank, size, store, options, 8.0)
            engine.submit(torch.ones(1000)).wait()
            together(store, rank, size, "all have reduced once")
            replicas = Replicas([nn.Parameter(torch.ones(100))], engine.reliable)
            if rank == VICTIM:
                die(job, rank)
            work = engine.submit(torch.ones(1000))
            with pytest.raises(RankFailure) as failed:
                replicas.resync()
            with pytest.raises(RankFailure) as ended:
                work.wait()
            assert ended.value is failed.value is engine.failure
            engine.close()
            return ended.value.ranks

        return body

    for outcomes in on_hosts(SIZE, made, victims=[VICTIM]):
        assert {outcomes[rank].result for rank in range(SIZE) if rank != VICTIM} == {(VICTIM,)}
