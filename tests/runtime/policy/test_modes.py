"""Modes in training: right and alike on all ranks, explained, and honest about who is late."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import runtime
from runtime.network.clock import UNKNOWN_S, Clock
from runtime.policy.cost_model import Line, Profile
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import MODES, Options
from tests.runtime.spawning import spawn, together, values
from tests.runtime.test_training import _model, _train
from verify.errors import ArgumentError

LATE = 2
SIZE = 4


def _eager_to_start(size):
    """A profile by which schedules are worth it however small the buffer."""
    return Profile(size, Line(1e-2, 1e-9), Line(1e-5, 1e-10))


def _lateness(rank, size, store, name):
    """Seconds that a rank sleeps before a step; rank LATE after all others have begun with it."""

    def lateness(step):
        if rank != LATE:
            store.set(f"{name} {step} {rank}", "")
            return 0.0
        store.wait([f"{name} {step} {r}" for r in range(size) if r != LATE])
        return 0.1

    return lateness


def _start(backend, name, rank, size, store):
    place = {"store": dist.PrefixStore(name, store), "rank": rank, "world_size": size}
    dist.init_process_group(backend, timeout=timedelta(seconds=30), **place)


def _bits(parameters):
    return hashlib.sha256(parameters.numpy().tobytes()).hexdigest()


def _hooks(rank, size, store, folder):
    """Per mode: deviation from plain DDP, bits, the ways operations ran and the late ranks."""
    _start("gloo", "plain", rank, size, store)
    plain = _train(_model(), rank, lambda step: 0.0)
    found = {"plain": (0.0, _bits(plain), {})}
    for mode in (*MODES, "static"):
        model = _model()
        late = LATE if mode == "static" else None
        profile = _eager_to_start(size)
        attachment = runtime.ddp.attach(model, mode=mode, late=late, profile=profile, timeout_s=30)
        with runtime.watch(rounds=range(10)) as watched:
            trained = _train(model, rank, _lateness(rank, size, store, f"{mode} {len(found)}"))
        assert attachment.executor.failure is None
        attachment.close()
        bits = _bits(trained)
        if mode in found:
            assert found[mode][1] == bits  # static, twice
        summary = watched.summary()
        found[mode] = (trained - plain).abs().max().item(), bits, summary.ways
        if mode == "eager" and rank == 0:
            watched.write_prometheus(f"{folder}/latecomer.prom")
            watched.write_trace(f"{folder}/trace.json")
            with open(f"{folder}/summary.json", "w") as file:
                file.write(summary.as_json())
    dist.destroy_process_group()
    return found


def test_all_modes_train_like_plain_ddp_and_say_who_was_late(tmp_path):
    outcomes = values(spawn(_hooks, SIZE, str(tmp_path), timeout_s=100))
    for mode in ("plain", *MODES):
        deviation = max(found[mode][0] for found in outcomes)
        assert deviation < 1e-6
        assert len({found[mode][1] for found in outcomes}) == 1
    ways = outcomes[0]
    assert ways["native"][1] == ways["plain"][1]  # native is plain DDP, bit for bit
    assert set(ways["native"][2]) == {"native"}
    assert set(ways["static"][2]) == {f"one late, m = 1, late: {LATE}"}
    assert ways["eager"][2].get(f"one late, m = 1, late: {LATE}", 0) > 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["lines"][0]["rank"] == LATE
    assert summary["lines"][0]["last"] > 0.5
    wasted = f'latecomer_wasted_seconds_total{{rank="{LATE}"}}'
    assert wasted in (tmp_path / "latecomer.prom").read_text()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
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
        x = self.first(x) + (self.sometimes(x) if use else 0.0)
        return self.third(self.second(x.double()).bfloat16()).float()


def _accumulated(model, rank):
    """Gradients summed over two backwards, one synchronized; unused parameters in odd steps."""
    data = torch.Generator().manual_seed(rank)
    gradients = []
    for step in range(4):
        model.zero_grad()
        with model.no_sync():
            model(torch.randn(4, 6, generator=data), True).sum().backward()
        model(torch.randn(4, 6, generator=data), step % 2 == 0).sum().backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat([g.flatten().double() for g in found]))
    return gradients


def _sharded(rank, size, hybrid):
    """Parameters after two steps of FSDP2 with the replicate dimension on the backend."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    override = {"rep": runtime.BACKEND} if hybrid else None
    mesh = init_device_mesh(
        "cpu", (size, 1), mesh_dim_names=("rep", "shard"), backend_override=override
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


def _other_jobs(rank, size, store):
    """What else uses DDP and the backend: deviations from the same without us."""
    _start("gloo", "first", rank, size, store)

    def wrapped():
        return DistributedDataParallel(_Mixed(), find_unused_parameters=True)

    plain = _accumulated(wrapped(), rank)
    model = wrapped()
    attachment = runtime.ddp.attach(model, mode="eager", profile=_eager_to_start(size))
    ours = _accumulated(model, rank)
    attachment.close()
    assert [g.shape for g in ours] == [g.shape for g in plain]
    mixed = max((a - b).abs().max().item() for a, b in zip(ours, plain, strict=True))

    runtime.configure(mode="eager", profile=_eager_to_start(size))
    native, _ = _sharded(rank, size, False)
    hybrid, group = _sharded(rank, size, True)
    paths = dict(getattr(group, "paths", {}))
    dist.destroy_process_group()

    runtime.configure(mode="auto")  # measures its profile
    _start("latecomer", "third", rank, size, store)
    total = torch.full((200_000,), float(rank))
    for _ in range(3):
        total.fill_(rank)
        dist.all_reduce(total)
    last = dist.group.WORLD
    profile, used = last.reducer.profile, dict(last.paths)
    dist.destroy_process_group()
    return mixed, (hybrid - native).abs().max().item(), paths, total[7].item(), profile, used


def test_accumulation_unused_parameters_mixed_dtypes_and_hsdp():
    outcomes = values(spawn(_other_jobs, SIZE, timeout_s=100))
    for mixed, hybrid, paths, total, profile, used in outcomes:
        assert mixed < 0.1  # bfloat16 sums in another order
        assert hybrid < 1e-6
        assert paths.get("mode eager", 0) > 0, paths
        assert total == sum(range(SIZE))
        assert used == {"mode auto": 3}
        assert profile == outcomes[0][4]
        assert min(profile.native.beta_s, profile.schedule.alpha_s) > 0


def _not_aligned(rank, size, store):
    """Operations under watch by ranks of which one never gets an answer about its clock."""
    if rank == 1:
        Clock.receive_message = lambda *_: None
    options, profile = Options("auto"), _eager_to_start(size)
    reducer = AllReduceDispatcher(store, rank, size, options=options, profile=profile, timeout_s=60)
    with runtime.watch(reducer) as watched:
        for _ in range(20):
            reducer.submit(torch.ones(10)).wait()
    together(store, rank, size, "over")
    reducer.close()
    return watched.summary(), [len(told.records) for told in watched.ranks]


def test_a_clock_that_is_not_aligned_yet_does_not_end_a_watch():
    for summary, known in values(spawn(_not_aligned, 3)):
        assert known == [20] * 3  # the last one's, too, though the block ends with its result
        assert summary.missing == ()
        found = {line.rank: line.uncertainty_s for line in summary.lines}
        assert found[1] == UNKNOWN_S
        assert found[0] == 0.0
        assert "aligned within 3600000" in str(summary)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ArgumentError, match="Leave one of both out"):
        runtime.configure("schedule.json", mode="auto")
    with pytest.raises(ArgumentError, match="goes with a mode only"):
        runtime.configure("schedule.json", threshold_s=1.0)
    with pytest.raises(ArgumentError, match="must name who is late"):
        runtime.configure(mode="static")
    with pytest.raises(ArgumentError, match="is no profile"):
        runtime.configure(mode="auto", profile="/nowhere")
    with pytest.raises(ArgumentError, match="with a mode"), runtime.watch():
        pass
