"""All ranks act on the same decision for the same operation, whatever becomes of messages."""

from __future__ import annotations

import operator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.policy.agent import Decided, RankAgent
from latecomer.runtime.policy.arrivals import Arrival, BufferSignature
from latecomer.runtime.policy.coordinator import Coordinator
from latecomer.runtime.policy.messages import (
    NATIVE,
    Arrive,
    Ask,
    Decide,
    Decision,
    Epoch,
    Outcome,
    Propose,
)
from latecomer.runtime.policy.options import Options
from latecomer.runtime.policy.rules import QUIET
from tests.runtime.policy.network import LARGE, MESSAGES, Network, floats, inputs

MODES = ["predict", "eager", "auto"]


def _agreed(network):
    """Every operation was decided on every rank, everywhere alike; the decisions."""
    assert not network.faults
    assert {len(own_decisions) for own_decisions in network.decisions} == {network.operations}
    for operation, decisions in enumerate(zip(*network.decisions, strict=True)):
        assert len(set(decisions)) == 1, (operation, decisions)
    return network.decisions[0]


WEATHER = {
    "lost": st.sampled_from([0.0, 0.1, 0.5]),
    "doubled": st.sampled_from([0.0, 0.5]),
    "longest_s": st.sampled_from([0.0001, 0.05, 3.0]),
    "seed": st.integers(0, 2**32),
    "clocks": st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=6).map(tuple),
    "head_of": st.integers(1, 3),
    "window": st.integers(1, 9),
}


