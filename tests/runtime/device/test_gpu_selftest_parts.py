"""What the self-test of GPUs can't try here, seen refused with its reason; what it predicts."""

from __future__ import annotations

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from runtime.device.predict import H100, others, ours
from runtime.selftest.device import methods, place
from runtime.selftest.device.methods import NotTried, What
from runtime.selftest.device.report import Row
from runtime.selftest.device.schedules import CASE_CHUNKS, Schedules

MIB = 2**20


@pytest.fixture
def alone():
    """The only rank of a group."""
    device = place._Simulated()
    yield place.Place("simulated", HashStore(), 0, 1, 5.0, device)
    device.close()


def test_a_library_that_refuses_these_ranks_is_not_tried(alone, monkeypatch):
    def refuse(tensor):
        raise RuntimeError("NCCL error\nDuplicate GPU detected")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    assert place._problem(alone) == "gloo: Duplicate GPU detected"
    alone.no_library = place._problem(alone)
    for make in (methods.library, methods.transfers):
        with pytest.raises(NotTried, match="Duplicate GPU"):
            make(alone, [])


def test_without_a_library_a_barrier_is_one_of_hosts(alone, monkeypatch):
    def never(tensor):
        raise AssertionError

    monkeypatch.setattr(dist, "all_reduce", never)
    alone.no_library = "none"
    done = []
    alone.launch(lambda: done.append(1))
    alone.barrier(torch.zeros(1))
    assert done == [1]


def test_reasons_are_agreed_on():
    store = HashStore()
    size = 3
    for rank, reason in enumerate(("", "too old", "")):
        store.set(f"place/1/gather/said/{rank}", msgspec.json.encode({"reason": reason}).decode())
    for rank in range(size):
        one = place.Place("simulated", store, rank, size, 5.0, None)
        store.set(f"place/1/gather/said/{rank}", store.get(f"place/1/gather/said/{rank}"))
        assert one.agree("too old" if rank == 1 else "") == "on rank(s) [1]: too old"


def test_symmetric_memory_that_is_not_there_is_not_tried(alone, monkeypatch):
    def refuse(numel, dtype, device):
        raise RuntimeError("no handle\nof any kind")

    monkeypatch.setattr("runtime.torch_versions.symmetric_tensor", refuse)
    with pytest.raises(NotTried, match=r"torch gave no symmetric memory: no handle$"):
        methods.symmetric("one_shot", alone, []).buffer(8, torch.float32)
    found = torch.zeros(8), False
    monkeypatch.setattr("runtime.torch_versions.symmetric_tensor", lambda *_: found)
    with pytest.raises(NotTried, match="no multicast"):
        methods.symmetric("multimem", alone, []).buffer(8, torch.float32)
    assert methods.symmetric("two_shot", alone, []).buffer(8, torch.float32) is found[0]


def test_all_ways_have_a_place_in_the_table():
    ways = {"kernel", "transfers", "nccl", "one_shot", "two_shot", "multimem"}
    assert set(methods.ways("cuda")) == ways
    assert set(methods.ways("simulated")) == {"kernel", "transfers", "gloo"}


def test_each_line_is_predicted_by_what_it_runs(monkeypatch):
    known = Schedules(4, (MIB, 64 * MIB), H100)
    late = known.best("kernel", 64 * MIB, 3)
    assert known.verified[late.schedule].schedule.chunks == 8
    assert late.late == (3,)
    assert known.best("kernel", MIB, None) == What(0)
    three = known.verified[known.one_late(CASE_CHUNKS, 1).schedule]
    assert three.schedule.chunks == CASE_CHUNKS
    row = Row(64 * MIB, "float32", "kernel", 4, 3, 8, 1e-3, None, 5, 0, False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    schedule = known.verified[late.schedule].schedule
    assert known.predicted(row) == ours("kernel", schedule, 64 * MIB, H100, late=True)
    nccl = msgspec.structs.replace(row, way="nccl")
    assert known.predicted(nccl) == others("nccl", 4, 64 * MIB, H100)
    assert known.predicted(msgspec.structs.replace(row, shared=True)) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    assert known.predicted(row) is None
