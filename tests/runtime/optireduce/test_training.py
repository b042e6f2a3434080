"""DDP over UBT: trains under loss, drift is measured and undone, too much loss stops it."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime
from latecomer.runtime.ddp import attach
from latecomer.runtime.optireduce.options import Options
from tests.runtime.optireduce.simulation import lose
from tests.runtime.spawning import on_ranks, together

STEPS = 40


def _training(rank, size, store, options, share):
    """(model, attachment, the loss of each step), over UBT that loses so large a share."""
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    model = DistributedDataParallel(module, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attachment = attach(
        model, algorithm="optireduce", options=options, optimizer=optimizer, timeout_s=60
    )
    lose(share, rank)
    dice = torch.Generator().manual_seed(rank)
    target = torch.linspace(-1, 1, 16)

    def steps():
        for _ in range(STEPS):
            x = torch.randn(32, 16, generator=dice)
            optimizer.zero_grad()
            loss = (model(x).squeeze(1) - torch.tanh(x @ target)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss.item()

    return model, attachment, steps()


@on_ranks(3, timeout_s=110)
def test_training_goes_on_under_loss_and_replicas_end_equal(rank, size, store):
    options = Options(
        warmup_steps=6,
        bound_floor_s=4.0,  # a busy machine pauses for longer than a usual bound
        resync_steps=16,
        hadamard_above=0.02,
        datagram_bytes=256,
        dead_s=20.0,
    )
    model, attachment, steps = _training(rank, size, store, options, 0.05)
    with runtime.watch() as watched:
        losses = list(steps)
    assert sum(losses[-5:]) < 0.4 * sum(losses[:5])
    assert attachment.resync() > 0
    assert attachment.replicas.resyncs == 3  # steps 22, 38 and the last

    ledger = attachment.ledger
    lost_share = ledger.loss(STEPS)
    assert 0.01 < lost_share < options.stop_loss
    assert not ledger.steps[0].hadamard  # it is not decided yet
    assert ledger.steps[-1].hadamard
    assert "t_B ms" in ledger.table()
    assert '"hadamard": true' in ledger.json()

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    store.set(f"bits {rank}", hashlib.sha256(flat.numpy().tobytes()).hexdigest())
    store.set(f"loss {rank}", repr(lost_share))
    together(store, rank, size, "over")
    attachment.close()
    assert store.get(f"bits {rank}") == store.get("bits 0")

    lost_shares = [float(store.get(f"loss {peer}")) for peer in range(size)]
    _check_watched(watched, lost_shares, steps_over_ubt=STEPS - options.reliable_steps)


def _check_watched(watched, lost_shares, steps_over_ubt):
    """What was watched agrees with what the ranks know of their losses, and is complete."""
    summary = watched.summary()
    ways = summary.ways
    assert [line.loss for line in summary.losses.ranks] == pytest.approx(lost_shares)
    assert len(summary.losses.steps) == steps_over_ubt
    assert set(ways) == {"TAR over TCP", "TAR over UBT"}

    assert {line.uncertainty_s for line in summary.lines} == {0.0}  # they read one clock
    for report in watched.ranks:
        assert len(report.records) == sum(ways.values())
        assert report.dropped == 0
        assert len(report.stages) == 2 * ways["TAR over UBT"]


@on_ranks(2, timeout_s=110)
def test_too_much_loss_stops_with_an_error_that_says_so(rank, size, store):
    options = Options(
        warmup_steps=4,
        warmup_bound_s=0.1,
        bound_floor_s=0.1,
        absence_s=1.0,
        stop_window=3,
        datagram_bytes=256,
        dead_s=30.0,  # a process that waits for a processor is not dead
    )

    _, attachment, steps = _training(rank, size, store, options, 0.97)
    with pytest.raises(RuntimeError) as raised:
        list(steps)
    error = attachment.engine.failure
    assert str(error).split("\n", 1)[0] in str(raised.value)

    store.set(f"error {rank}", type(error).__name__)
    together(store, rank, size, "over")
    attachment.close()
    errors = {store.get(f"error {peer}").decode() for peer in range(size)}
    assert {"LossExceeded"} <= errors <= {"LossExceeded", "RankFailure"}
