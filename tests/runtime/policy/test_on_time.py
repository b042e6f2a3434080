"""For whom nobody is late: the ways that are tried, what is settled on, by all ranks alike."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.collective import COLLECTIVES
from latecomer.runtime.policy import rules
from latecomer.runtime.policy.agent import RankAgent
from latecomer.runtime.policy.arrivals import size_class
from latecomer.runtime.policy.cost_model import (
    PROFILE,
    AlphaBeta,
    Phase,
    Profile,
    ScheduleCandidate,
)
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.messages import NATIVE, Epoch
from latecomer.runtime.policy.on_time import (
    COMPARED,
    ENOUGH,
    FASTEST,
    KEPT,
    MOST_SCHEDULES,
    NOT_FOUND,
    SELDOM,
    TRIED_FOR,
    TRYING,
    TRYING_AGAIN,
    OnTimeTimes,
    is_to_compare,
    is_tried_again,
    named,
    on_time_of,
    tried,
    way_on_time,
)
from latecomer.runtime.policy.options import Options, PolicyInputs
from tests.runtime.policy.network import (
    DOUBLING,
    GATHER,
    LARGE,
    ON_TIME,
    RING,
    SCATTER,
    Network,
    floats,
    inputs,
)
from tests.runtime.spawning import on_ranks

WAY_OF = {"native": NATIVE, "five": 5, "seven": 7}
WAYS = tuple(WAY_OF.values())
SMALL = 40
"""Bytes for which no schedule could gain anything from a late rank in ``network.inputs``."""


def _candidates(*messages):
    nothing = Phase(0, 0)
    late = ScheduleCandidate("late", 1, nothing, nothing)
    on_time = [ScheduleCandidate(f"{count}", 0, Phase(count, 0), nothing) for count in messages]
    return (late, *on_time)


def test_the_likely_ways_are_tried_the_fastest_first():
    profile = Profile(4, AlphaBeta(1.0, 1.0), AlphaBeta(1.0, 1.0))
    assert tried(10, _candidates(7, 4, 5, 9, 6, 8), profile) == (NATIVE, 2, 3, 5)
    assert tried(10, _candidates(7, 3), profile) == (NATIVE, 2)  # the other one is hopeless
    assert tried(10, _candidates(), profile) == (NATIVE,)
    dear = Profile(4, AlphaBeta(1.0, 0.0), AlphaBeta(5.0, 0.0))
    # 20 s and 25 s, natively 6 s
    assert tried(10, _candidates(4, 5), dear) == (*[NATIVE] * SELDOM, 1)
    assert len({*tried(10, _candidates(*range(90, 99)), profile)}) == 1 + MOST_SCHEDULES


@pytest.mark.parametrize(
    ("alpha_s", "natively"), [(0.94, 1), (0.96, 2 * SELDOM), (1.5, 2 * SELDOM)]
)
def test_where_no_schedule_promises_a_gain_most_are_native(alpha_s, natively):
    profile = Profile(4, AlphaBeta(1.0, 0.0), AlphaBeta(alpha_s, 0.0))
    ways = tried(10, _candidates(7, 6), profile)
    assert Counter(ways) == {NATIVE: natively, 1: 1, 2: 1}


@given(st.integers(0, 10**6), st.integers(1, 2**40))
def test_every_way_is_tried_about_as_often(first, nbytes):
    operations = range(first, first + 900)
    epoch = Epoch(0, first, 0)
    ways = [way_on_time(epoch, operation, size_class(nbytes), WAYS)[0] for operation in operations]
    counted = Counter(ways)
    assert counted.keys() == set(WAYS)
    assert min(counted.values()) > 200


@given(st.integers(0, 10**6), st.integers(1, 2**40))
def test_what_is_settled_runs_but_for_comparisons(operation, nbytes):
    on_time = ((0, NATIVE), (size_class(nbytes), 7))
    way, _ = way_on_time(Epoch(1, 0, 0, on_time=on_time), operation, size_class(nbytes), WAYS)
    assert way == (NATIVE if is_to_compare(operation) else 7) or is_tried_again(operation)


def test_what_is_settled_is_compared_with_every_way():
    operations = range(1, 100 * COMPARED)
    settled = Epoch(1, 0, 0, on_time=((size_class(100), 7),))
    again = [operation for operation in operations if is_tried_again(operation)]
    assert 50 < len(again) < 150
    assert not any(map(is_to_compare, again))
    ways = [way_on_time(settled, operation, size_class(100), WAYS) for operation in again]
    assert {way for way, _ in ways} == {*WAYS}
    assert {reason for _, reason in ways} == {TRYING_AGAIN}


@given(st.integers(0, 10**6), st.integers(0, 2 * TRIED_FOR))
def test_what_is_not_settled_in_time_runs_natively(first, behind):
    way, reason = way_on_time(Epoch(1, first, 0), first + behind, size_class(100), WAYS)
    assert reason == (TRYING if behind < TRIED_FOR else NOT_FOUND)
    assert way == NATIVE or behind < TRIED_FOR


@given(st.lists(st.sampled_from(WAYS), max_size=5 * ENOUGH))
def test_nothing_is_settled_before_enough_is_known_of_each(ways):
    times = OnTimeTimes()
    for way in ways:
        times.add(size_class(100), way, 1.0 if way == NATIVE else 0.5)
    table = times.settled((), lambda of_class: WAYS)
    is_enough = all(ways.count(way) >= ENOUGH for way in WAYS)
    assert len(table) == is_enough
    assert times.added == len(ways)


def _known(**took_s):
    """Times of one class of sizes, by way."""
    times = OnTimeTimes()
    for name, seconds in took_s.items():
        for _ in range(KEPT):
            times.add(size_class(100), WAY_OF[name], seconds)
    return times


@pytest.mark.parametrize(
    ("took_s", "way"),
    [
        ({"native": 1.0, "five": 0.8, "seven": 0.7}, 7),
        ({"native": 1.0, "five": 0.7, "seven": 0.8}, 5),
        ({"native": 1.0, "five": 0.99, "seven": 0.98}, NATIVE),  # that is not enough to change over
        ({"native": 0.5, "five": 0.7, "seven": 0.8}, NATIVE),
    ],
)
def test_the_fastest_is_settled_on(took_s, way):
    times = _known(**took_s)
    assert times.settled((), lambda of_class: WAYS) == ((size_class(100), way),)
    assert times.least_s(100, default_s=9.0) == min(took_s.values())
    assert times.least_s(10**6, default_s=9.0) == 9.0


def test_another_way_if_it_turns_out_to_be_faster():
    table = ((size_class(100), 7),)
    still = _known(native=0.96, seven=1.0).settled(table, lambda of_class: WAYS)
    native = _known(native=0.9, seven=1.0).settled(table, lambda of_class: WAYS)
    other = _known(native=0.9, five=0.8, seven=1.0).settled(table, lambda of_class: WAYS)
    unknown = _known(native=0.1).settled(table, lambda of_class: WAYS)
    assert still == unknown == table
    assert native == ((size_class(100), NATIVE),)
    assert other == ((size_class(100), 5),)


@settings(max_examples=9, deadline=None)
@given(
    st.sampled_from(["predict", "eager", "auto"]),
    st.sampled_from([LARGE, SMALL]),
    st.sampled_from([0.0, 0.1]),
    st.integers(2, 5),
    st.integers(0, 2**32),
)
def test_all_ranks_settle_on_the_fastest_way(mode, nbytes, lost, size, seed):
    slower_ways = {RING: 0.3, DOUBLING: 0.2}
    network = Network(
        size,
        Options(mode),
        1300,
        window=1,
        lost=lost,
        seed=seed,
        nbytes=lambda *_: nbytes,
        on_time=True,
        slower_ways=slower_ways,
    )
    network.lateness = lambda *_: 0.01
    decisions = network.run().decisions

    assert not network.faults
    assert all(own == decisions[0] for own in decisions)
    policy_inputs = network.agents[0].inputs
    times_s = {NATIVE: policy_inputs.native_s(nbytes, corrected=False)}
    for each in policy_inputs.times(0, nbytes, corrected=False):
        times_s[each.candidate] = each.waiting_s * slower_ways.get(each.candidate, 1.0)
    tried_ways = policy_inputs.ways_on_time(size_class(nbytes))
    fastest = min(tried_ways, key=lambda way: times_s[way])
    numbers = [number for number in range(1250, 1300) if not is_tried_again(number)]
    last = [decisions[0][number].candidate for number in numbers]
    expected = [NATIVE if is_to_compare(number) else fastest for number in numbers]
    # a decision that is lost is seen in how long operations take, and reports are sent once
    assert last == expected or lost


def test_a_late_rank_is_begun_without_all_the_same():
    network = Network(8, Options("auto"), 250, window=1, on_time=True)
    network.lateness = lambda rank, operation: 0.01 + 0.5 * (rank == 3 and operation >= 200)
    decisions = network.run().decisions[0]
    assert {decision.candidate for decision in decisions[150:200]} & {NATIVE, *ON_TIME}
    last = decisions[-10:]
    assert all(each.late == (3,) or each.reason == rules.TO_COMPARE for each in last)


def test_ways_on_time_are_tried_first_where_a_start_without_a_rank_beats_the_native_way():
    """Ranks come at random times, much closer together than what an operation takes."""
    network = Network(8, Options("auto"), 200, window=1, on_time=True, slower=(4.0, 1.0))
    dice = random.Random(0)
    network.lateness = lambda *_: 0.01 + 0.002 * dice.random()
    decisions = network.run().decisions[0]
    assert not network.faults
    assert sum(each.late != () for each in decisions) < 20
    assert sum(each.candidate == RING for each in decisions[-50:]) > 40


def test_small_operations_say_nothing_of_who_is_late():
    sizes = [LARGE, SMALL, SMALL]
    network = Network(4, Options("auto"), 90, window=1, on_time=True)
    network.nbytes = lambda rank, operation: sizes[operation % 3]
    network.lateness = lambda *_: 0.01
    network.run()
    coordinator = network.agents[0].inputs
    assert 0 < coordinator.history.added <= 30 < coordinator.on_time.added


@pytest.mark.parametrize("mode", ["predict", "eager", "auto"])
def test_each_collective_has_its_own_way_and_no_rank_is_left_out_of_others(mode):
    """Not even one that is late every time, for which all-reduces are begun without it."""
    way_of = {"all_reduce": None, "reduce_scatter": SCATTER, "all_gather": NATIVE}
    network = Network(5, Options(mode), 900, window=1, on_time=True, slower_ways={GATHER: 5.0})
    network.collective = lambda rank, operation: COLLECTIVES[operation % 3]
    network.lateness = lambda rank, operation: 0.01 + 0.5 * (rank == 3 and operation >= 600)
    decisions = network.run(limit_s=6000.0).decisions

    assert not network.faults
    assert all(own == decisions[0] for own in decisions)
    for number, decision in enumerate(decisions[0][700:], start=700):
        collective = COLLECTIVES[number % 3]
        if collective == "all_reduce":
            assert decision.late == (3,) or is_to_compare(number), decision
            continue
        assert decision.late == ()
        assert "no rank can be left out" in decision.reason or is_to_compare(number)
        if not is_to_compare(number) and not is_tried_again(number):
            assert decision.candidate == way_of[collective], number
    coordinator = network.agents[0].inputs
    assert coordinator.history.added <= 300
    assert network.agents[0]._coordinator.largest == LARGE


def test_a_decision_says_why():
    policy_inputs = inputs(8, on_time=True)
    of_class = size_class(LARGE)
    first = Epoch(0, 0, 0)
    settled = Epoch(1, 0, 0, on_time=((of_class, RING),))
    compared = next(number for number in itertools.count() if is_to_compare(number))
    again = next(number for number in itertools.count() if is_tried_again(number))
    other = compared + 1

    tries = {
        rules.waited_for(number, floats(LARGE), first, "why", policy_inputs)
        for number in range(100)
    }
    assert {each.reason for each in tries} == {f"why; {TRYING}"}
    assert {each.candidate for each in tries} == {*policy_inputs.ways_on_time(of_class)}
    by_ring = rules.waited_for(other, floats(LARGE), settled, "why", policy_inputs)
    assert (by_ring.candidate, by_ring.reason) == (RING, f"why; {FASTEST}")
    native = rules.waited_for(compared, floats(LARGE), settled, "why", policy_inputs)
    assert (native.candidate, native.reason) == (NATIVE, rules.TO_COMPARE)
    tried_again = rules.waited_for(again, floats(LARGE), settled, "why", policy_inputs)
    assert tried_again.reason == f"why; {TRYING_AGAIN}"
    without = rules.waited_for(other, floats(LARGE), settled, "why", inputs(8))
    assert (without.candidate, without.reason) == (NATIVE, "why")


def test_a_profile_keeps_what_was_settled_on():
    policy_inputs = inputs(4, on_time=True)
    on_time = ((3, NATIVE), (9, RING), (12, DOUBLING))
    names = named(on_time, policy_inputs.candidates)
    assert names == {3: "native", 9: "ring", 12: "doubling"}
    assert on_time_of(names, policy_inputs.candidates) == on_time
    assert on_time_of({9: "of another version"}, policy_inputs.candidates) == ()
    scattering = size_class(300, "reduce_scatter")
    gathering = size_class(5, "all_gather")
    of_others = ((scattering, SCATTER), (gathering, NATIVE))
    names_of_others = named(of_others, policy_inputs.candidates)
    assert list(names_of_others.values()) == ["ring", "native"]
    assert on_time_of(names_of_others, policy_inputs.candidates) == of_others
    assert on_time_of({gathering: "tree", 10**6: "ring"}, policy_inputs.candidates) == ()

    profile = msgspec.structs.replace(policy_inputs.profile, on_time=names)
    decoded = PROFILE.decode(msgspec.json.encode(profile))
    again = PolicyInputs(Options(), 4, policy_inputs.candidates, decoded)
    assert again.settled_before == on_time
    assert RankAgent(2, again).epochs.latest.on_time == on_time
    assert decoded.for_some(4).on_time == names
    assert decoded.for_some(3).on_time == {}


@on_ranks(3)
def test_ranks_settle_alike_and_every_sum_is_right(rank, size, store):
    dispatcher = AllReduceDispatcher(store, rank, size, options=Options("auto"), timeout_s=60.0)
    for number in range(250):
        tensor = torch.arange(1000) * (rank + number)
        dispatcher.submit(tensor).wait()
        assert tensor.tolist() == (torch.arange(1000) * (3 + 3 * number)).tolist()

    own = repr([(each.operation, each.way, each.late) for each in dispatcher.records])
    store.set(f"ways {rank}", own)
    assert store.get("ways 0").decode() == own
    assert "ring" in own or "direct" in own or "doubling" in own
    store.set(f"over {rank}", "")
    store.wait([f"over {peer}" for peer in range(size)])
    dispatcher.close()
