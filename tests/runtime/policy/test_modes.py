"""Modes in training: right and alike on all ranks, explained, and honest about who is late."""

from __future__ import annotations

import hashlib
import json
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime
from latecomer.runtime.network.clock import UNKNOWN_S, Clock
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.options import MODES, Options
from latecomer.verify.errors import ArgumentError
from tests.runtime.jobs import dispatcher
from tests.runtime.spawning import default_group, on_ranks, together
from tests.runtime.test_training import _model, _train

LATE = 2
SIZE = 4
PROFILE = Profile(SIZE, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))
"""By it schedules are worth it however small the buffer."""


@on_ranks(SIZE, timeout_s=100)
def test_all_modes_train_like_plain_ddp_and_say_who_was_late(rank, size, store, tmp_path):
    def lateness(step):
        """Rank LATE begins after all others have begun with the step."""
        if rank != LATE:
            store.set(f"{name} {step} {rank}", "")
            return 0.0
        store.wait([f"{name} {step} {peer}" for peer in range(size) if peer != LATE])
        return 0.1

    def digest(parameters):
        """Of the parameters' bits, which are the same on all ranks."""
        own_digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest().encode()
        store.set(f"{name} {rank}", own_digest)
        assert store.get(f"{name} 0") == own_digest
        return own_digest

    name = "plain"
    default_group("gloo", rank, size, store, name=name, timeout_s=30)
    plain = _train(_model(), rank, lambda step: 0.0)

    # native is plain DDP, bit for bit; static, twice, gives the same bits
    digests = {"native": digest(plain)}

    # the size's number of chunks: static has it at once, eager when all ranks have made it
    by_schedule = f"one late, k = 1, late: {LATE}"
    for number, mode in enumerate((*MODES, "static")):
        name = f"{mode} {number}"
        model = _model()
        late = LATE if mode == "static" else None
        attachment = runtime.ddp.attach(model, mode=mode, late=late, profile=PROFILE, timeout_s=30)
        with runtime.watch(rounds=range(10)) as watched:
            trained = _train(model, rank, lateness)
        assert attachment.executor.failure is None
        attachment.close()

        assert (trained - plain).abs().max() < 1e-6
        digest_of_mode = digest(trained)
        summary = watched.summary()
        if mode in ("native", "static"):
            assert digests.setdefault(mode, digest_of_mode) == digest_of_mode
            assert set(summary.ways) == {"native" if mode == "native" else by_schedule}
        if mode == "eager":
            assert summary.ways[by_schedule] > 0
            assert summary.lines[0].rank == LATE
            assert summary.lines[0].last > 0.5
            _check_metrics(watched, tmp_path / f"{rank}.prom")
            _check_trace(watched, tmp_path / f"{rank}.json")
    dist.destroy_process_group()


def _check_metrics(watched, file):
    watched.write_prometheus(file)
    assert f'latecomer_wasted_seconds_total{{rank="{LATE}"}}' in file.read_text()


def _check_trace(watched, file):
    watched.write_trace(file)
    events = json.loads(file.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(SIZE))
    assert {"arrival", "operation", "round"} <= {event.get("cat") for event in events}


