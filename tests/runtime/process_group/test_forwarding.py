"""Every collective reaches the native backend without the GIL, and means what it means there."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from latecomer.runtime import config
from latecomer.runtime.backend import LatecomerGroup
from latecomer.runtime.policy.options import Chosen
from latecomer.runtime.process_group.forwarding import LatecomerBackend
from latecomer.runtime.torch_versions import PYTHON_BACKENDS, Backend
from latecomer.verify.errors import ArgumentError
from tests.runtime import schedules
from tests.runtime.jobs import start
from tests.runtime.spawning import on_ranks, python

NOT_COLLECTIVES = {
    "_end_coalescing": "overridden by hand",
    "_register_on_completion_hook": "takes a Work, starts none",
    "reconfigure": "changes the ranks of a group; no backend that runs on the CPU does that",
}
STRAGGLER = schedules.straggler(3)
NEW_TORCH = pytest.mark.skipif(not PYTHON_BACKENDS, reason="torch before 2.14")


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [(LatecomerGroup, dist.ProcessGroup), pytest.param(LatecomerBackend, Backend, marks=NEW_TORCH)],
)
def test_every_method_that_starts_a_collective_is_overridden(ours, torchs):
    returns_work = re.compile(r"-> (?:c10d::|torch\._C\._distributed_c10d\.)Work$", re.MULTILINE)
    starting = set()
    for name in dir(torchs):
        signature = getattr(torchs, name).__doc__ or ""
        if returns_work.search(signature):
            starting.add(name)
    assert {"allreduce", "barrier", "broadcast", "send"} <= starting  # the search finds something

    inherited = {name for name in starting if getattr(ours, name) is getattr(torchs, name)}
    assert inherited <= NOT_COLLECTIVES.keys()


def test_without_any_option_the_backend_runs_in_mode_auto(monkeypatch):
    for name in ("LATECOMER_MODE", "LATECOMER_SCHEDULE", "LATECOMER_ALGORITHM", "LATECOMER_LATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(config, "_configured", None)
    chosen = config.configuration()
    assert isinstance(chosen, Chosen)
    assert chosen.options.mode == "auto"

    monkeypatch.setenv("LATECOMER_LATE", "1")  # goes with a schedule, or with mode static
    with pytest.raises(ArgumentError, match="mode auto finds out by itself"):
        config.configuration()


@pytest.mark.parametrize(("schedule", "path"), [(None, "mode auto"), (STRAGGLER, "schedule")])
@on_ranks(3, timeout_s=100)
def test_asynchronous_coalesced_collectives_never_hang(rank, size, store, schedule, path):
    """Megatron's coalesced calls, and all-reduces beside them; temporaries go at once."""
    start(rank, size, store, schedule)
    iterations = 100
    for step in range(iterations):
        _megatrons_calls(rank, size, step)
    several = "several tensors at once"
    native = [several]
    if schedule is None:  # in mode auto the others could be ours
        native += [f"reduce_scatter: {several}", f"all_gather: {several}"]
    assert dict(dist.group.WORLD.paths) == dict.fromkeys([path, *native], iterations)


def _megatrons_calls(rank, size, step):
    """One iteration; what is all-reduced last is a schedule's or mode auto's."""
    gathered = [torch.empty(size * 100) for _ in range(2)]
    with _coalescing_manager(async_ops=True) as gathering:
        for tensor in gathered:
            dist.all_gather_into_tensor(tensor, torch.full((100,), float(rank + step)))
    scattered = [torch.empty(50) for _ in range(2)]
    gathering.wait()
    with _coalescing_manager(async_ops=True) as scattering:
        for tensor in scattered:
            dist.reduce_scatter_tensor(tensor, torch.full((50 * size,), float(rank + step)))
    with _coalescing_manager(async_ops=True) as reducing:
        coalesced_sums = [torch.full((30,), float(rank)) for _ in range(2)]
        for tensor in coalesced_sums:
            dist.all_reduce(tensor)
    own_sum = torch.full((1000,), float(rank + step))
    dist.all_reduce(own_sum)
    scattering.wait()
    reducing.wait()

    total = size * (size - 1) // 2
    for tensor in gathered:
        assert tensor.view(size, 100).eq(torch.arange(size).view(-1, 1) + step).all()
    for tensor in (*scattered, own_sum):
        assert tensor.eq(float(total + size * step)).all()
    for tensor in coalesced_sums:
        assert tensor.eq(float(total)).all()


@on_ranks(3)
def test_what_is_not_ours_runs_natively_with_nccls_meaning(rank, size, store):
    group = start(rank, size, store, STRAGGLER)
    _check_averages_of_integers(rank)
    _check_premultiplied_sums(rank, size)
    _check_other_operations_and_layouts(rank)

    x = torch.tensor([float(rank)])
    group.allreduce(x).wait()  # the other two forms that torch's own group takes
    group.allreduce([x], dist.ReduceOp.MAX).wait()
    assert x.item() == 3.0
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=pair)
        assert x.item() == 6.0

    paths = dict(group.paths)
    assert paths["schedule"] == 3  # complex as pairs of floats, empty, and group.allreduce(x)
    assert paths["operation MAX"] == 2
    for path in (
        "the average of torch.int64",
        "operation PREMUL_SUM",
        "operation BOR",
        "layout torch.sparse_coo",
        "not contiguous",
        "several tensors at once",
    ):
        assert paths[path] == 1


