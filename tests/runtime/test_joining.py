"""A rank that goes no further at any place of a start is named by the others, in their own time.

The store's own time-out is 60 s and nobody waits for so long here: what ends a wait is ours.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import time

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

import runtime
from runtime import Executor, load
from runtime.optireduce.engine import Engine
from runtime.pipeline import Pipeline
from runtime.pipeline import load as load_pipeline
from runtime.policy import profile as profiling
from runtime.policy.cost_model import Line, Profile, read
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Options
from tests.runtime import schedules
from tests.runtime.pipeline.models import loss_fn, model
from tests.runtime.pipeline.test_gradients import MICROBATCHES, schedule, start
from tests.runtime.spawning import spawn
from tests.verify.pipeline.documents import one_f_one_b
from verify.errors import RankFailure

SIZE, VICTIM = 3, 1
TIMEOUT_S = 8.0
PROFILE = Profile(SIZE, Line(1e-2, 1e-9), Line(1e-5, 1e-10))


def _executor(rank, size, store):
    Executor(load(schedules.ring(size)), store, rank, size, timeout_s=TIMEOUT_S)


def _reducer(rank, size, store):
    AllReduceDispatcher(
        store, rank, size, options=Options("eager"), profile=PROFILE, timeout_s=TIMEOUT_S
    )


def _measuring(rank, size, store):
    AllReduceDispatcher(store, rank, size, options=Options("eager"), timeout_s=TIMEOUT_S)


def _pipeline(rank, size, store):
    start(rank, size, PrefixStore("gloo", store))
    plan = load_pipeline(schedule(one_f_one_b(size, MICROBATCHES)))
    Pipeline(model(size)[rank], plan, loss_fn, store=store, timeout_s=TIMEOUT_S)


def _optireduce(rank, size, store):
    Engine(store, rank, size, timeout_s=TIMEOUT_S)


def _stops_at(rank, size, store, body, place, how):
    """``body`` on all ranks; the victim goes no further than ``place``."""

    def stop(*args, **kwargs):
        if how == "dies":
            os._exit(1)
        time.sleep(100)

    module, name = place.rsplit(":", 1)
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, importlib.import_module(module))
    assert callable(getattr(owner, last))
    if rank == VICTIM:
        setattr(owner, last, stop)
    with pytest.raises(RankFailure) as caught:
        body(rank, size, store)
    return caught.value.ranks


PLACES = [
    (_executor, "runtime.executor.executor:ControlChannel"),
    (_executor, "runtime.executor.executor:agree"),
    (_executor, "runtime.executor.executor:connect"),
    (_reducer, "runtime.policy.dispatcher:require_equal"),
    (_reducer, "runtime.policy.dispatcher:candidates"),
    (_reducer, "runtime.policy.dispatcher:shared_profile"),
    (_pipeline, "runtime.pipeline.pipeline:ControlChannel"),
    (_pipeline, "runtime.pipeline.pipeline:Pipeline._require_same_schedule"),
    (_pipeline, "runtime.pipeline.pipeline:Transport"),
    (_optireduce, "runtime.optireduce.engine:meet"),
    (_optireduce, "runtime.optireduce.engine:Reliable"),
]
CASES = [(body, place, "dies") for body, place in PLACES]
# there Gloo connects or works, which a rank that lives and does not come holds up unnamed
CASES.append((_reducer, "runtime.policy.dispatcher:NativeAllReduce", "dies"))
CASES.append((_measuring, "runtime.policy.profile:measure", "dies"))
SILENT = [pytest.param(*case, "is silent", marks=pytest.mark.long) for case in PLACES]


@pytest.mark.parametrize(("body", "place", "how"), CASES + SILENT)
def test_a_rank_that_goes_no_further_is_named(body, place, how):
    outcomes = spawn(_stops_at, SIZE, body, place, how, victims=[VICTIM], timeout_s=50)
    for rank in {*range(SIZE)} - {VICTIM}:
        assert outcomes[rank].finished, f"rank {rank} died or hung"
        assert not outcomes[rank].error, outcomes[rank].error
        assert outcomes[rank].value == (VICTIM,)


def _profile(rank, size, store, port, folder, missing):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    if rank == missing:
        return None
    try:
        return profiling.run(AllReduceDispatcher, folder / "profile.json", timeout_s=TIMEOUT_S)
    except RankFailure as failure:
        return failure.ranks


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.mark.parametrize("missing", [0, 2])
def test_profiling_names_a_rank_that_never_comes(missing, tmp_path):
    outcomes = spawn(_profile, SIZE, _free_port(), tmp_path, missing, timeout_s=50)
    expected = [None if rank == missing else (missing,) for rank in range(SIZE)]
    assert [(o.value, o.error) for o in outcomes] == [(ranks, "") for ranks in expected]
    assert not (tmp_path / "profile.json").exists()


def test_profiling_gives_all_ranks_what_it_writes(tmp_path):
    outcomes = spawn(_profile, SIZE, _free_port(), tmp_path, -1, timeout_s=80)
    assert [o.error for o in outcomes] == [""] * SIZE
    written = read(tmp_path / "profile.json")
    assert [o.value for o in outcomes] == [written] * SIZE


def _watched(rank, size, store):
    """Rank 1 leaves the first block by an exception: the others report without it, and go on."""
    reducer = AllReduceDispatcher(
        store, rank, size, options=Options("native"), profile=PROFILE, timeout_s=30
    )
    alignment = reducer.source.alignment

    def slow_alignment():  # a record takes its time: it is there nevertheless
        time.sleep(0.2)
        return alignment()

    reducer.source.alignment = slow_alignment
    found = []
    for block in range(2):
        watched = runtime.watch(wait_s=2.0 if block == 0 else 30.0)
        try:
            with watched:
                reducer.submit(torch.ones(9)).wait()
                if rank == VICTIM and block == 0:
                    raise ValueError("not so far")
        except ValueError:
            continue
        found.append((watched.summary().missing, sorted(told.rank for told in watched.ranks)))
        assert ("no word from rank(s) 1" in str(watched.summary())) is (block == 0)
        assert {len(told.records) for told in watched.ranks} == {1}
    reducer.close()
    return found


def test_a_watch_reports_without_a_rank_that_does_not_tell_and_names_it():
    first, victim, last = spawn(_watched, SIZE, timeout_s=60)
    assert [o.error for o in (first, victim, last)] == ["", "", ""]
    whole = ((), [0, 1, 2])
    assert first.value == last.value == [((1,), [0, 2]), whole]
    assert victim.value == [whole]
