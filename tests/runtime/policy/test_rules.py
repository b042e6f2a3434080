"""Waits, forecasts and options against brute force and against their own definitions."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.policy import on_time, rules
from latecomer.runtime.policy.arrivals import Arrival, size_class
from latecomer.runtime.policy.cost_model import LEAST_GAIN, Times, break_even, learned
from latecomer.runtime.policy.history import LEAST, MOST, ModelCorrection
from latecomer.runtime.policy.messages import NATIVE, Epoch
from latecomer.runtime.policy.options import Options
from latecomer.verify.errors import ArgumentError
from tests.runtime.policy.network import LARGE, floats, inputs

seconds = st.floats(0, 5)


def _times(waiting_and_completion_s):
    """The times of as many candidates, numbered from 0."""
    times = []
    for candidate, (waiting_s, completion_s) in enumerate(waiting_and_completion_s):
        times.append(Times(candidate, waiting_s, completion_s))
    return times


several_times = st.lists(st.tuples(seconds, seconds), min_size=1, max_size=3).map(_times)


def _operation_s(tau_s, lateness_s, native_s, times):
    """By definition: how long an operation takes with a wait that is given up after ``tau_s``."""
    if lateness_s <= tau_s:
        return lateness_s + native_s
    return tau_s + times.total_s(lateness_s - tau_s)


@given(st.lists(seconds, min_size=1, max_size=12), seconds, seconds, several_times)
def test_a_learned_wait_has_the_least_mean(latenesses_s, passed_s, native_s, schedules):
    possible_s = [lateness_s for lateness_s in latenesses_s if lateness_s > passed_s]
    if not possible_s:
        return

    def mean_s(tau_s, times):
        operations_s = [
            _operation_s(tau_s, lateness_s, native_s, times) for lateness_s in possible_s
        ]
        return sum(operations_s) / len(operations_s)

    wait = learned(latenesses_s, passed_s, native_s, schedules)

    taus_s = [passed_s, *possible_s]
    least_s = min(mean_s(tau_s, times) for tau_s in taus_s for times in schedules)
    if wait.candidate == NATIVE:
        mean_for_all_s = sum(possible_s) / len(possible_s) + native_s
        assert least_s >= mean_for_all_s - LEAST_GAIN * native_s - 1e-9
        return
    own_mean_s = mean_s(wait.tau_s, schedules[wait.candidate])
    assert own_mean_s == pytest.approx(least_s, abs=1e-9)
    assert own_mean_s == pytest.approx(wait.mean_s, abs=1e-9)
    assert wait.tau_s >= passed_s


@given(seconds, seconds, several_times)
def test_break_even_never_loses_more_than_a_needless_start_twice(lateness_s, native_s, schedules):
    def price_s(times):
        """What a start just before the late rank's arrival loses."""
        return max(0.0, times.waiting_s + times.completion_s - native_s)

    wait = break_even(native_s, schedules)

    if wait.candidate == NATIVE:
        least_s = min(times.completion_s + price_s(times) for times in schedules)
        assert least_s >= (1 - LEAST_GAIN) * native_s
        return
    times = schedules[wait.candidate]
    operation_s = _operation_s(wait.tau_s, lateness_s, native_s, times)
    loss_s = operation_s - (lateness_s + native_s)
    assert loss_s <= 2 * price_s(times) + 1e-9
    assert times.completion_s < native_s


def _inputs(rows=(), mode="auto", **options):
    """What eight ranks decide from, after operations with these latenesses (by rank)."""
    policy_inputs = inputs(8, Options(mode, **options))
    for row in rows:
        policy_inputs.history.add(np.array(row))
    return policy_inputs


def _arrived(*ranks, operation=0):
    """The state of an operation to which these of eight ranks have come."""
    state = rules.OperationState(operation, floats(LARGE), range(8))
    for rank in ranks:
        state.enter(Arrival(operation, state.buffer, bytearray(8), {}), rank, 0.0)
    return state


TO_COMPARE = next(number for number in range(1000) if rules.is_to_compare(number))


@pytest.mark.parametrize("mode", ["eager", "auto"])
def test_an_operation_to_compare_waits_for_all_ranks(mode):
    rule = rules.RULES[mode]
    late = [[0.0] * 7 + [0.5]] * 10
    one_missing = range(7)
    policy_inputs = _inputs(late, mode)

    before = _arrived(*one_missing, operation=TO_COMPARE - 1)
    assert rule(9.0, before, policy_inputs).late == (7,)

    missing = _arrived(*one_missing, operation=TO_COMPARE)
    assert rule(9.0, missing, policy_inputs) == rules.Later(math.inf)
    there = rule(9.0, _arrived(*range(8), operation=TO_COMPARE), policy_inputs)
    assert (there.candidate, there.late, there.reason) == (NATIVE, (), rules.TO_COMPARE)


