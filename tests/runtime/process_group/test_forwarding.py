"""Every collective reaches the native backend without the GIL, and means what it means there."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

from runtime.backend import LatecomerGroup
from runtime.process_group import forwarding as process_group
from runtime.torch_versions import PYTHON_BACKENDS, Backend
from tests.runtime import schedules
from tests.runtime.process_group.jobs import start
from tests.runtime.spawning import spawn, values

NOT_COLLECTIVES = {
    "_end_coalescing": "overridden by hand",
    "_register_on_completion_hook": "takes a Work, starts none",
    "reconfigure": "changes the ranks of a group; no backend that runs on the CPU does that",
}
DISPATCHED = {
    "_allgather_base_": "_allgather_base",
    "_reduce_scatter_base_": "_reduce_scatter_base",
    "allgather_": "allgather",
    "allgather_coalesced_": "allgather_coalesced",
    "allgather_into_tensor_coalesced_": "allgather_into_tensor_coalesced",
    "allreduce_": "allreduce",
    "allreduce_coalesced_": "allreduce_coalesced",
    "alltoall_": "alltoall",
    "alltoall_base_": "alltoall_base",
    "barrier": "barrier",
    "broadcast_": "broadcast",
    "check_for_nan": None,  # of the tensors of one rank
    "gather_": "gather",
    "gather_into_tensor_": "gather_into_tensor",
    "monitored_barrier_": "monitored_barrier",
    "recv_": "recv",
    "recv_any_source_": "recv_anysource",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "scatter_": "scatter",
    "send": "send",
}
"""What torch's dispatcher can call (``c10d::NAME``), and by which method of a process group."""


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (LatecomerGroup, dist.ProcessGroup),
        pytest.param(
            process_group.LatecomerBackend,
            Backend,
            marks=pytest.mark.skipif(not PYTHON_BACKENDS, reason="torch before 2.14"),
        ),
    ],
)
def test_every_method_that_starts_a_collective_is_overridden(ours, torchs):
    returns_work = re.compile(r"-> (?:c10d::|torch\._C\._distributed_c10d\.)Work$", re.MULTILINE)
    found = {n for n in dir(torchs) if returns_work.search(getattr(torchs, n).__doc__ or "")}
    assert {"allreduce", "barrier", "broadcast", "send"} <= found  # the search finds something
    inherited = {name for name in found if getattr(ours, name) is getattr(torchs, name)}
    assert inherited <= NOT_COLLECTIVES.keys()


def test_everything_that_the_dispatcher_can_call_is_overridden():
    ops = torch._C._dispatch_get_all_op_names()
    called = {op.removeprefix("c10d::") for op in ops if op.startswith("c10d::")}
    assert called <= DISPATCHED.keys()
    for op in called:
        if (method := DISPATCHED[op]) is not None:
            assert getattr(LatecomerGroup, method) is not getattr(dist.ProcessGroup, method), op


def _coalesced(rank, size, store, schedule, iterations):
    """Megatron's coalesced calls, and all-reduces beside them; temporaries go at once."""
    start(rank, size, store, schedule)
    total = size * (size - 1) // 2
    for step in range(iterations):
        whole = [torch.empty(size * 100) for _ in range(2)]
        with _coalescing_manager(async_ops=True) as gathering:
            for into in whole:
                dist.all_gather_into_tensor(into, torch.full((100,), float(rank + step)))
        parts = [torch.empty(50) for _ in range(2)]
        gathering.wait()
        with _coalescing_manager(async_ops=True) as scattering:
            for into in parts:
                dist.reduce_scatter_tensor(into, torch.full((50 * size,), float(rank + step)))
        with _coalescing_manager(async_ops=True) as reducing:
            sums = [torch.full((30,), float(rank)) for _ in range(2)]
            for each in sums:
                dist.all_reduce(each)
        summed = torch.full((1000,), float(rank + step))
        dist.all_reduce(summed)
        scattering.wait()
        reducing.wait()
        for into in whole:
            assert into.view(size, 100).eq(torch.arange(size).view(-1, 1) + step).all()
        for into in (*parts, summed):
            assert into.eq(float(total + size * step)).all()
        assert all(each.eq(float(total)).all() for each in sums)
    paths = dict(dist.group.WORLD.paths)
    dist.destroy_process_group()
    return paths


@pytest.mark.parametrize(("size", "auto"), [(2, True), (4, False)])
def test_asynchronous_coalesced_collectives_never_hang(size, auto):
    schedule = None if auto else schedules.straggler(size)
    found = values(spawn(_coalesced, size, schedule, 300, timeout_s=100))
    way = "mode auto" if auto else "schedule"
    assert found == [{way: 300, "several tensors at once": 300}] * size


