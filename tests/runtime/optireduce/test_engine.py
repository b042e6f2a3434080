"""The engine over real sockets: right without loss, bounded with it, and dead ranks are named."""

from __future__ import annotations

import os
import signal
import socket
import threading
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

import runtime
from runtime.optireduce.engine import Engine
from runtime.optireduce.options import Options
from tests.runtime.spawning import spawn, together, values
from verify.errors import ArgumentError, RankFailure

WAIT = timedelta(seconds=40)
QUICK = Options(warmup_steps=0, bound_s=5.0, dead_s=3.0)


def _data(rank, step, numel, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(numel, generator=generator).to(dtype)


def _sums(rank, size, store, options, cases):
    """(largest error relative to rounding, bits) of each case, all in flight together."""
    engine = Engine(store, rank, size, options=options, timeout_s=30)
    found = []
    for step, (numel, dtype, average) in enumerate(cases):
        tensors = [_data(rank, 10 * step + i, numel, dtype) for i in range(3)]
        operations = [engine.submit(t, average=average, last=i == 2) for i, t in enumerate(tensors)]
        for i, operation in enumerate(operations):
            operation.wait(WAIT)
            wide = torch.stack(
                [_data(r, 10 * step + i, numel, dtype).double() for r in range(size)]
            )
            right = wide.mean(0) if average else wide.sum(0)
            scale = torch.finfo(dtype).eps * size * (1 if average else size)
            error = (tensors[i].double() - right).abs().max().item() / scale if numel else 0.0
            found.append((error, tensors[i].view(torch.uint8).numpy().tobytes()))
    lost = engine.ledger.totals["lost"]
    together(store, rank, size, "done")
    engine.close()
    return found, lost, engine.ledger.reliable


def test_sums_are_right_and_equal_on_all_ranks():
    cases = [
        (0, torch.float32, True),
        (1, torch.float32, False),
        (1000, torch.bfloat16, True),
        (70_001, torch.float16, True),
        (300_000, torch.float32, False),
        (5000, torch.float64, True),
    ]
    options = Options(warmup_steps=2, reliable_steps=1, bound_floor_s=10.0, hadamard="off")
    results = values(spawn(_sums, 3, options, cases, timeout_s=100))
    for found, lost, reliable in results:
        assert lost == 0
        assert reliable == 3
        assert all(error < 4 for error, _ in found)
    for ranks in zip(*(found for found, _, _ in results), strict=True):
        assert len({bits for _, bits in ranks}) == 1


def _dies(rank, size, store, how):
    engine = Engine(store, rank, size, options=QUICK, timeout_s=30)
    engine.submit(torch.ones(1000)).wait(WAIT)
    store.set(f"pid/{rank}", str(os.getpid()))
    if rank == 1:
        os.kill(os.getpid(), how)
    try:
        for _ in range(50):
            engine.submit(torch.ones(1000)).wait(WAIT)
    except RankFailure as error:
        store.set(f"raised/{rank}", "")
        store.wait(["raised/0", "raised/2"], WAIT)
        if rank == 0 and how == signal.SIGSTOP:
            os.kill(int(store.get("pid/1")), signal.SIGKILL)
        engine.close()
        return error.ranks
    return ()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_is_named_by_all_others(how):
    outcomes = spawn(_dies, 3, how, timeout_s=100)
    assert not outcomes[1].finished
    assert values([outcomes[0], outcomes[2]]) == [(1,), (1,)]


def _floods(rank, size, store):
    """Rank 2 floods rank 0, while all three go on; (worst of 20 results, dropped, by whom)"""
    options = Options(warmup_steps=0, bound_s=1.0, dead_s=20.0)
    engine = Engine(store, rank, size, options=options, timeout_s=30)
    over = threading.Event()
    if rank == 2:
        stale = np.zeros((1, options.datagram_bytes), np.uint8)
        codec = engine._carrier.node.codec
        codec.data(stale, stale[0], 0, 9, stage=0, receiver=0, operation=2**63 + 5)

        def flood():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as attacker:
                while not over.is_set():
                    for data in (b"noise", os.urandom(1472), stale.tobytes()):
                        attacker.sendto(data, engine._meeting.addresses[0])
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
    node = engine._carrier.node
    found = worst, dict(node.counts), dict(node.by_sender)
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
    tensor = torch.arange(5000.0) * (rank + 1)
    dist.all_reduce(tensor)
    largest = torch.tensor(rank)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    paths = dict(dist.group.WORLD.paths)
    dist.destroy_process_group()
    return torch.equal(tensor, torch.arange(5000.0) * 6), largest.item(), paths


def test_the_backend_carries_what_it_can_and_counts_the_rest():
    for right, largest, paths in values(spawn(_backend, 3, timeout_s=60)):
        assert right
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
