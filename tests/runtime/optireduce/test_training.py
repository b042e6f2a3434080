"""DDP over UBT: trains under loss, drift is measured and undone, too much loss stops it."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import runtime
from runtime.ddp import attach
from runtime.optireduce.options import Options
from runtime.optireduce.reliable import Reliable
from runtime.optireduce.replicas import Replicas
from tests.runtime.optireduce.faults import lose
from tests.runtime.spawning import spawn, together, values

STEPS = 40
AFTER = 2
"""Steps after the last re-synchronization of the training's own."""
OPTIONS = Options(
    warmup_steps=6,
    bound_floor_s=4.0,  # a busy machine pauses for longer than a usual bound
    resync_steps=16,
    hadamard_above=0.02,
    datagram_bytes=256,
    dead_s=20.0,
)


def _bits(model):
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


def _train(rank, size, store, options, share):
    """(first and last loss, bits after the last resync, drift, ledger's JSON table, error)"""
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
    net = nn.Sequential(*layers)
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attachment = attach(
        model, algorithm="optireduce", options=options, optimizer=optimizer, timeout_s=60
    )
    lose(share, rank)
    dice, target = torch.Generator().manual_seed(rank), torch.linspace(-1, 1, 16)
    losses, error = [], None
    with runtime.watch() as watched:
        for _ in range(STEPS):
            x = torch.randn(32, 16, generator=dice)
            optimizer.zero_grad()
            loss = (model(x).squeeze(1) - torch.tanh(x @ target)).square().mean()
            try:
                loss.backward()
            except RuntimeError:
                error = attachment.engine.failure
                break
            optimizer.step()
            losses.append(loss.item())
    drift = bits = None
    if error is None:
        drift = attachment.resync()
        bits = _bits(net)
    ledger = attachment.ledger
    together(store, rank, size, "over")
    attachment.close()
    return {
        "losses": losses,
        "bits": bits,
        "drift": drift,
        "loss": ledger.loss(STEPS),
        "since": sum(sum(record.lost) for record in list(ledger.steps)[-AFTER:]),
        "table": ledger.table() + ledger.prometheus() + ledger.json(),
        "hadamard": [record.hadamard for record in ledger.steps],
        "error": type(error).__name__,
        "watched": (watched.ranks, watched.summary()),
        "resyncs": attachment.replicas.resyncs,
    }


def test_training_goes_on_under_loss_and_replicas_end_equal():
    results = values(spawn(_train, 3, OPTIONS, 0.05, timeout_s=110))
    for found in results:
        assert 0.01 < found["loss"] < OPTIONS.stop_loss
        assert sum(found["losses"][-5:]) < 0.4 * sum(found["losses"][:5])
        assert found["drift"] > 0
        assert found["resyncs"] == 3  # steps 22, 38 and the last
        assert found["hadamard"][0] is False  # not decided yet
        assert found["hadamard"][-1] is True
        assert "latecomer_optireduce_loss" in found["table"]
        ranks, summary = found["watched"]
        assert [line.loss for line in summary.losses.ranks] == [
            pytest.approx(each["loss"]) for each in results
        ]
        assert len(summary.losses.steps) == STEPS - OPTIONS.reliable_steps
        assert set(summary.ways) == {"TAR over TCP", "TAR over UBT"}
        assert 0 < summary.lines[0].uncertainty_s < 10 or ranks[summary.lines[0].rank].rank == 0
        operations = sum(summary.ways.values())
        assert {len(rank.stages) for rank in ranks} == {2 * summary.ways["TAR over UBT"]}
        assert all(rank.dropped == 0 and len(rank.records) == operations for rank in ranks)
    assert len({found["bits"] for found in results}) == 1


def test_replicas_drift_where_something_was_lost_and_nowhere_else():
    results = values(spawn(_train, 3, OPTIONS, 0.0, timeout_s=110))
    lost = sum(found["since"] for found in results)
    for found in results:
        assert lost or found["drift"] < 1e-6  # rounding of the average
        assert max(f["loss"] for f in results) >= OPTIONS.hadamard_above or not any(
            found["hadamard"]
        )


def _drifts(rank, size, store, away):
    """The drift of replicas of which rank 0's is so far from the others', and what they become."""
    reliable = Reliable(store, rank, size, timeout_s=120, failed=lambda error: None)
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[4.0, 0.0, 3.0 + away * (rank == 0)]]))
    replicas = Replicas(list(model.parameters()), reliable)
    drift = replicas.resync()
    together(store, rank, size, "over")
    reliable.close()
    return drift, model.weight.flatten().tolist()


@pytest.mark.parametrize(("away", "drift"), [(0.0, 0.0), (4.0, 3.0 / 32**0.5)])
def test_a_drift_is_the_largest_distance_from_the_mean(away, drift):
    """Four ranks: the mean is (4, 0, 3 + away / 4), rank 0 three quarters of ``away`` from it."""
    for found, weights in values(spawn(_drifts, 4, away, timeout_s=60)):
        assert found == pytest.approx(drift, abs=1e-6)
        assert weights == [4.0, 0.0, 3.0 + away / 4]


def test_too_much_loss_stops_with_an_error_that_says_so():
    options = Options(
        warmup_steps=4,
        warmup_bound_s=0.1,
        bound_floor_s=0.1,
        stop_window=3,
        datagram_bytes=256,
        dead_s=30.0,  # a process that waits for a processor is not dead
    )
    results = values(spawn(_train, 2, options, 0.97, timeout_s=110))
    assert "LossExceeded" in {found["error"] for found in results}
    assert {found["error"] for found in results} <= {"LossExceeded", "RankFailure"}