def _kinds(rank, size, store):
    group = start(rank, size, store, schedules.straggler(size))
    ops, premultiplied = dist.ReduceOp, dist._make_nccl_premul_sum(2.0)
    found = {}

    def averaged(dtype):
        return torch.tensor([rank + 1, -rank - 2 if dtype.is_signed else rank, 7]).to(dtype)

    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        x = averaged(dtype)
        dist.all_reduce(x, ops.AVG)
        found[f"all_reduce {dtype}"] = x.tolist(), averaged(dtype).tolist()
    x = [averaged(torch.int64), averaged(torch.int64) + 1]
    with _coalescing_manager():
        for each in x:
            dist.all_reduce(each, ops.AVG)
    found["coalesced"] = x[1].tolist(), (averaged(torch.int64) + 1).tolist()
    x = averaged(torch.int64)
    dist.reduce(x, 1, ops.AVG)
    found["reduce"] = x.tolist(), averaged(torch.int64).tolist()
    x = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(x, averaged(torch.int64)[:size], ops.AVG)
    y = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter(y, list(averaged(torch.int64)[:size].split(1)), ops.AVG)
    found["reduce_scatter"] = x.item(), y.item()
    x = torch.tensor([1.5, float(rank)])
    dist.all_reduce(x, premultiplied)
    y = torch.tensor([1.5, float(rank)])
    dist.reduce(y, 0, premultiplied)
    given = torch.arange(float(size)) + rank
    z = torch.zeros(1)
    dist.reduce_scatter_tensor(z, given, premultiplied)
    found["premul"] = x.tolist(), y.tolist(), z.item(), given.tolist()
    sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 1.0], (4,))
    dist.all_reduce(sparse)
    complex_ = torch.full((2,), complex(rank, 1))
    dist.all_reduce(complex_)
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, ops.BOR)
    strided = torch.full((3, 4), float(rank)).t()
    dist.all_reduce(strided)
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    found["others"] = (
        sparse.to_dense().tolist(),
        complex_.tolist(),
        bits.item(),
        strided.flatten()[0].item(),
    )
    x = torch.tensor([float(rank)])
    group.allreduce(x).wait()  # the other two forms that torch's own group takes
    group.allreduce([x], ops.MAX).wait()
    found["forms"] = x.item()
    paths = dict(group.paths)
    dist.destroy_process_group()
    return found, paths


def test_what_is_not_ours_runs_natively_with_nccls_meaning():
    size = 3
    for rank, (found, paths) in enumerate(values(spawn(_kinds, size))):

        def truncated(total, ranks=size):
            return int(total / ranks)

        signed = [truncated(6), truncated(-9), 7]
        for dtype in ("int64", "int32", "int8"):
            assert found[f"all_reduce torch.{dtype}"][0] == signed
        assert found["all_reduce torch.uint8"][0] == [2, 1, 7]
        assert found["coalesced"][0] == [truncated(9), truncated(-6), 8]
        here, before = found["reduce"]
        assert here == (signed if rank == 1 else before)
        assert found["reduce_scatter"] == (signed[rank], signed[rank])
        summed, reduced, scattered, given = found["premul"]
        assert summed == [9.0, 6.0]
        assert reduced == ([9.0, 6.0] if rank == 0 else [1.5, float(rank)])
        assert scattered == 2.0 * sum(rank + other for other in range(size))
        assert given == [rank + float(c) for c in range(size)]  # the input is left alone
        dense, complex_, bits, strided = found["others"]
        assert dense == [1.0, 1.0, 4.0, 0.0]
        assert complex_ == [3 + 3j, 3 + 3j]
        assert (bits, strided) == (7, 3.0)
        assert found["forms"] == 3.0
        assert paths["schedule"] == 3  # complex as pairs of floats, empty, and group.allreduce(x)
        assert paths["the average of torch.int64"] == 1
        assert paths["operation PREMUL_SUM"] == paths["operation BOR"] == 1
        assert paths["layout torch.sparse_coo"] == paths["not contiguous"] == 1
        assert paths["several tensors at once"] == 1


def _handles(rank, size, store):
    start(rank, size, store)
    found = []
    for call in (
        lambda x: dist.all_reduce(x, async_op=True),
        lambda x: dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True),
        lambda x: dist.broadcast(x, 1, async_op=True),
        lambda x: dist.all_reduce(x.long(), dist.ReduceOp.AVG, async_op=True),
    ):
        work = call(torch.full((3,), float(rank)))
        until = 2000
        while not work.is_completed() and until:  # a program that polls
            torch.futures.wait_all([work.get_future()])
            until -= 1
        found.append((work.is_completed(), work.is_success(), work.result()[0].tolist()))
        assert work.wait()
    if rank == 0:
        work = dist.isend(torch.ones(2), 1)
        work.wait()
        found.append(work.is_completed())
    else:
        into = torch.zeros(2)
        found.append(dist.recv(into) == 0 and into.tolist() == [1.0, 1.0])
    dist.destroy_process_group()
    return found


def test_handles_say_when_they_are_done():
    for found in values(spawn(_handles, 2)):
        assert found == [
            (True, True, [1.0] * 3),
            (True, True, [1.0] * 3),
            (True, True, [1.0] * 3),
            (True, True, [0.0] * 3),
            True,
        ]
