"""The callback of each step: where steps end, what is told of them, and what its faults do."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime
from latecomer.runtime.telemetry.steps import Steps
from tests.runtime.spawning import on_ranks
from tests.runtime.telemetry.ranks import MadeUpRank

KEYS = {
    "step", "unix_s", "operations", "bytes", "all_reduce_s", "decision_s",
    "native", "without_late", "late_rank", "uncertainty_s",
}  # fmt: skip


@pytest.fixture
def rank():
    made = MadeUpRank(offset_s=1000.0)
    made.source.begin(range(0))
    yield made
    made.source.close()


def _reduce(rank, *ways):
    for way in ways:
        rank.reduce(way=way, late=() if way == "native" else (int(way),))


def test_a_step_is_a_backward_pass(rank):
    told = []
    steps = Steps(rank.source, told.append)
    for ways in (["native", "2", "5", "2"], ["native"]):
        for number, way in enumerate(ways):
            _reduce(rank, way)
            rank.source.bucket_submitted(is_last=number == len(ways) - 1)
            steps.look(False)
    steps.look(False)
    first, second = told
    assert set(first) == KEYS
    assert (first["step"], first["operations"], first["bytes"]) == (0, 4, 64)
    assert (first["native"], first["without_late"], first["late_rank"]) == (1, 3, 2)
    assert (second["step"], second["operations"], second["late_rank"]) == (1, 1, -1)
    assert all(isinstance(value, int | float) for value in first.values())
    assert second["all_reduce_s"] == pytest.approx(0.01)
    assert second["uncertainty_s"] == 0.0001


def test_a_step_whose_operations_are_not_done_is_waited_for(rank):
    told = []
    steps = Steps(rank.source, told.append)
    _reduce(rank, "native")
    rank.entered += 1  # an operation that is under way
    rank.source.bucket_submitted(is_last=True)
    steps.look(False)
    assert told == []
    steps.look(True)  # the watch is over: what there is of it
    assert [step["operations"] for step in told] == [1]


def test_what_the_program_says_counts_more_than_backward_passes(rank):
    told = []
    steps = Steps(rank.source, told.append)
    for _ in range(2):
        for _ in range(3):
            _reduce(rank, "native")
            rank.source.bucket_submitted(is_last=True)
        rank.source.step_over()
    steps.look(True)
    assert [step["operations"] for step in told] == [3, 3]


def test_without_steps_what_was_done_since_the_last_look_is_one(rank):
    told = []
    steps = Steps(rank.source, told.append)
    _reduce(rank, "native", "native")
    steps.look(False)
    assert told == []
    _reduce(rank, "native")
    steps.look(False)
    steps.look(False)
    _reduce(rank, "native")
    steps.look(True)
    assert [step["operations"] for step in told] == [2, 1, 1]
    assert [step["step"] for step in told] == [0, 1, 2]


def test_an_exception_of_the_callback_is_told_once_and_the_others_steps_come(rank, caplog):
    told = []

    def fail(step):
        told.append(step["step"])
        raise RuntimeError("no such writer")

    with runtime.watch(rank, on_step=fail) as watched:
        for _ in range(3):
            rank.reduce()
            watched.step()
    assert told == [0, 1, 2]
    assert caplog.text.count("watch: on_step: RuntimeError: no such writer") == 1
    assert len(watched.ranks[0].records) == 3


def test_a_step_of_a_watch_of_nothing_is_nothing():
    with runtime.watch(on_step=pytest.fail) as watched:
        watched.step()


class _Writer:
    """As far as it is used, ``torch.utils.tensorboard.SummaryWriter``."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, global_step):
        assert isinstance(value, int | float)
        self.scalars.append((tag, value, global_step))


@on_ranks(2, timeout_s=60)
def test_rank_0_of_a_ddp_model_tells_of_each_backward_pass(rank, size, store):
    """Two buckets a pass, of which one is held back by no_sync()."""
    place = {"store": dist.PrefixStore("gloo", store), "rank": rank, "world_size": size}
    dist.init_process_group("gloo", **place)
    layers = [torch.nn.Linear(600, 600) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    attachment = runtime.ddp.attach(model, mode="native")
    writer = _Writer()
    told = []

    def log(step):
        told.append(step)
        for name, value in step.items():
            writer.add_scalar(f"latecomer/{name}", value, step["step"])

    with runtime.watch(on_step=log) as watched:
        for _ in range(5):
            with model.no_sync():
                model(torch.ones(2, 600)).sum().backward()
            model(torch.ones(2, 600)).sum().backward()
    attachment.close()

    assert [step["step"] for step in told] == ([0, 1, 2, 3, 4] if rank == 0 else [])
    if rank == 0:
        assert sum(step["operations"] for step in told) == len(watched.ranks[0].records)
        assert min(step["operations"] for step in told[1:]) > 1  # from then on in buckets of 1 MB
        assert ("latecomer/native", told[4]["native"], 4) in writer.scalars