def test_an_operation_to_compare_runs_natively_by_prediction_too():
    late = Epoch(3, 0, 0, (2,), 0.3, "why")
    compared = rules.predicted(TO_COMPARE, floats(LARGE), late, _inputs())
    assert (compared.candidate, compared.late, compared.reason) == (NATIVE, (), rules.TO_COMPARE)

    nobody = rules.predicted(TO_COMPARE, floats(LARGE), Epoch(0, 0, 0, reason="why"), _inputs())
    assert nobody.reason == "why"


@given(buckets=st.integers(1, 20), first=st.integers(0, 10**6))
def test_each_bucket_of_a_step_is_compared_as_often(buckets, first):
    steps = 30 * on_time.COMPARED
    for bucket in range(buckets):
        numbers = range(first + bucket, first + bucket + steps * buckets, buckets)
        assert 5 <= sum(map(rules.is_to_compare, numbers)) <= 70  # 30 on average


def test_why_nothing_can_be_gained_has_figures():
    assert rules.useless(floats(LARGE), _inputs()) == ""
    reason = rules.useless(floats(8), _inputs())
    figures = re.findall(r"[\d.e-]+(?= ms)", reason)
    natively_ms, best_ms = map(float, figures)
    assert best_ms >= (1 - LEAST_GAIN) * natively_ms
    assert natively_ms == pytest.approx(1e3 * _inputs().native_s(8, corrected=False), rel=0.01)


@pytest.mark.parametrize("mode", ["eager", "auto"])
def test_rules_wait_for_enough_ranks_and_decide_once_all_are_there(mode):
    rule = rules.RULES[mode]
    two_may_be_late = _inputs(mode=mode)
    one_may_be_late = _inputs(mode=mode, most_late=1)

    assert rule(9.0, _arrived(), two_may_be_late) == rules.Later(math.inf)
    three_missing = _arrived(0, 1, 2, 3, 4)
    assert rule(9.0, three_missing, two_may_be_late) == rules.Later(math.inf)

    decision = rule(0.0, _arrived(*range(8)), two_may_be_late)
    assert decision.candidate == NATIVE
    assert decision.late == ()

    wait = rule(0.0, _arrived(*range(7)), two_may_be_late)
    assert 0 < wait.at_s < 0.02
    assert rule(wait.at_s, _arrived(*range(7)), two_may_be_late).late == (7,)
    assert rule(wait.at_s + 1, _arrived(0, 2, 3, 4, 5, 7), two_may_be_late).late == (1, 6)

    two_missing = _arrived(0, 1, 2, 3, 4, 5)
    assert rule(9.0, two_missing, one_may_be_late) == rules.Later(math.inf)


# lateness by rank, in one operation or several
LATE = [0.0] * 7 + [0.5]
SOON = [0.0] * 7 + [0.0005]  # S*beta is 10 ms
TURNS = [[0.001 * (rank == turn % 7) for rank in range(7)] + [0.5] for turn in range(14)]
TWO = [[0.0, 0.0, 0.9, 0.0, 0.0, 0.4, 0.0, 0.0]] * 8
VERY_LATE = [SOON] * 8 + [[0.0] * 7 + [1.0]] * 4
RECOVERED = [LATE] * 60 + [[0.0] * 7 + [0.0001]] * 9


@pytest.mark.parametrize(
    ("rows", "now_s", "missing", "expected"),
    [
        ([LATE] * 10, 0.0, (7,), (7,)),  # it always comes late
        # rank 0 is never late; but whoever is, is by 0.5 s: that is what is known of its lateness
        ([LATE] * 10, 0.0, (0,), (0,)),
        (TWO, 0.1, (2, 5), (5, 2)),  # in the usual order of their arrival
        ([SOON] * 10, 0.0, (7,), math.inf),  # it is never much later
        ([SOON] * 10, 0.001, (7,), float),  # never that late before: nothing is known any more
        (VERY_LATE, 0.0, (7,), 0.0005),  # it comes soon or very late
        (VERY_LATE, 0.00051, (7,), (7,)),
        (TURNS, 0.0, (3, 7), math.inf),  # rank 3 is about to come: not to be left out with rank 7
        (TURNS, 0.001, (7,), (7,)),
        ([LATE] * 60, 0.0002, (7,), (7,)),
        (RECOVERED, 0.0002, (7,), float),  # a rank that is late no longer is forgotten
    ],
)
def test_auto_starts_without_who_is_late_and_waits_for_others(rows, now_s, missing, expected):
    """The late ranks that it starts without, or until when it waits."""
    arrived = _arrived(*(rank for rank in range(8) if rank not in missing))

    answer = rules.RULES["auto"](now_s, arrived, _inputs(rows))

    if expected is float:  # by the break-even rule
        assert now_s < answer.at_s < 0.02
    elif isinstance(answer, rules.Later):
        assert answer.at_s == expected
    else:
        assert answer.late == expected


