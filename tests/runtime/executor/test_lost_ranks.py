"""Ranks that are lost at named places, on simulated hosts: all others name them, and begin anew.

tests/runtime/executor/test_late_ranks.py has real processes that are killed and stopped.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

from latecomer.runtime import Executor, Observer, load
from latecomer.runtime.executor.tcp.loop import STOP_S
from latecomer.runtime.health import watchdog
from latecomer.runtime.host import host
from latecomer.verify.errors import ArgumentError, RankFailure
from tests.runtime.schedules import arrivals, straggler
from tests.runtime.simulated import NEVER_S, Fault, die, on_hosts, stop

TIMEOUT_S = 6.0
FAR = timedelta(seconds=300)
ONE = load(straggler(4))
TWO = load(arrivals(4, {2: 1, 3: 3}))
SLOW = load(arrivals(4, {3: 2}))
THREE_RANKS = load(straggler(3))
CASES = [
    (ONE, 0, "dies", (0, "reduce_scatter", 0)),
    (ONE, 2, "dies", (2, "reduce_scatter", 1)),
    (ONE, 1, "dies", (2, "completion", 1)),
    (ONE, 3, "dies", (2, "completion", 0)),
    (ONE, 2, "stops", (1, "completion", 2)),
    (ONE, 2, "sticks", (1, "completion", 2)),
    (ONE, 1, "raises", (1, "completion", 1)),
    (ONE, 3, "raises", (1, "completion", 1)),
    (TWO, 2, "dies", ()),  # before it arrives
    (TWO, 3, "dies", ()),
    (TWO, 2, "dies", (1, "before 3", 1)),  # after it has, before the other late rank
    (TWO, 3, "dies", (1, "completion", 2)),
]


def survivors_name(verified, again, culprit, kind, step):
    """Whom each survivor names, in each job; they make a group of their own after that."""

    def made(job):
        def act():
            if kind == "dies":
                die(job, culprit)
            elif kind == "stops":
                stop(job, culprit, 100.0)
            elif kind == "sticks":
                host.sleep(NEVER_S)
            else:
                raise RuntimeError("injected")

        def body(rank, size, store):
            observer = Fault(act, step) if rank == culprit and step else None
            late_s = {2: 0.2, 3: 0.6}.get(rank, 0.0) if verified is not ONE else 0.0
            executor = Executor(verified, store, rank, size, timeout_s=TIMEOUT_S, observer=observer)

            def run():
                for number in range(5):
                    host.sleep(late_s)
                    if rank == culprit and number == 1 and not step:
                        act()
                    executor.submit(torch.ones(5_000)).wait()

            with pytest.raises(RankFailure) as failed:
                run()
            with pytest.raises(RankFailure):
                executor.submit(torch.ones(3))
            executor.close()
            if rank != culprit:
                start_again(again, rank, size, store, culprit)
            return failed.value.ranks

        return body

    named = []
    for outcomes in on_hosts(4, made, victims=[culprit]):
        del outcomes[culprit]
        named += [outcome.result for outcome in outcomes.values()]
    return named


def start_again(again, rank, size, store, without):
    """The survivors make a group of their own, under a new prefix, and all-reduce."""
    survivors = [survivor for survivor in range(size) if survivor != without]
    executor = Executor(again, store.under("again"), survivors.index(rank), size - 1, timeout_s=30)
    assert executor.submit(torch.full((9,), float(rank))).wait()[0].item() == sum(survivors)
    executor.close()


@pytest.mark.parametrize(("verified", "culprit", "kind", "step"), CASES)
def test_a_lost_rank_is_named_by_all_others_and_a_new_group_works(verified, culprit, kind, step):
    named = survivors_name(verified, THREE_RANKS, culprit, kind, step)
    assert set(named) == {(culprit,)}


def test_a_verdict_on_another_rank_is_noticed(monkeypatch):
    real = watchdog.diagnose

    def blames_the_next(world_size, *others, **named):
        failure = real(world_size, *others, **named)
        failure.ranks = tuple((rank + 1) % world_size for rank in failure.ranks)
        return failure

    monkeypatch.setattr(watchdog, "diagnose", blames_the_next)
    assert set(survivors_name(ONE, THREE_RANKS, 0, "dies", (0, "reduce_scatter", 0))) == {(1,)}


def test_a_rank_that_has_finished_is_not_named_beside_one_that_dies():
    def made(job):
        def body(rank, size, store):
            executor = Executor(ONE, store, rank, size, timeout_s=TIMEOUT_S)
            executor.submit(torch.ones(10)).wait()
            store.set(f"{rank} is done", "")
            store.wait([f"{peer} is done" for peer in range(size)], FAR)
            if rank == 0:
                executor.close()
                store.set("rank 0 has closed", "")
                return None
            store.wait(["rank 0 has closed"], FAR)
            if rank == 1:
                store.set("rank 1 dies", "")
                die(job, 1)
            store.wait(["rank 1 dies"], FAR)
            host.sleep(0.1)
            failure = executor.find_silent("asked by the test")
            executor.close()
            return failure.ranks, "rank 0 has closed after 1 operation" in str(failure)

        return body

    for outcomes in on_hosts(4, made, victims=[1]):
        assert outcomes[2].result == outcomes[3].result == ((1,), True)


def test_a_late_rank_that_never_comes_is_named_and_learns_it_when_it_does():
    def made(job):
        def body(rank, size, store):
            executor = Executor(ONE, store, rank, size, timeout_s=TIMEOUT_S)
            if rank == 3:
                store.wait([f"{peer} has given up" for peer in range(3)], FAR)
            with pytest.raises(RankFailure) as caught:
                executor.submit(torch.ones(10)).wait()
            store.set(f"{rank} has given up", "")
            executor.close()
            return caught.value.ranks, "has not entered operation 0" in str(caught.value)

        return body

    for outcomes in on_hosts(4, made):
        assert {outcomes[rank].result for rank in range(3)} == {((3,), True)}
        assert outcomes[3].result[0] == (3,)


class Slow(Observer):
    def step_begins(self, operation, phase, round):
        host.sleep(1.4)


def test_a_wait_for_a_late_rank_is_not_held_against_those_between():
    """The late rank needs longer, all in all, than a wait may last; but it is never silent."""

    def made(job):
        def body(rank, size, store):
            is_late = rank == 3
            slow = Slow() if is_late else None
            executor = Executor(SLOW, store, rank, size, timeout_s=6.0, observer=slow)
            if is_late:
                host.sleep(2.4)
            began_s = job.world.now_s
            result = executor.submit(torch.ones(10)).wait()[0].item()
            executor.close()
            return result, job.world.now_s - began_s

        return body

    for outcomes in on_hosts(4, made):
        for rank, outcome in outcomes.items():
            result, took_s = outcome.result
            assert result == 4.0
            assert took_s > 6.0 or rank == 3


@pytest.mark.parametrize("silence_s", [0.2, 1.0])
def test_a_rank_that_is_silent_is_named_within_a_little_more_than_silence_may_last(silence_s):
    """Its host keeps its connections open: only that it does not answer tells.

    Who gives up may have to wait a second for its loop, which waits to tell it of the same.
    """

    def made(job):
        def body(rank, size, store):
            times = {"timeout_s": 600.0, "silence_s": silence_s, "join_timeout_s": 30.0}
            executor = Executor(ONE, store, rank, size, **times)
            executor.submit(torch.ones(5_000)).wait()
            if rank == 2:
                stop(job, rank, NEVER_S)
            began_s = host.monotonic()
            with pytest.raises(RankFailure) as failed:
                executor.submit(torch.ones(5_000)).wait()
            took_s = host.monotonic() - began_s
            executor.close()
            return failed.value.ranks, took_s

        return body

    for outcomes in on_hosts(4, made, victims=[2]):
        for rank in (0, 1, 3):
            ranks, took_s = outcomes[rank].result
            assert ranks == (2,)
            assert silence_s <= took_s < 1.6 * silence_s + STOP_S


def test_a_rank_that_is_late_is_no_silent_one():
    def made(job):
        def body(rank, size, store):
            times = {"timeout_s": 600.0, "silence_s": 0.3, "join_timeout_s": 30.0}
            executor = Executor(ONE, store, rank, size, **times)
            host.sleep(30.0 if rank == 1 else 0.0)
            total = executor.submit(torch.ones(5_000)).wait()
            executor.close()
            return total[0].item()

        return body

    for outcomes in on_hosts(4, made):
        assert {outcome.result for outcome in outcomes.values()} == {4.0}


def test_who_aborts_returns_at_once_and_all_name_it_at_once():
    def made(job):
        def body(rank, size, store):
            # small ones of the others have come by then, so that rank 3 could end one all the same
            large = torch.ones(50_000)
            executor = Executor(ONE, store, rank, size, timeout_s=600.0)
            works = [executor.submit(large.clone()) for _ in range(3)] if rank != 3 else []
            host.sleep(1.0)
            began_s = host.monotonic()
            if rank == 3:
                executor.abort("no data is left")
            took_s = host.monotonic() - began_s
            with pytest.raises(RankFailure, match="rank 3: has aborted, no data is left") as failed:
                (works or [executor.submit(large)])[0].wait()
            raised_s = host.monotonic() - began_s
            executor.close()
            return failed.value.ranks, took_s, raised_s

        return body

    for outcomes in on_hosts(4, made):
        for outcome in outcomes.values():
            ranks, took_s, raised_s = outcome.result
            assert ranks == (3,)
            assert took_s < 0.05
            assert raised_s < 0.5


@pytest.mark.parametrize(
    ("name", "value"), [("silence_s", 0.0), ("silence_s", 31.0), ("join_timeout_s", -1.0)]
)
def test_times_that_make_no_sense_are_refused(name, value):
    def body(rank, size, store):
        with pytest.raises(ArgumentError, match=name):
            Executor(ONE, store, rank, size, timeout_s=60.0, **{name: value})

    on_hosts(4, lambda job: body, seeds=[0])
