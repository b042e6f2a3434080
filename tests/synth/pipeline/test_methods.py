"""Every quick method, on any problem: proved, within memory, as long as it says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from latecomer.synth.pipeline.answer import makespan_of
from latecomer.synth.pipeline.evaluate import Stuck, makespan, peaks
from latecomer.synth.pipeline.listing import Rules, greedy, slack_rule
from latecomer.synth.pipeline.named import Unsuited, interleaved
from latecomer.synth.pipeline.plan import plan
from latecomer.synth.pipeline.portfolio import QUICK, portfolio, split
from latecomer.synth.pipeline.problem import Problem, make, place
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import SynthesisError
from latecomer.verify.pipeline import Instance, check
from latecomer.verify.pipeline.schedule import Action
from tests.synth.pipeline.problems import problems, uniform


@settings(max_examples=60, deadline=None)
@given(problems())
def test_every_method_is_proved(problem: Problem) -> None:
    tried = portfolio(problem)
    assert {c.method for c in tried.candidates} | set(tried.unsuited) == set(QUICK)
    assert "greedy" not in tried.unsuited
    for candidate in tried.candidates:
        orders = candidate.orders
        report = check(problem.schedule(orders))
        assert report.verdict is Verdict.PROVED, (candidate.method, report.counterexample)
        assert candidate.makespan == makespan(problem, orders) == makespan_of(problem, report)
        assert candidate.makespan >= problem.closed_form
        for peak, limit in zip(peaks(orders), problem.limits, strict=True):
            assert peak <= limit
        assert check(problem.schedule(split(orders))).verdict is Verdict.PROVED


@settings(max_examples=40, deadline=None)
@given(problems(most_stages=6, most_microbatches=9))
def test_the_list_scheduler_never_gets_stuck(problem: Problem) -> None:
    """Also with limits of its own, down to the least that works, and with look-ahead."""
    least = tuple(2 * len(stages) for stages in problem.stages_of)
    for rules in (
        Rules(limits=least),
        Rules(limits=least, deep=False, patience_f=0, patience_w=0),
        Rules(deep=False),
    ):
        orders = greedy(problem, rules)
        assert check(problem.schedule(orders)).verdict is Verdict.PROVED
        if rules.limits:
            for peak, limit in zip(peaks(orders), least, strict=True):
                assert peak <= limit


def test_known_makespans() -> None:
    """As Adaptra's simulator: 4 stages, 12 microbatches, a delay on the first link.

    What was planned for no delay and then kept, and what is planned for the delay it meets.
    """
    plain = greedy(uniform(4, 12))
    cases = [(0, 390, 390), (10, 400, 400), (20, 440, 410), (30, 500, 420)]
    for delay, kept_makespan, planned_makespan in cases:
        problem = uniform(4, 12, {(0, 1): delay})
        assert makespan(problem, plain) == kept_makespan
        planned = plan(problem)
        assert planned.measures.makespan == planned.bound == planned_makespan
        assert planned.optimal
        assert "no solver needed" in planned.choice


def test_textbook_orders() -> None:
    problem = uniform(3, 4)
    assert as_text(QUICK["gpipe"](problem)[1]) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert [as_text(order) for order in QUICK["1f1b"](problem)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert as_text(QUICK["zero-bubble"](problem)[2]) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"
    assert peaks(QUICK["1f1b"](problem)) == [6, 4, 2]
    assert max(peaks(QUICK["zero-bubble"](problem))) <= 6


def as_text(order: list[Action]) -> str:
    return " ".join(f"{action.kind}{action.microbatch}" for action in order)


def test_adaptra_ends_where_its_rule_asks_for_more_than_there_is() -> None:
    """x_i > N: the published simulation never ends."""
    problem = uniform(4, 12, {(0, 1): 60, (1, 2): 60, (2, 3): 60})
    assert slack_rule(problem) == (12, 12, 9, 1)
    assert check(problem.schedule(QUICK["adaptra"](problem))).verdict is Verdict.PROVED


def test_interleaved_groups() -> None:
    """Groups as PyTorch makes them: 10 microbatches on 4 ranks are two groups of 5; 11 are none."""
    rank_of = place(8, 2, "loop")
    instance = Instance(forward=(1,) * 8, backward=(1,) * 8, weight=(1,) * 8)
    first = interleaved(make(10, instance, rank_of))[0]
    assert [a for a in first if a.kind == "F"][:6] == [
        *(Action(0, "F", m) for m in range(5)),
        Action(4, "F", 0),
    ]
    with pytest.raises(Unsuited, match="multiple of 2 groups"):
        interleaved(make(11, instance, rank_of))


def test_orders_that_wait_for_each_other_are_stuck() -> None:
    problem = uniform(2, 2)
    orders = QUICK["1f1b"](problem)
    backwards = [action for action in orders[0] if action.kind == "B"]
    forwards = [action for action in orders[0] if action.kind == "F"]
    orders[0] = backwards + forwards
    with pytest.raises(Stuck):
        makespan(problem, orders)


def test_what_is_not_proved_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(problem: Problem) -> list[list[Action]]:
        return [[*order, order[0]] for order in greedy(problem)]

    monkeypatch.setitem(QUICK, "greedy", twice)
    with pytest.raises(SynthesisError, match="made by greedy is not proved"):
        plan(uniform(2, 2), "greedy")
