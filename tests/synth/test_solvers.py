"""One conformance suite for every solver behind ``latecomer.synth.solvers``."""

import itertools
import os
import signal
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.synth.solvers.choice import SOLVERS, solve
from latecomer.synth.solvers.model import Exhausted, Found, Model, Undecided

pytestmark = pytest.mark.parametrize("solver", SOLVERS)


def pigeons(count: int, holes: int) -> Model:
    """At most one pigeon a hole; hard where there is one pigeon too many, without counting."""
    model = Model()
    sits = []  # per pigeon and hole, a variable
    for _ in range(count):
        holes_of_pigeon = [model.new_variable() for _ in range(holes)]
        model.require_any(holes_of_pigeon)
        sits.append(holes_of_pigeon)

    for holes_of_a, holes_of_b in itertools.combinations(sits, 2):
        for a_sits, b_sits in zip(holes_of_a, holes_of_b, strict=True):
            model.require_any([-a_sits, -b_sits])
    return model


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        (Model(), Found(frozenset())),
        (pigeons(1, 0), Exhausted()),  # the empty clause
        (pigeons(1, 1), Found(frozenset({1}))),
        (pigeons(5, 4), Exhausted()),
    ],
)
def test_decided(solver, model: Model, answer) -> None:
    assert solve(model, solver, seed=0, work=30) == answer


def test_time_out_is_not_exhausted(solver) -> None:
    for limits in ({"work": 0.01}, {"work": 1000, "time_limit_s": 0.01}):
        answer = solve(pigeons(61, 60), solver, seed=0, **limits)
        assert isinstance(answer, Undecided)
        assert answer.reason


def test_equal_seeds_give_equal_answers(solver) -> None:
    first = solve(pigeons(8, 9), solver, seed=5, work=30)
    again = solve(pigeons(8, 9), solver, seed=5, work=30)
    assert isinstance(first, Found)
    assert first == again


def test_interrupt_stops_the_solver(solver) -> None:
    model = pigeons(61, 60)
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))

    def solve_interrupted() -> None:
        timer.start()
        solve(model, solver, seed=0, work=600)

    with pytest.raises(KeyboardInterrupt):
        solve_interrupted()


def constraints(variables: int):
    literal = st.integers(1, variables).flatmap(lambda v: st.sampled_from([v, -v]))
    literals = st.lists(literal, min_size=1, max_size=4, unique_by=abs)
    return st.lists(st.tuples(st.sampled_from(["any", "one", "more"]), literals, literals))


@settings(max_examples=40, deadline=None)
@given(constraints(4))
def test_agrees_with_trying_everything(solver, requirements) -> None:
    model = Model()
    for _ in range(4):
        model.new_variable()
    for kind, left, right in requirements:
        if kind == "any":
            model.require_any(left)
        elif kind == "one":
            model.require_at_most_one(left)
        elif not {abs(x) for x in left} & {abs(x) for x in right}:
            model.require_no_more(left, right)

    def holds(true: frozenset[int]) -> bool:
        def count(literals) -> int:
            return sum((abs(x) in true) == (x > 0) for x in literals)

        return (
            all(count(clause) >= 1 for clause in model.clauses)
            and all(count(group) <= 1 for group in model.at_most_one)
            and all(count(group) >= least for least, group in model.at_least)
        )

    subsets = [
        frozenset(chosen)
        for size in range(5)
        for chosen in itertools.combinations(range(1, 5), size)
    ]
    answer = solve(model, solver, seed=0, work=10)
    if isinstance(answer, Found):
        assert holds(answer.true)
    else:
        assert answer == Exhausted()
        assert not any(map(holds, subsets))