class _Mixed(nn.Module):
    """Parameters of three dtypes, and one that every other step does not use."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8).to(torch.float64)
        self.third = nn.Linear(8, 2).to(torch.bfloat16)
        self.sometimes = nn.Linear(6, 8)

    def forward(self, x, use):
        hidden = self.first(x)
        if use:
            hidden = hidden + self.sometimes(x)
        return self.third(self.second(hidden.double()).bfloat16()).float()


def _accumulated(rank, attached):
    """Gradients summed over two backwards, one synchronized; unused parameters in odd steps."""
    model = DistributedDataParallel(_Mixed(), find_unused_parameters=True)

    if attached:
        attachment = runtime.ddp.attach(model, mode="eager", profile=PROFILE)

    data = torch.Generator().manual_seed(rank)
    gradients = []
    for step in range(4):
        model.zero_grad()
        with model.no_sync():
            model(torch.randn(4, 6, generator=data), True).sum().backward()
        model(torch.randn(4, 6, generator=data), step % 2 == 0).sum().backward()
        own_gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = [gradient.flatten().double() for gradient in own_gradients]
        gradients.append(torch.cat(flat))
    if attached:
        attachment.close()
    return gradients


def _sharded(rank, size, hybrid):
    """Parameters after two steps of FSDP2 with the replicate dimension on the backend."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    mesh = init_device_mesh(
        "cpu",
        (size, 1),
        mesh_dim_names=("rep", "shard"),
        backend_override={"rep": runtime.BACKEND} if hybrid else None,
    )
    fully_shard(model, mesh=mesh)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(rank)
    for _ in range(2):
        time.sleep(0.03 * (rank == LATE))
        optimizer.zero_grad()
        model(torch.randn(8, 12, generator=data)).square().mean().backward()
        optimizer.step()

    flat = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    return flat, mesh.get_group("rep")


@on_ranks(SIZE, timeout_s=100)
def test_accumulation_unused_parameters_mixed_dtypes_and_hsdp(rank, size, store):
    """What else uses DDP and the backend, against the same without us."""
    default_group("gloo", rank, size, store, name="first", timeout_s=30)

    ours = _accumulated(rank, True)
    plain = _accumulated(rank, False)
    for gradients, expected in zip(ours, plain, strict=True):
        assert gradients.shape == expected.shape
        assert (gradients - expected).abs().max() < 0.1  # bfloat16 sums in another order

    runtime.configure(mode="eager", profile=PROFILE)
    native, _ = _sharded(rank, size, False)
    hybrid, group = _sharded(rank, size, True)
    assert (hybrid - native).abs().max() < 1e-6
    assert group.paths["mode eager"] > 0
    dist.destroy_process_group()

    runtime.configure(mode="auto")  # measures its profile
    default_group("latecomer", rank, size, store, name="third", timeout_s=30)
    for _ in range(3):
        total = torch.full((200_000,), float(rank))
        dist.all_reduce(total)
        assert total[7] == sum(range(SIZE))
    group = dist.group.WORLD
    profile = group.reducer.profile
    assert dict(group.paths) == {"mode auto": 3}
    assert min(profile.native.beta_s, profile.schedule.alpha_s) > 0
    store.set(f"profile {rank}", repr(profile))
    assert store.get("profile 0").decode() == repr(profile)
    dist.destroy_process_group()


@on_ranks(3)
def test_a_clock_that_is_not_aligned_yet_does_not_end_a_watch(rank, size, store):
    """Rank 1 never gets an answer about its clock."""
    if rank == 1:
        Clock.receive_message = lambda *_: None

    reducer = dispatcher(rank, size, store, Options("auto"), 60.0)
    with runtime.watch(reducer) as watched:
        for _ in range(20):
            reducer.submit(torch.ones(10)).wait()
    together(store, rank, size, "over")
    reducer.close()

    summary = watched.summary()
    # the last one's, too, though the block ends with its result
    assert [len(report.records) for report in watched.ranks] == [20] * 3
    assert summary.missing == ()
    uncertainty_s = {line.rank: line.uncertainty_s for line in summary.lines}
    assert uncertainty_s[0] == 0.0
    assert uncertainty_s[1] == UNKNOWN_S
    assert "aligned within 3600000" in str(summary)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ArgumentError, match="Leave one of both out"):
        runtime.configure("schedule.json", mode="auto")
    with pytest.raises(ArgumentError, match="goes with a mode only"):
        runtime.configure("schedule.json", threshold_s=1.0)
    with pytest.raises(ArgumentError, match="is no profile"):
        runtime.configure(mode="auto", profile="/nowhere")
