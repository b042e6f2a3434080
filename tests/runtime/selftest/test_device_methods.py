"""What the self-test of GPUs can't try here, seen refused with its reason; what it predicts."""

from __future__ import annotations

import msgspec
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from latecomer.runtime.device.predict import H100, others, ours
from latecomer.runtime.selftest.device import methods
from latecomer.runtime.selftest.device import rank as rank_module
from latecomer.runtime.selftest.device.methods import NotTried, ScheduleChoice
from latecomer.runtime.selftest.device.rank import RankContext
from latecomer.runtime.selftest.device.report import TimedRow
from latecomer.runtime.selftest.device.schedules import CASE_CHUNKS, TestedSchedules

MIB = 2**20


@pytest.fixture
def alone():
    """The only rank of a group."""
    device = rank_module._RecordingSimulatedDevice()
    yield RankContext(
        kind="simulated", store=HashStore(), rank=0, world_size=1, timeout_s=5.0, device=device
    )
    device.close()


def test_a_library_that_refuses_these_ranks_is_not_tried(alone, monkeypatch):
    def refuse(tensor):
        raise RuntimeError("NCCL error\nDuplicate GPU detected")

    monkeypatch.setattr(dist, "all_reduce", refuse)
    problem = rank_module._library_problem(alone)
    assert problem == "gloo: Duplicate GPU detected"

    alone.library_problem = problem
    for make in (methods.library, methods.transfers):
        with pytest.raises(NotTried, match="Duplicate GPU"):
            make(alone, [])


def test_without_a_library_a_barrier_is_one_of_hosts(alone, monkeypatch):
    def never(tensor):
        raise AssertionError

    monkeypatch.setattr(dist, "all_reduce", never)
    alone.library_problem = "none"
    launched = []
    alone.launch(lambda: launched.append(1))

    alone.barrier(torch.zeros(1))

    assert launched == [1]


def test_reasons_are_agreed_on():
    store = HashStore()
    reasons = ["", "too old", ""]
    for rank, reason in enumerate(reasons):
        message = msgspec.json.encode({"reason": reason}).decode()
        store.set(f"step/1/gather/message/{rank}", message)

    for rank, reason in enumerate(reasons):
        context = RankContext(
            kind="simulated",
            store=store,
            rank=rank,
            world_size=len(reasons),
            timeout_s=5.0,
            device=None,
        )
        assert context.agree(reason) == "on rank(s) [1]: too old"


def test_symmetric_memory_that_is_not_there_is_not_tried(alone, monkeypatch):
    def refuse(numel, dtype, device):
        raise RuntimeError("no handle\nof any kind")

    monkeypatch.setattr("latecomer.runtime.torch_versions.symmetric_tensor", refuse)
    with pytest.raises(NotTried, match=r"torch gave no symmetric memory: no handle$"):
        methods.symmetric("one_shot", alone, []).buffer(8, torch.float32)

    tensor = torch.zeros(8)
    has_multicast = False
    monkeypatch.setattr(
        "latecomer.runtime.torch_versions.symmetric_tensor", lambda *_: (tensor, has_multicast)
    )
    with pytest.raises(NotTried, match="no multicast"):
        methods.symmetric("multimem", alone, []).buffer(8, torch.float32)
    assert methods.symmetric("two_shot", alone, []).buffer(8, torch.float32) is tensor


def test_all_methods_of_a_device_are_tried():
    on_gpus = {"kernel", "transfers", "nccl", "one_shot", "two_shot", "multimem"}
    assert set(methods.methods_for("cuda")) == on_gpus
    assert set(methods.methods_for("simulated")) == {"kernel", "transfers", "gloo"}
    assert set(methods.methods_for("simulated", 2)) == {"stages", "transfers", "gloo"}


def test_stages_are_run_for_no_late_rank_and_for_each_in_turn():
    schedules = TestedSchedules(4, (MIB,), H100, machines=2)
    names = [(name, held_up) for name, _, held_up in schedules.cases("stages")]
    assert names == [("hierarchical ring", 3), *(("one late", rank) for rank in range(4))]
    in_stages = {choice.schedule for _, choice, _ in schedules.cases("stages")}
    assert {schedules.verified[number].schedule.ranks for number in in_stages} == {4}
    assert in_stages.isdisjoint(choice.schedule for _, choice, _ in schedules.cases("transfers"))
    assert schedules.best("stages", MIB, 2).late == (2,)
    assert schedules.best("stages", MIB, None) == schedules.in_stages(None)


def test_each_line_is_predicted_by_what_it_runs(monkeypatch):
    schedules = TestedSchedules(4, (MIB, 64 * MIB), H100, machines=1)
    one_late = schedules.best("kernel", 64 * MIB, 3)
    assert schedules.chunks(one_late) == 8
    assert one_late.late == (3,)
    assert schedules.best("kernel", MIB, None) == ScheduleChoice(0)
    assert schedules.chunks(schedules.one_late(CASE_CHUNKS, 1)) == CASE_CHUNKS

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    row = TimedRow(
        nbytes=64 * MIB,
        dtype="float32",
        way="kernel",
        ranks=4,
        late=3,
        chunks=8,
        time_s=1e-3,
        host_s=None,
        repetitions=5,
        wrong=0,
        shared=False,
    )
    schedule = schedules.verified[one_late.schedule].schedule
    assert schedules.predicted(row) == ours("kernel", schedule, 64 * MIB, H100, late=True)
    nccl_row = msgspec.structs.replace(row, way="nccl")
    assert schedules.predicted(nccl_row) == others("nccl", 4, 64 * MIB, H100)
    assert schedules.predicted(msgspec.structs.replace(row, shared=True)) is None

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    assert schedules.predicted(row) is None
