"""Executions are the same for the same seed; what must hold does, and is seen not to hold."""

from __future__ import annotations

import logging

import msgspec

from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.tcp import transfer
from latecomer.runtime.executor.tcp.loop import EventLoop
from latecomer.runtime.health import diagnosis, protocol
from latecomer.runtime.network import clock
from latecomer.runtime.policy.agent import Decided, RankAgent
from latecomer.runtime.policy.messages import Decision
from latecomer.runtime.work import AllReduceWork
from tests.runtime.spawning import python
from tests.simulation import execution as executions
from tests.simulation.campaign import allreduces, shrunk
from tests.simulation.execution import execute
from tests.simulation.places import PLACES, bending, bent
from tests.simulation.plan import Kill, drawn, read
from tests.simulation.swarm import run_stretch

SEEDS = range(60)
TRACES = """
from tests.simulation.execution import execute
from tests.simulation.plan import drawn
print(*(execute(drawn(seed)).trace for seed in {seeds}))
"""


def test_all_holds_for_some_seeds():
    stretch = run_stretch(allreduces(("executor", "auto", "eager", "predict")), SEEDS, end_s=1e300)
    assert [text for _, text in stretch.failing] == []
    assert stretch.executions == len(SEEDS)
    assert logging.getLogger().isEnabledFor(logging.ERROR)  # other tests look at what is logged


def test_a_seed_is_one_execution():
    """Whatever ran before it, and however strings are hashed."""
    seeds = [3, 7, 24, 35]
    traces = {}
    for seed in reversed(seeds):
        traces[seed] = execute(drawn(seed)).trace
    alone = python("-c", TRACES.format(seeds=seeds), PYTHONHASHSEED="7")
    assert alone.stdout.split() == [traces[seed] for seed in seeds], alone.stderr
    assert len(set(traces.values())) == len(seeds)


def test_plans_are_read_back():
    plans = [drawn(seed) for seed in range(300)]
    assert [read(plan.as_json()) for plan in plans] == plans
    assert {type(fault).__name__ for plan in plans for fault in plan.faults} == {
        "Kill",
        "Stop",
        "Cut",
        "StoreTrouble",
    }
    assert {plan.kind for plan in plans} >= {"executor", "auto", "eager", "predict", "static"}


def test_a_rank_that_is_killed_is_named_by_all_others():
    calm = next(
        plan for plan in map(drawn, range(1000)) if plan.kind == "executor" and plan.ranks == 4
    )
    plan = msgspec.structs.replace(
        calm,
        faults=(Kill(rank=2, at_s=0.3, resets=False),),
        lateness_s=(0.1, 0.0, 0.0, 0.0),
        sizes=(100,) * 10,
        timeout_s=3.0,
        lost=0.0,
    )
    execution = execute(plan)
    assert execution.problems == []
    for rank in (0, 1, 3):
        failure = execution.told[rank].failure
        assert failure is not None
        assert failure.ranks == (2,) or list(failure.ranks) == [2]


def test_an_operation_without_elements_needs_no_word_of_who_has_closed():
    """The coordinator, done with the last one, closed; who had not heard its decision asked on."""
    for seed in (50, 114):
        plan = drawn(seed)
        empty = msgspec.structs.replace(plan, kind="auto", sizes=(0,) * 4, lost=0.3, faults=())
        assert execute(empty).problems == []


def test_who_stood_behind_a_slow_operation_is_waited_for_from_its_end_on(monkeypatch):
    """The one before took nearly the time-out, but went on; nobody had waited for the next one."""
    plan = msgspec.structs.replace(drawn(74650), kind="executor", seed=40, sizes=(45_000, 1))
    assert execute(plan).problems == []
    monkeypatch.setattr(EventLoop, "_begin_wait_behind", lambda loop, complete: None)
    assert "closed while others wait" in execute(plan).problems[0]


def test_who_is_further_is_not_said_to_wait_for_each_other(monkeypatch):
    """Ranks 1 and 3 are cut off from each other; others stand two operations later."""
    sizes = (20_000, 60_000, 20_000, 20_000, 0, 60_000, 60_000, 40_000, 20_000)
    plan = msgspec.structs.replace(drawn(37091), seed=0, sizes=sizes)
    assert execute(plan).problems == []
    monkeypatch.setattr(diagnosis, "_first_to_wait", lambda statuses, me: me)
    assert "rank 0 blames [0, 4], which live" in execute(plan).problems[0]


def test_a_verdict_is_sent_until_it_is_acknowledged(monkeypatch):
    """Rank 0 decided and ended; two of its datagrams to rank 1, one after the other, are lost."""
    plan = msgspec.structs.replace(drawn(39291), seed=31)
    assert execute(plan).problems == []
    monkeypatch.setattr(protocol, "TELLS", 2)
    assert "rank 1 does not name rank 2" in execute(plan).problems[0]


