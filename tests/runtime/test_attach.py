"""Attaching to a model: one rank, twice, unwrapped, after closing; modes that change on the way."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from latecomer import runtime, synth
from latecomer.runtime import ddp
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.verify.errors import ArgumentError, ScheduleRefused
from tests.runtime.spawning import on_ranks, python

RANKS = 3
FEATURES = 4
PROFILE = Profile(RANKS, native=AlphaBeta(1e-3, 1e-8), schedule=AlphaBeta(1e-5, 1e-9))


def _model(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Linear(FEATURES, 1))


def _backward(model, rank):
    """A step's gradient, of an input that is ``rank + 1`` everywhere."""
    model.zero_grad()
    model(torch.full((1, FEATURES), rank + 1.0)).sum().backward()
    return model.module.weight.grad[0, 0].item()


MEAN = 2.0  # of rank + 1 over the ranks


@on_ranks(1)
def test_one_rank_has_nothing_to_sum_and_is_watched_all_the_same(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="auto")

    with runtime.watch(attachment.reducer) as watched:
        assert _backward(model, rank) == 1.0

    (line,) = watched.summary().lines
    assert (line.rank, line.operations) == (0, 1)
    (record,) = attachment.reducer.records
    assert "a group of one" in record.reason
    attachment.close()
    with pytest.raises(ArgumentError, match="two ranks or more"):
        _ = attachment.executor


@on_ranks(1)
def test_one_rank_refuses_a_schedule_and_says_why(rank, size, store):
    model = _model(rank, size, store)
    with pytest.raises(ScheduleRefused, match="one rank needs no schedule"):
        ddp.attach(model, synth.generate(4))
    assert _backward(model, rank) == 1.0


def test_a_script_runs_unchanged_without_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from latecomer import ddp\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\n"
        "ddp.attach(model, mode='auto')\n"
        "model(torch.ones(1, 4)).sum().backward()\n"
        "print(model.module.weight.grad.tolist())\n"
    )
    run = python(str(script))
    assert run.stdout == "[[1.0, 1.0, 1.0, 1.0]]\n", run.stderr
    assert run.returncode == 0


@on_ranks(1)
def test_a_model_that_is_not_wrapped_is_refused_by_name(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    with pytest.raises(ArgumentError, match=r"model = 'Linear': must be wrapped in Distributed"):
        ddp.attach(torch.nn.Linear(FEATURES, 1), mode="auto")


@on_ranks(RANKS)
def test_a_second_attachment_is_refused_and_leaves_no_thread(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="auto", profile=PROFILE)
    threads_before = set(threading.enumerate())

    with pytest.raises(ArgumentError, match=r"has something attached already\. Call close\(\)"):
        ddp.attach(model, mode="auto", profile=PROFILE)

    assert set(threading.enumerate()) <= threads_before
    assert _backward(model, rank) == MEAN
    attachment.close()


@on_ranks(RANKS)
def test_another_communication_hook_is_not_replaced(rank, size, store):
    model = _model(rank, size, store)
    model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(ArgumentError, match="has a communication hook of its own already"):
        ddp.attach(model, mode="auto", profile=PROFILE)
    assert _backward(model, rank) == MEAN


@on_ranks(RANKS)
def test_after_closing_gradients_go_natively_and_one_may_attach_again(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="auto", profile=PROFILE)
    assert _backward(model, rank) == MEAN
    attachment.close()
    assert _backward(model, rank) == MEAN
    assert len(attachment.reducer.records) == 1

    again = ddp.attach(model, synth.generate(RANKS), late=0)
    assert _backward(model, rank) == MEAN
    assert again.executor.entered == 1
    again.close()

    lossy = ddp.attach(model, algorithm="optireduce")
    assert _backward(model, rank) == pytest.approx(MEAN)
    lossy.close()
    assert _backward(model, rank) == MEAN


@on_ranks(RANKS)
def test_an_attachment_does_not_keep_its_model_alive(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="auto", profile=PROFILE)
    _backward(model, rank)
    attachment.close()
    gone = weakref.ref(model)
    del model, attachment
    gc.collect()
    assert gone() is None


def _reasons(attachment):
    return [record.reason for record in attachment.reducer.records]


@on_ranks(RANKS)
def test_a_mode_is_switched_off_and_on_again_at_the_same_operation(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="static", late=1, profile=PROFILE)
    reducer = attachment.reducer

    modes = []
    for mode in ("static", "off", "static", "off"):
        attachment.mode = mode
        modes.append(attachment.mode)
        for _ in range(2):
            assert _backward(model, rank) == MEAN

    assert modes == ["static", "off", "static", "off"]
    assert attachment.reducer is reducer  # nothing was connected anew
    switched_off = [reason == "switched off" for reason in _reasons(attachment)]
    assert switched_off == [False, False, True, True, False, False, True, True]
    attachment.close()


@on_ranks(RANKS)
def test_another_mode_connects_anew_with_the_profile_that_was_measured(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="off", profile=PROFILE)
    assert attachment.mode == "native"
    assert _backward(model, rank) == MEAN
    first = attachment.reducer

    attachment.mode = "auto"

    assert attachment.mode == "auto"
    assert attachment.reducer is not first
    assert first.failure is not None  # closed
    assert attachment.reducer.profile == PROFILE
    assert _backward(model, rank) == MEAN
    attachment.close()


@on_ranks(RANKS)
def test_a_schedule_is_switched_off(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, synth.generate(RANKS))
    assert attachment.mode == "schedule"
    attachment.mode = "off"
    assert _backward(model, rank) == MEAN
    assert attachment.executor.entered == 0
    attachment.mode = "schedule"
    assert _backward(model, rank) == MEAN
    assert attachment.executor.entered == 1
    with pytest.raises(ArgumentError, match="must be one of off, schedule"):
        attachment.mode = "auto"
    attachment.close()


@on_ranks(RANKS)
def test_ranks_that_switch_differently_are_told_so_and_nothing_changes(rank, size, store):
    model = _model(rank, size, store)
    attachment = ddp.attach(model, mode="auto", profile=PROFILE)
    with pytest.raises(ArgumentError, match=r"rank\(s\) .*: .* before operation 0"):
        attachment.mode = "off" if rank else "predict"
    assert attachment.mode == "auto"
    assert _backward(model, rank) == MEAN
    attachment.close()


def test_a_mode_keeps_only_the_options_that_go_with_it():
    static = runtime.policy.options.Options("static", late=(1,))
    assert runtime.policy.options.in_mode(static, "auto").late == ()
    eager = runtime.policy.options.Options("eager", threshold_s=0.5)
    assert runtime.policy.options.in_mode(eager, "predict").threshold_s is None
    with pytest.raises(ArgumentError, match="must name who is late"):
        runtime.policy.options.in_mode(eager, "static")