def _averaged(rank, dtype):
    """What a rank contributes to an average."""
    return torch.tensor([rank + 1, -rank - 2 if dtype.is_signed else rank, 7]).to(dtype)


def _check_averages_of_integers(rank):
    average = [2, -3, 7]
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        x = _averaged(rank, dtype)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert x.tolist() == (average if dtype.is_signed else [2, 1, 7])

    own = _averaged(rank, torch.int64)
    x = own.clone()
    y = own + 1
    with _coalescing_manager():
        dist.all_reduce(x, dist.ReduceOp.AVG)
        dist.all_reduce(y, dist.ReduceOp.AVG)
    assert y.tolist() == [3, -2, 8]  # towards zero

    x = own.clone()
    dist.reduce(x, 1, dist.ReduceOp.AVG)
    assert x.tolist() == (average if rank == 1 else own.tolist())

    x = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(x, own, dist.ReduceOp.AVG)
    assert x.item() == average[rank]
    x = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter(x, list(own.split(1)), dist.ReduceOp.AVG)
    assert x.item() == average[rank]


def _check_premultiplied_sums(rank, size):
    premultiplied = dist._make_nccl_premul_sum(2.0)
    x = torch.tensor([1.5, float(rank)])
    dist.all_reduce(x, premultiplied)
    assert x.tolist() == [9.0, 6.0]

    x = torch.tensor([1.5, float(rank)])
    dist.reduce(x, 0, premultiplied)
    assert x.tolist() == ([9.0, 6.0] if rank == 0 else [1.5, float(rank)])

    x = torch.zeros(1)
    whole = torch.arange(float(size)) + rank
    dist.reduce_scatter_tensor(x, whole, premultiplied)
    assert x.item() == 2.0 * sum(rank + peer for peer in range(size))
    assert whole.tolist() == [rank + float(c) for c in range(size)]  # the input is left alone


def _check_other_operations_and_layouts(rank):
    ops = dist.ReduceOp
    for x, op, expected in (
        (torch.sparse_coo_tensor([[rank, 2]], [1.0, 1.0], (4,)), ops.SUM, [1.0, 1.0, 4.0, 0.0]),
        (torch.full((2,), complex(rank, 1)), ops.SUM, [3 + 3j, 3 + 3j]),
        (torch.tensor([1 << rank]), ops.BOR, [7]),
        (torch.tensor([float(rank)]), ops.MAX, [2.0]),
        (torch.full((2, 2), float(rank)).t(), ops.SUM, [[3.0, 3.0]] * 2),
        (torch.zeros(0), ops.SUM, []),
    ):
        dist.all_reduce(x, op)
        assert x.to_dense().tolist() == expected


@on_ranks(2)
def test_handles_say_when_they_are_done(rank, size, store):
    start(rank, size, store)
    for call, result in (
        (lambda x: dist.all_reduce(x, async_op=True), 1.0),
        (lambda x: dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True), 1.0),
        (lambda x: dist.broadcast(x, 1, async_op=True), 1.0),
        (lambda x: dist.all_reduce(x.long(), dist.ReduceOp.AVG, async_op=True), 0.0),
    ):
        work = call(torch.full((3,), float(rank)))
        for _ in range(2000):  # a program that polls
            if work.is_completed():
                break
            torch.futures.wait_all([work.get_future()])
        assert work.is_completed()
        assert work.is_success()
        assert work.result()[0].tolist() == [result] * 3
        assert work.wait()

    if rank == 0:
        work = dist.isend(torch.ones(2), 1)
        work.wait()
        assert work.is_completed()
    else:
        received = torch.zeros(2)
        assert dist.recv(received) == 0
        assert received.tolist() == [1.0, 1.0]


JOB = """
import sys
import torch, torch.distributed as dist
assert "latecomer" not in sys.modules
dist.init_process_group("latecomer", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(type(dist.group.WORLD).__name__, x.tolist(), dict(dist.group.WORLD.paths))
dist.destroy_process_group()
"""


@NEW_TORCH
def test_no_import_is_needed(tmp_path):
    completed = python("-c", JOB, cwd=tmp_path, LATECOMER_MODE="auto")
    expected = "LatecomerGroup [1.0, 1.0, 1.0] {'a group of one': 1}\n"
    assert completed.stdout == expected, completed.stderr


@NEW_TORCH
@on_ranks(2)
def test_hooks_see_every_collective_and_the_device_has_our_backend(rank, size, store):
    group = start(rank, size, store)
    names = []
    group.register_pre_hook(1, lambda arguments: names.append(str(arguments.name)))
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), 0)
    group.unregister_pre_hook(1)
    dist.barrier()
    assert [name.rsplit(".", 1)[-1].lower() for name in names] == ["allreduce", "broadcast"]

    backend = group._get_backend(torch.device("cpu"))
    assert isinstance(backend, LatecomerBackend)
    x = torch.full((3,), float(rank))
    backend.allreduce([x]).wait()  # as C++ code does that has asked for the backend
    assert x.tolist() == [1.0] * 3
    assert dict(group.paths) == {"mode auto": 2}