@settings(max_examples=24, deadline=None)
@given(st.sampled_from(MODES), st.fixed_dictionaries(WEATHER))
def test_same_decision_everywhere_in_any_weather(mode, weather):
    network = Network(len(weather["clocks"]), Options(mode), 40, **weather, made_at={0: 9})
    dice = network.dice
    late_at = [dice.randrange(network.size) for _ in range(network.operations)]
    habitually_late = dice.randrange(network.size)

    def lateness(rank, operation):
        late = habitually_late if operation % 20 > 4 else late_at[operation]
        jitter_s = dice.random() * 0.01
        if rank != late:
            return jitter_s
        return jitter_s + dice.choice([0.3, 5.0])

    network.lateness = lateness
    network.made_at |= {rank: dice.randrange(20) for rank in range(network.size)}
    _agreed(network.run(limit_s=5000.0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("late", "head_of"), [(0, 1), (3, 1), (0, 2), (2, 2)])
def test_a_persistent_straggler_is_found_even_if_it_coordinates(mode, late, head_of):
    """Rank 0 coordinates first; being late it hands over, and is treated as any other."""
    network = Network(4, Options(mode), operations=40, window=1, head_of=head_of)
    network.lateness = lambda rank, _: 10.0 if rank == late else 0.001 * rank

    decisions = _agreed(network.run(limit_s=5000.0))

    assert all(decision.late == (late,) for decision in decisions[-15:])
    (coordinator,) = {agent.epochs.latest.coordinator for agent in network.agents}
    assert coordinator != late


@pytest.mark.parametrize(("mode", "kinds"), [("eager", 2), ("predict", 1), ("auto", None)])
def test_no_straggler_means_native_on_clocks_that_differ_by_far(mode, kinds):
    """Each rank but the coordinator tells that it has come, and (eager) is told the decision."""
    network = Network(4, Options(mode), window=1, clocks=(0.0, 500.0, -300.0, 7.0))
    network.lateness = lambda rank, operation: 0.0005 * ((rank + operation) % 4)

    decisions = _agreed(network.run())

    assert {decision.candidate for decision in decisions} == {NATIVE}
    messages = network.sent["Arrive"] + network.sent["Decide"]
    assert kinds is None or messages == kinds * 3 * network.operations


def test_the_first_ranks_start_before_the_late_one_comes_and_two_may_be_late():
    network = Network(8, Options("eager", threshold_s=0.5), operations=6, window=1)
    network.lateness = lambda rank, _: {5: 20.0, 2: 30.0}.get(rank, 0.0)

    decisions = _agreed(network.run())

    assert {frozenset(decision.late) for decision in decisions} == {frozenset({2, 5})}
    assert decisions[-1].late == (5, 2)  # by then in the order in which they come
    for rank in (0, 1, 3, 4, 6, 7):
        times = zip(network.arrived_s[rank], network.decided_s[rank], strict=True)
        for arrived_s, decided_s in times:
            assert 0.5 <= decided_s - arrived_s < 0.6
    assert network.decided_s[2][0] - network.arrived_s[2][0] == 0.0  # it knows when it comes


def test_a_head_that_stops_is_started_without_since_its_ranks_ask_past_it():
    network = Network(6, Options("eager"), 8, head_of=2, stopped={2: (1.0, 60.0)}, window=1)
    network.lateness = lambda rank, operation: 0.4

    decisions = _agreed(network.run())

    assert (2,) in {decision.late for decision in decisions}
    without_head = next(
        operation for operation, decision in enumerate(network.decisions[3]) if decision.late
    )
    # rank 2 heads rank 3, which asks the coordinator itself after 2.5 s
    assert network.decided_s[3][without_head] - network.arrived_s[3][without_head] < 3.0


@pytest.mark.parametrize("mode", MODES)
def test_no_rank_hears_more_than_heads_and_those_it_heads(mode):
    network = Network(100, Options(mode), 12, window=1)
    network.lateness = lambda rank, _: 0.05 * (rank == 57) + 0.001 * network.dice.random()

    _agreed(network.run())

    assert network.agents[0].inputs.head_of == 8
    assert max(network.heard.values()) < 12 * 2 * (1 + 2 * 8)


def test_small_buffers_are_native_without_a_word():
    network = Network(8, Options("auto"), nbytes=lambda *_: 10)
    network.lateness = lambda rank, _: 1.0 * (rank == 1)

    decisions = _agreed(network.run())

    assert {decision.candidate for decision in decisions} == {NATIVE}
    assert set(network.sent) == {"Ping", "Pong"}


@pytest.mark.parametrize("mode", ["native", "eager", "auto"])
def test_what_nobody_has_to_be_told_of_at_once_is_decided_as_a_rank_comes_to_it(mode):
    network = Network(4, Options(mode), 200)
    network.lateness = lambda *_: 0.01
    network.run()
    coordinator = network.agents[0].inputs
    least = {"native": 200, "eager": 0, "auto": 100}[mode]
    most = {"native": 200, "eager": 0, "auto": 190}[mode]  # a report goes with some of them
    assert all(least <= network.at_once[rank] <= most for rank in range(4))
    assert all(own == network.decisions[0] for own in network.decisions)
    assert coordinator.history.added > 150 or mode == "native"  # they are told of all the same


def test_auto_falls_silent_without_a_straggler_and_asks_again_when_there_is_one():
    network = Network(8, Options("auto"), 150, window=1, lost=0.05)
    network.lateness = lambda rank, operation: 0.5 * (rank == 3 and operation >= 100)

    decisions = _agreed(network.run())

    asked = [decision.reason != QUIET for decision in decisions]
    assert all(asked[:6])
    assert not any(asked[40:100])
    assert all(3 in decision.late for decision in decisions[-10:])
    # one a rank and operation, a few again; while all are quiet one for many operations
    assert network.sent["Arrive"] < 7 * (1.2 * asked.count(True) + asked.count(False) / 3)


@pytest.mark.parametrize(
    ("stopped", "asked", "named"),
    [
        ((0,), (1, 2, 3), 0),  # the coordinator
        ((2, 3), (0,), 2),  # two: with most_late=1 none can be started without them
    ],
)
def test_who_stops_for_ever_is_the_one_waited_for(stopped, asked, named):
    stops = dict.fromkeys(stopped, (1.0, 1e9))
    network = Network(4, Options("eager", most_late=1), 60, stopped=stops, lateness=lambda *_: 0.05)
    network.run(limit_s=20.0)
    for rank in asked:
        undecided = len(network.decisions[rank])
        assert undecided < 60
        assert network.agents[rank].waits_for(undecided) == named


# at 60 in mode auto all are quiet: named afterwards
@pytest.mark.parametrize(("mode", "at"), [*((mode, 7) for mode in MODES), ("auto", 60)])
@pytest.mark.parametrize("head_of", [1, 2])
def test_ranks_that_disagree_on_the_buffer_are_named(mode, at, head_of):
    network = Network(4, Options(mode), at + 30, window=1, head_of=head_of)
    network.lateness = lambda *_: 0.05
    network.nbytes = lambda rank, operation: LARGE + 4 * (rank == 2 and operation == at)

    (fault,) = network.run().faults

    assert fault.ranks == (2,)
    assert f"operation {at}" in fault.text
    most_decisions = max(map(len, network.decisions))
    if at == 7:
        assert most_decisions <= 8
    else:
        assert 60 < most_decisions < 90


@pytest.mark.parametrize("odd", [{0}, {8}, {1, 5}, {2, 3}, {0, 3, 6, 7}, {*range(8)}], ids=str)
def test_stamps_of_two_buffers_land_with_their_ranks_through_heads(odd):
    network = Network(
        9,
        Options("eager", threshold_s=99.0),
        operations=9,
        head_of=2,
        lost=0.3,
        doubled=0.5,
        window=1,
        seed=len(odd),
    )
    network.lateness = lambda rank, _: 0.01 * rank
    network.nbytes = lambda rank, operation: LARGE + 4 * (rank in odd and operation == 7)

    assert network.run().faults
    network.faults.clear()
    network.run(network.now_s + 40.0)  # until all are heard of

    state = network.agents[0]._coordinator._states[7]
    arrived_s = [by_operation[7] for by_operation in network.arrived_s]
    assert state.at_s.tolist() == pytest.approx(arrived_s, abs=0.004)
    for rank in range(9):
        assert state.odd.get(rank, state.buffer).nbytes == network.nbytes(rank, 7)


SPOKEN_FOR = [(1, 0, 1), (2, 0, 2), (1, None, 1), (4, None, 4)]  # to 0 as a head, as coordinator


@pytest.mark.parametrize(("sender", "to", "ranks"), SPOKEN_FOR)
@pytest.mark.parametrize("asks", [True, False])
def test_stamps_of_other_ranks_than_spoken_for_are_refused_and_not_taken(sender, to, ranks, asks):
    agent = RankAgent(0, inputs(8, Options("eager"), head_of=2))
    nbytes = 8 * ranks  # a stamp is a float of 8 bytes

    def operations_after(*stamps_and_odd):
        """Of which operations the agent knows arrivals once it has received these."""
        arrivals = []
        for operation, (stamps, odd) in enumerate(stamps_and_odd, start=3):
            arrivals.append(Arrival(operation, floats(LARGE), stamps, odd))
        arrive = Arrive(tuple(arrivals), asks, consumed=0, made=0, to=to)
        agent.receive_message(MESSAGES.decode(msgspec.msgpack.encode(arrive)), sender, 1.0)
        return agent._coordinator._states.keys() | agent._head._states.keys()

    buffer = BufferSignature(4, "int8")
    right = bytearray(nbytes), {sender: buffer}
    wrong = [(bytearray(nbytes + more), {}) for more in (-nbytes, -8, -1, 1, 8, 32)]
    wrong += [(bytearray(nbytes), {rank: buffer}) for rank in (sender - 1, sender + ranks)]

    for stamps_and_odd in wrong:
        with pytest.raises(ValueError, match="no arrivals of"):
            operations_after(right, stamps_and_odd)
    assert operations_after() == set()

    # of others than heads a coordinator takes questions only
    is_taken = asks or sender != 1 or to == 0
    assert operations_after(right) == ({3} if is_taken else set())


def test_a_late_rank_with_another_buffer_than_was_decided_on_acts_on_nothing():
    network = Network(4, Options("eager", threshold_s=0.1), operations=3, window=1)
    network.nbytes = lambda rank, _: LARGE + 4 * (rank == 2)
    network.lateness = lambda rank, _: 5.0 * (rank == 2)

    network.run()

    assert [fault.ranks for fault in network.faults] == [(2,)]
    assert [len(decisions) for decisions in network.decisions] == [1, 1, 0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_size_wants_runs_once_all_have_made_it_or_the_simulation_notices(mode, monkeypatch):
    def decided_candidates():
        network = Network(4, Options(mode), 30, window=1, head_of=2, made_at={1: 15})
        network.lateness = lambda rank, _: 1.0 * (rank == 3)
        return [decision.candidate for decision in _agreed(network.run())]

    assert 1 not in decided_candidates()[:15]
    assert 1 in decided_candidates()

    monkeypatch.setattr(operator, "and_", operator.or_)  # of what ranks have made
    with pytest.raises(AssertionError):
        decided_candidates()


def test_the_simulation_notices_a_coordinator_that_changes_its_mind(monkeypatch):
    def fickle(self, to, message):
        """Answers who asks again otherwise than it has told all."""
        changed = msgspec.structs.replace(message, decision=Decision(NATIVE, (), "changed"))
        self._outbox.append((to, changed))

    def agreed(seed):
        network = Network(4, Options("eager", threshold_s=0.1), 20, lost=0.3, seed=seed)
        network.lateness = lambda rank, _: 1.0 * (rank == 3)
        by_operation = zip(*network.run().decisions, strict=False)
        return all(len(set(decisions)) == 1 for decisions in by_operation)

    monkeypatch.setattr(Coordinator, "_send", fickle)
    assert not all(agreed(seed) for seed in range(20))


def test_a_decision_may_come_before_the_epoch_of_its_operation_is_known():
    """The rank goes on with it, and tells that it had come once it knows whom to tell."""
    agent = RankAgent(1, inputs(3, Options("eager")))
    proposed = Epoch(version=1, first=0, coordinator=2)
    agent.receive_message(Propose(proposed), 0, now_s=1.0)
    agent.arrive(0, floats(LARGE), now_s=2.0)
    decision = Decision(NATIVE, (), "all ranks have arrived")
    agent.receive_message(Decide(0, floats(LARGE), decision), 0, now_s=3.0)
    assert agent.next_event() == Decided(0, decision)

    agent.handle_timer(now_s=4.0)  # asks for the outcome
    assert any(isinstance(message, Ask) for _, message in agent.messages_to_send(4.0))

    agent.receive_message(Outcome(1, False), 0, now_s=5.0)
    agent.arrive(1, floats(LARGE), now_s=6.0)
    told = [message for _, message in agent.messages_to_send(6.0) if isinstance(message, Arrive)]
    assert [arrival.operation for message in told for arrival in message.arrivals] == [0, 1]
    assert agent.next_event() is None
