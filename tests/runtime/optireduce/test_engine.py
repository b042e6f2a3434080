"""The engine over real sockets: right in all that arrived, and dead ranks are named."""

from __future__ import annotations

import os
import socket
import threading
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

import runtime
from runtime.optireduce.engine import Engine
from runtime.optireduce.options import Options
from runtime.optireduce.udp.datagram import Header
from runtime.selftest.audit import expected
from tests.runtime.spawning import spawn, together, values
from verify.errors import ArgumentError

WAIT = timedelta(seconds=300)
QUICK = Options(warmup_steps=0, bound_s=5.0, dead_s=3.0)


def _data(rank, step, numel, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(numel, generator=generator).to(dtype)


def _sums(rank, size, store, options, cases):
    """(the bytes of each result, what is missing of it, operations over TCP)

    All of a case are in flight together.
    """
    engine = Engine(store, rank, size, options=options, timeout_s=30)
    engine.ledger.missing = []
    tensors = []
    for step, (numel, dtype, average) in enumerate(cases):
        three = [_data(rank, 10 * step + i, numel, dtype) for i in range(3)]
        operations = [engine.submit(t, average=average, last=i == 2) for i, t in enumerate(three)]
        for operation in operations:
            operation.wait(WAIT)
        tensors += [t.view(torch.uint8).numpy() for t in three]
    together(store, rank, size, "done")
    engine.close()
    reliable, totals = engine.ledger.reliable, engine.ledger.totals
    assert totals["lost"] == sum(record.lost for record in engine.ledger.missing)
    return tensors, engine.ledger.missing, reliable


def test_sums_are_what_follows_from_what_arrived():
    cases = [(0, torch.float32, True), (1, torch.float32, False), (1000, torch.bfloat16, True),
             (70_001, torch.float16, True), (300_000, torch.float32, False)]  # fmt: skip
    options = Options(warmup_steps=2, reliable_steps=1, bound_floor_s=10.0, hadamard="off")
    results = values(spawn(_sums, 3, options, cases, timeout_s=100))
    assert [reliable for _, _, reliable in results] == [3] * 3
    for number in range(3, 3 * len(cases)):
        numel, dtype, average = cases[number // 3]
        inputs = [_data(r, 10 * (number // 3) + number % 3, numel, dtype) for r in range(3)]
        told = [missing[number - 3] for _, missing, _ in results]
        wide = torch.stack(inputs).double()
        right = wide.mean(0) if average else wide.sum(0)
        scale = torch.finfo(dtype).eps * 3 * (1 if average else 3)
        for rank, (tensors, _, _) in enumerate(results):
            found = torch.from_numpy(tensors[number]).view(dtype)
            payload = options.payload_bytes
            follows = expected(inputs, told, rank, average=average, payload=payload)
            assert torch.equal(found, follows)
            if not any(record.lost for record in told):
                assert ((found.double() - right).abs() < 4 * scale).all()


def _floods(rank, size, store):
    """Rank 2 floods rank 0, while all three go on; (worst of 20 results, dropped, by whom)"""
    options = Options(warmup_steps=0, bound_s=1.0, dead_s=20.0)
    engine = Engine(store, rank, size, options=options, timeout_s=30)
    over = threading.Event()
    if rank == 2:
        stale = np.zeros((1, options.datagram_bytes), np.uint8)
        codec = engine._loop.protocol.codec
        codec.data(stale, stale[0], 0, 9, Header(0, 0, 2**63 + 5))

        def flood():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
                while not over.is_set():
                    for data in (b"noise", os.urandom(1472), stale.tobytes()):
                        attacker.sendto(data, engine._session.addresses[0])
                    over.wait(0.001)  # more than a machine can take in would be loss

        threading.Thread(target=flood, daemon=True).start()
    worst = 0.0
    for _ in range(20):
        tensor = torch.full((20_000,), rank + 1.0)
        engine.submit(tensor, average=True).wait(WAIT)
        # every element is a mean of contributions, its own among them, or its own
        worst = max(worst, tensor.max().item() - 3, 1 - tensor.min().item())
    together(store, rank, size, "over")
    over.set()
    ledger = engine.ledger
    found = worst, dict(ledger.dropped), dict(ledger.dropped_from)
    engine.close()
    return found


def test_a_flood_is_counted_and_does_not_hold_up_or_corrupt_anything():
    results = values(spawn(_floods, 3, timeout_s=110))
    assert all(worst <= 1e-6 for worst, _, _ in results)
    _, dropped, by_sender = results[0]
    assert dropped["malformed"] > 0
    assert max(by_sender, key=by_sender.get)[0] == 2


def _backend(rank, size, store):
    runtime.configure(algorithm="optireduce", options=QUICK)
    dist.init_process_group("latecomer", store=store, rank=rank, world_size=size, timeout=WAIT)
    group = dist.group.WORLD
    group.engine.ledger.missing = []
    tensor = torch.arange(5000.0) * (rank + 1)
    dist.all_reduce(tensor)
    (missing,) = group.engine.ledger.missing
    largest = torch.tensor(rank)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    paths = dict(group.paths)
    dist.destroy_process_group()
    return tensor.numpy(), missing, largest.item(), paths


def test_the_backend_carries_what_it_can_and_counts_the_rest():
    results = values(spawn(_backend, 3, timeout_s=60))
    inputs = [torch.arange(5000.0) * (rank + 1) for rank in range(3)]
    told = [missing for _, missing, _, _ in results]
    for rank, (found, _, largest, paths) in enumerate(results):
        tensor, payload = torch.from_numpy(found), QUICK.payload_bytes
        right = expected(inputs, told, rank, average=False, payload=payload)
        assert torch.equal(tensor, right)
        assert any(record.lost for record in told) or torch.equal(tensor, inputs[0] * 6)
        assert largest == 2
        assert paths == {"optireduce": 1, "operation MAX": 1}


def _differ(rank, size, store):
    options = Options(warmup_steps=0, bound_s=1.0 + rank)
    try:
        Engine(store, rank, size, options=options, timeout_s=20)
    except ArgumentError as error:
        return str(error)
    return "started"


def test_ranks_with_other_options_refuse_to_start():
    for said in values(spawn(_differ, 2, timeout_s=60)):
        assert "Give all ranks the same options" in said
