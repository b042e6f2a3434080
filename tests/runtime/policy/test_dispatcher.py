"""The dispatcher: operations start in order, on the caller's thread where nothing is waited for."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.verify.errors import LatecomerError
from tests.runtime.spawning import on_ranks

RANKS = 3
LATE_RANK = 2
SUM = 6.0  # of rank + 1
SMALL = 1  # elements: no schedule would be faster, so each rank decides by itself
LARGE = 2**18  # elements: the coordinator decides when ranks have come
PROFILE = Profile(RANKS, native=AlphaBeta(1e-6, 1e-8), schedule=AlphaBeta(1e-5, 1e-8))
DATA_THREAD = "latecomer-tcp"


def _dispatcher(rank, ranks, store, mode="eager"):
    options = Options(mode)
    return AllReduceDispatcher(store, rank, ranks, options=options, profile=PROFILE, timeout_s=60.0)


def _note_starts(dispatcher):
    """(operation, name of the thread) of what the dispatcher starts from now on."""
    starts = []
    start = dispatcher._start

    def noted(work, decision):
        starts.append((work.number, threading.current_thread().name))
        start(work, decision)

    dispatcher._start = noted
    return starts


def _submit(dispatcher, elements):
    return dispatcher.submit(torch.full((elements,), dispatcher.rank + 1.0))


def _wait_until_idle(dispatcher):
    while dispatcher._undecided or dispatcher._starting.locked():
        time.sleep(1e-4)


@on_ranks(RANKS)
def test_a_decided_operation_starts_at_once_but_overtakes_none(rank, size, store):
    dispatcher = _dispatcher(rank, size, store)
    starts = _note_starts(dispatcher)
    this_thread = threading.current_thread().name
    at_once = []

    for turn in range(20):
        if rank == LATE_RANK and turn % 2:
            time.sleep(0.02)
        works = [_submit(dispatcher, elements) for elements in (LARGE, SMALL, LARGE, SMALL)]
        for work in works:
            assert work.wait()[-1] == SUM
        _wait_until_idle(dispatcher)
        decided = _submit(dispatcher, SMALL)
        at_once.append(decided.number)
        assert decided.wait()[-1] == SUM

    assert [number for number, _ in starts] == list(range(100))
    threads = dict(starts)
    assert {threads[number] for number in at_once} == {this_thread}
    assert DATA_THREAD in threads.values()
    dispatcher.close()


@on_ranks(RANKS)
def test_a_callback_may_submit_on_whatever_thread_it_runs(rank, size, store):
    dispatcher = _dispatcher(rank, size, store)
    sizes = [SMALL, LARGE] * 5
    sums = []
    last = threading.Event()

    def go_on(work):
        def done(error):
            sums.append(work.tensor[-1].item())
            if sizes:
                go_on(_submit(dispatcher, sizes.pop()))
            else:
                last.set()

        work.then(done)

    go_on(_submit(dispatcher, sizes.pop()))

    assert last.wait(60)
    assert sums == [SUM] * 10
    dispatcher.close()


@on_ranks(RANKS)
def test_threads_that_submit_at_once_do_not_mix_up_the_order(rank, size, store):
    """The operations are alike, so that any order in which two threads come is right."""
    dispatcher = _dispatcher(rank, size, store, mode="auto")
    starts = _note_starts(dispatcher)
    sums = []

    def submit():
        for _ in range(50):
            sums.append(_submit(dispatcher, LARGE).wait()[-1].item())

    threads = [threading.Thread(target=submit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sums == [SUM] * 100
    assert [number for number, _ in starts] == list(range(100))
    dispatcher.close()


@on_ranks(RANKS)
def test_after_closing_nothing_starts(rank, size, store):
    dispatcher = _dispatcher(rank, size, store, mode="native")
    assert _submit(dispatcher, SMALL).wait()[-1] == SUM
    starts = _note_starts(dispatcher)

    dispatcher.close()

    with pytest.raises(LatecomerError, match="closed"):
        _submit(dispatcher, SMALL)
    assert starts == []
