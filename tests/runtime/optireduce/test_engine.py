"""The engine over real sockets: right without loss, bounded with it, and dead ranks are named."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch

from runtime.optireduce.engine import Engine
from runtime.optireduce.options import Options
from tests.runtime.spawning import spawn, values

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
    store.set(f"done/{rank}", "")
    store.wait([f"done/{r}" for r in range(size)], WAIT)
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
    options = Options(warmup_steps=2, settle_steps=0, bound_floor_s=10.0, hadamard="off")
    results = values(spawn(_sums, 3, options, cases, timeout_s=100))
    for found, lost, reliable in results:
        assert lost == 0
        assert reliable == 6
        assert all(error < 4 for error, _ in found)
    for ranks in zip(*(found for found, _, _ in results), strict=True):
        assert len({bits for _, bits in ranks}) == 1


def _dies(rank, size, store):
    engine = Engine(store, rank, size, options=QUICK, timeout_s=30)
    engine.submit(torch.ones(1000)).wait(WAIT)
    if rank == 1:
        os._exit(0)
    began = time.monotonic()
    try:
        for _ in range(50):
            engine.submit(torch.ones(1000)).wait(WAIT)
    except Exception as error:
        engine.close()
        return type(error).__name__, getattr(error, "ranks", ()), time.monotonic() - began
    return "nothing", (), 0.0


def test_a_dead_rank_is_named_by_all_others():
    outcomes = spawn(_dies, 3, timeout_s=100)
    assert not outcomes[1].finished
    for rank in (0, 2):
        kind, ranks, seconds = values([outcomes[rank]])[0]
        assert (kind, tuple(ranks)) == ("RankFailure", (1,))
        assert seconds < 60