@pytest.mark.parametrize(
    ("lateness_s", "settled", "waits"),
    [(1e-4, False, True), (1e-4, True, False), (0.5, False, False)],
)
def test_while_ways_on_time_are_tried_auto_waits_for_who_is_hardly_late(lateness_s, settled, waits):
    """Though a start without that rank takes less than the native all-reduce."""
    policy_inputs = inputs(8, Options("auto"), on_time=True)
    for _ in range(10):
        policy_inputs.correction.add(size_class(LARGE), native=True, predicted_s=1.0, taken_s=4.0)
        policy_inputs.history.add(np.array([0.0] * 7 + [lateness_s]))
    arrived = _arrived(*range(7))
    if settled:
        arrived.epoch = Epoch(1, 0, 0, on_time=((arrived.buffer.of_class, NATIVE),))

    hardly_s = rules.HARDLY * policy_inputs.native_s(LARGE)
    at_once = rules.auto(0.0, arrived, policy_inputs)
    later = rules.auto(1.01 * hardly_s, arrived, policy_inputs)

    if waits:
        assert at_once == rules.Later(hardly_s)
    else:
        assert at_once.late == (7,)
    assert later.late == (7,)


def _predicted(rows, nbytes=LARGE):
    """Who is late in the epoch that follows after these operations, or in the current one."""
    current = Epoch(0, 0, 0)
    following = rules.next_epoch(current, nbytes, _inputs(rows, "predict"))
    return (following or current).late


def test_a_forecast_needs_a_habit():
    assert _predicted([LATE] * 3) == ()
    assert _predicted([LATE] * 8) == (7,)
    assert _predicted([LATE] * 16, nbytes=0) == ()
    assert _predicted([[0.3 * (rank == turn) for rank in range(8)] for turn in range(8)] * 2) == ()
    assert _predicted([[0.2, 0.0, 0.0, 0.0, 0.4, 0.0, 0.0, 0.0]] * 8) in {(0, 4), (4,)}
    assert _predicted([[0.0] * 7 + [0.0005]] * 16) == ()


def test_predicted_and_static_depend_on_the_size():
    epoch = Epoch(3, 0, 0, (2,), 0.3, "why")
    assert rules.predicted(0, floats(LARGE), epoch, _inputs()).late == (2,)
    assert rules.predicted(0, floats(8), epoch, _inputs()).candidate == NATIVE
    assert rules.predicted(0, floats(LARGE), Epoch(0, 0, 0), _inputs()).candidate == NATIVE

    large = rules.static(floats(100 * LARGE), _inputs(mode="static", late=(2,)))
    assert large.candidate == 1  # m = 4
    assert large.late == (2,)
    assert rules.static(floats(LARGE), _inputs(mode="static", late=(1, 2, 3))).candidate == NATIVE


def test_the_coordinator_changes_only_if_it_is_often_last():
    late = [0.5] + [0.1] * 3 + [0.0] + [0.1] * 3
    assert rules.better_coordinator(0, LARGE, _inputs([late] * 8)) == 4
    assert rules.better_coordinator(0, LARGE, _inputs([late] * 4)) == 0
    assert rules.better_coordinator(1, LARGE, _inputs([late] * 8)) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from([3, 4]), st.booleans(), st.floats(1e-6, 1e3), st.floats(0, 1e3))
    )
)
def test_the_correction_stays_within_its_limits_and_is_forgotten(operations):
    correction = ModelCorrection()
    for of_class, native, predicted_s, measured_s in operations:
        correction.add(of_class, native, predicted_s, measured_s)
    assert LEAST[True] <= correction.factor(3, native=True) <= MOST
    assert 1.0 <= correction.factor(3, native=False) <= MOST
    others = [correction.factor(4, native) for native in (True, False)]
    for _ in range(300):
        correction.add(3, native=True, predicted_s=1.0, taken_s=2.0)
    assert correction.factor(3, native=True) == 2.0
    assert correction.factor(3, native=False) == 1.0
    assert others == [correction.factor(4, native) for native in (True, False)]


SENSELESS = [
    {"mode": "clever"},
    {"mode": "static"},
    {"mode": "auto", "late": (1,)},
    {"mode": "auto", "threshold_s": 1.0},
    {"mode": "eager", "most_late": 0},
    {"mode": "eager", "threshold_s": -1.0},
    {"mode": "eager", "threshold_s": math.nan},
]


@pytest.mark.parametrize("wrong", SENSELESS)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ArgumentError):
        Options(**wrong)


@pytest.mark.parametrize(("ranks", "most"), [(2, 0), (3, 1), (4, 1), (8, 2), (64, 3)])
def test_how_many_may_be_late(ranks, most):
    assert Options("eager").at_most_late(ranks) == most
    assert Options("eager", most_late=1000).at_most_late(ranks) == ranks - 2