def test_what_the_network_loses_gives_more_time(monkeypatch):
    """An operation that has gone on for four seconds is waited for from then on."""
    plan = msgspec.structs.replace(drawn(61699), seed=63)
    assert execute(plan).problems == []
    monkeypatch.setattr(executions, "_moving_s", lambda plan, operation: 0.0)
    assert "the time-out is 10.0 s" in execute(plan).problems[0]


def test_a_start_that_fails_leaves_no_thread():
    """The one that waits for native all-reduces went on for ever."""
    calm = msgspec.structs.replace(drawn(686, kinds=("native",)), bent={}, pause=0.0, short=0.0)
    for milliseconds in range(80, 120, 4):
        kill = Kill(rank=0, at_s=milliseconds / 1000, resets=False)
        assert execute(msgspec.structs.replace(calm, faults=(kill,))).problems == []


def test_a_send_that_does_not_wait_for_its_data_is_noticed_and_shrunk(monkeypatch):
    monkeypatch.setattr(transfer.TransferState, "limit", lambda state, i: state.size[i])
    failing = next(plan for plan in map(_executor, range(200)) if execute(plan).problems)
    smallest = shrunk(allreduces(), failing)
    assert execute(smallest).problems
    assert smallest.ranks <= failing.ranks
    assert len(smallest.sizes) <= len(failing.sizes)


def test_a_transfer_that_goes_beyond_its_credit_is_noticed(monkeypatch):
    real = transfer.TransferState.sendable

    def sends_all(state, i):
        credit = state.credit[i]
        state.credit[i] = state.size[i]
        length = real(state, i)
        state.credit[i] = credit
        return length

    monkeypatch.setattr(transfer.TransferState, "sendable", sends_all)
    assert any("bytes have moved" in execute(plan).summary for plan in map(_executor, range(40)))


def test_a_result_that_changes_later_is_noticed(monkeypatch):
    real = AllReduceWork.wait

    def spoils_the_first(work, timeout=None):
        tensor = real(work, timeout)
        if work.number == 1 and tensor.numel():
            work.tensor[0] += 1.0
        return tensor

    monkeypatch.setattr(AllReduceWork, "wait", spoils_the_first)
    assert any("changed after" in execute(plan).summary for plan in map(_executor, range(40)))


def test_an_operation_that_is_settled_twice_is_noticed(monkeypatch):
    real = Executor.end

    def ends_again(executor, work, error=None):
        real(executor, work, error)
        work.settle(error)

    monkeypatch.setattr(Executor, "end", ends_again)
    assert any("settled twice" in execute(plan).summary for plan in map(_executor, range(5)))


def test_a_clock_that_claims_too_much_is_noticed(monkeypatch):
    monkeypatch.setattr(clock, "DRIFT", -1e-3)
    plans = (drawn(seed, kinds=("auto",)) for seed in range(60))
    assert any("its clock is off" in execute(plan).summary for plan in plans)


def test_decisions_that_differ_are_noticed(monkeypatch):
    real = RankAgent.next_event

    def tells_another(agent):
        event = real(agent)
        if isinstance(event, Decided) and agent.rank == 1 and event.operation == 1:
            other = Decision(event.decision.candidate + 1, event.decision.late, "another")
            event = Decided(event.operation, other)
        return event

    monkeypatch.setattr(RankAgent, "next_event", tells_another)
    plans = (drawn(seed, kinds=("auto",)) for seed in range(10))
    assert any("is decided as" in execute(plan).summary for plan in plans)


def test_what_is_bent_is_straight_again():
    before = {name: getattr(place.module, place.name) for name, place in PLACES.items()}
    chosen = {name: 0 for name in PLACES}
    with bending(chosen):
        for name, place in PLACES.items():
            assert getattr(place.module, place.name) == place.values[0] != before[name]
    assert before == {name: getattr(place.module, place.name) for name, place in PLACES.items()}


def test_every_place_is_bent_in_every_way_by_some_seed():
    ways = set()
    for seed in range(2000):
        ways.update(bent(seed).items())
    expected = set()
    for name, place in PLACES.items():
        expected.update((name, number) for number in range(len(place.values)))
    assert ways == expected


def test_a_verdict_on_the_wrong_rank_is_noticed(monkeypatch):
    real = diagnosis.diagnose

    def blames_the_next(world_size, *others, **named):
        failure = real(world_size, *others, **named)
        failure.ranks = tuple((rank + 1) % world_size for rank in failure.ranks)
        return failure

    monkeypatch.setattr("latecomer.runtime.health.watchdog.diagnose", blames_the_next)
    plans = (
        plan for plan in map(_executor, range(400)) if any(isinstance(f, Kill) for f in plan.faults)
    )
    assert any("which live" in execute(plan).summary for plan in plans)


def _executor(seed):
    return drawn(seed, kinds=("executor",))
