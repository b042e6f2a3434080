"""Ranks that come together: completions and waits are right, and as short as is claimed."""

import re
from pathlib import Path

import numpy as np
import pytest
import z3
from _pytest.mark import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.together_asked import dimacs
from latecomer.synth.answer import Basis
from latecomer.synth.arrivals.addition import CUTS, NOTHING, Cut, Shape
from latecomer.synth.arrivals.attempts import Attempts
from latecomer.synth.arrivals.free_trees import FreeTrees
from latecomer.synth.arrivals.generate import CERTIFIED, search
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.parity import parity_bound
from latecomer.synth.arrivals.together import Together
from latecomer.synth.cost import Setting
from latecomer.synth.solvers.choice import SOLVERS, SolverName, Solving, solve
from latecomer.synth.solvers.model import Exhausted, Found, Undecided
from latecomer.verify import Verdict, check
from tests.verify.search import fewest_rounds


def together(n: int, late: int, k: int, wait: int = 99) -> Arrivals:
    return Arrivals(k, (0,) * (n - late) + (wait,) * late, tuple(range(n - late, n)))


@given(st.integers(1, 12), st.sampled_from(CUTS))
def test_what_a_rank_holds_is_what_it_was_said_to_be(leaves: int, cut: Cut) -> None:
    shape = Shape(leaves, cut)
    leaves_under: list[set[int]] = [set() for _ in range(shape.root + 1)]
    for leaf in range(leaves):
        leaves_under[leaf] = {leaf}
    for node in range(shape.root):  # children have lower numbers
        leaves_under[shape.parent[node]] |= leaves_under[node]
    assert leaves_under[shape.root] == set(range(leaves))

    for sent, held in np.ndindex(shape.result.shape):
        gained = shape.result[sent, held]
        assert (gained == NOTHING) == (leaves_under[sent] <= leaves_under[held])

        expected = leaves_under[sent]
        if shape.adds[sent, held]:
            assert not leaves_under[sent] & leaves_under[held]
            expected = leaves_under[held] | leaves_under[sent]
        assert gained == NOTHING or leaves_under[gained] == expected


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(3, 10), st.integers(1, 6), st.integers(0, 999), st.integers(0, 40))
def test_all_that_is_found_is_right(
    data: st.DataObject, n: int, k: int, seed: int, wait: int
) -> None:
    arrivals = together(n, data.draw(st.integers(2, n - 1)), k, wait + 1)
    rounds = arrivals.bound + data.draw(st.integers(0, 4))

    attempt = Together(arrivals, seed)
    for completion in attempt.completions(rounds, 0.01):
        assert len(completion.rounds) <= rounds
        for rounds_with_wait in attempt.with_wait(completion.rounds):
            right = check(arrivals.schedule(rounds_with_wait)).verdict is Verdict.PROVED
            assert right == (completion.missing == 0)
            assert len(rounds_with_wait) == arrivals.last + len(completion.rounds)


def long(*case: int) -> ParameterSet:
    """One that takes seconds."""
    return pytest.param(*case, marks=pytest.mark.long)


REACHED = [(6, 2, 4), (6, 4, 1), (6, 5, 1), (7, 3, 2), (8, 5, 1), (8, 7, 3)]


@pytest.mark.parametrize(("n", "late", "k"), [*REACHED, long(7, 4, 2), long(8, 2, 4)])
def test_reaches_the_bound(n: int, late: int, k: int) -> None:
    arrivals = together(n, late, k)
    _, rounds = Attempts(Solving("z3", 0, 1.0, None), print).shortest(arrivals)
    assert check(arrivals.schedule(rounds)).verdict is Verdict.PROVED
    assert len(rounds) - arrivals.last == arrivals.bound


def test_a_wait_that_is_too_short_is_not_planned_with() -> None:
    short = Together(together(7, 2, 4, 1), 0)
    last = list(short.completions(9, 0.1))[-1]
    assert (last.missing, list(short.with_wait(last.rounds))) == (0, [])


@pytest.mark.parametrize(
    ("n", "late", "k"),
    [(2, 1, 1), (3, 1, 1), (3, 2, 1), (3, 2, 2), (4, 2, 1), (4, 3, 1)],
)
def test_parity_agrees_with_a_search_through_all_states(n: int, late: int, k: int) -> None:
    arrivals = together(n, late, k, 1)
    fewest = fewest_rounds(k, arrivals.arrival)
    assert parity_bound(arrivals) <= fewest
    assert (parity_bound(arrivals) == fewest > arrivals.bound) == (n == 3 and late == 2)


def test_no_paper_bound_is_above_what_is_reached_or_certified() -> None:
    page = Path("bench/tables/late-together.md").read_text()
    raised = set()
    for line in page.splitlines():
        if not re.match(r"\| \d", line):
            continue
        n, late, *cells = re.findall(r"[\d=+]+", line)
        for k, cell in enumerate(cells, 1):
            arrivals = together(int(n), int(late), k)
            assert parity_bound(arrivals) <= reached_rounds(cell, arrivals.bound)
            if parity_bound(arrivals) > arrivals.bound:
                raised.add((int(n), int(late), k))
    assert raised >= {(5, 4, 1), (5, 4, 2), (5, 4, 3), (7, 5, 3), (7, 6, 2)}

    for (chunks, *arrival), fewest in CERTIFIED.items():
        assert parity_bound(Arrivals(chunks, tuple(arrival), ())) <= fewest


def reached_rounds(cell: str, bound: int) -> int:
    """The rounds that a cell of the page's table says are reached."""
    match = re.fullmatch(r"\d+([+=]?)(\d*)", cell)
    assert match is not None
    sign, number = match.groups()
    if sign == "=":
        return int(number)
    return bound + int(number or 0)


TINY = [(3, 2, 1), (3, 2, 2), (4, 2, 1), (4, 3, 1)]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("n", "late", "k"), TINY)
def test_any_trees_agree_with_a_search_through_all_states(
    n: int, late: int, k: int, solver: SolverName
) -> None:
    fewest = fewest_rounds(k, together(n, late, k, 1).arrival)
    for rounds, expected in (fewest - 1, Exhausted), (fewest, Found), (fewest + 1, Found):
        answer = solve(FreeTrees(n, late, k, rounds).model, solver, seed=0, work=9.0)
        assert isinstance(answer, expected)


def test_the_file_for_other_solvers_asks_the_same(tmp_path: Path) -> None:
    for rounds, answer in (2, z3.unsat), (3, z3.sat):
        (tmp_path / "formula.cnf").write_text(dimacs(FreeTrees(3, 2, 1, rounds).model))
        solver = z3.Solver()
        solver.from_file(str(tmp_path / "formula.cnf"))
        assert solver.check() == answer


@settings(max_examples=10, deadline=None)
@given(st.data(), st.integers(3, 6), st.integers(1, 3), st.integers(0, 2), st.integers(0, 99))
def test_any_trees_that_are_found_are_right(
    data: st.DataObject, n: int, k: int, more: int, seed: int
) -> None:
    arrivals = together(n, data.draw(st.integers(2, min(3, n - 1))), k)
    rounds = max(arrivals.bound, parity_bound(arrivals)) + more

    attempt = Together(arrivals, seed)
    question = attempt.question(rounds)
    answer = solve(question.model, "z3", seed=seed, work=1.0)
    assert not isinstance(answer, Exhausted)  # all of these are reached
    if isinstance(answer, Found):
        (rounds_with_wait,) = attempt.with_wait(question.decode(answer))
        assert check(arrivals.schedule(rounds_with_wait)).verdict is Verdict.PROVED
        assert len(rounds_with_wait) - arrivals.last == rounds


@pytest.mark.parametrize(("n", "late", "k", "rounds"), [(7, 4, 2, 4), long(5, 3, 5, 7)])
def test_a_search_that_is_cut_short_says_nothing(n: int, late: int, k: int, rounds: int) -> None:
    model = FreeTrees(n, late, k, rounds).model
    for solver in SOLVERS:
        assert isinstance(solve(model, solver, seed=0, work=0.01), Undecided)
    assert isinstance(Solving("z3", 0, 1.0, 1e-9).ask(model, 1.0), Undecided)


@pytest.mark.parametrize(("n", "late", "k"), [(5, 4, 1), (7, 4, 1), (7, 5, 1), long(5, 4, 2)])
def test_the_solver_finds_what_is_proved_on_paper(
    monkeypatch: pytest.MonkeyPatch, n: int, late: int, k: int
) -> None:
    arrivals = together(n, late, k)
    monkeypatch.setattr(
        "latecomer.synth.arrivals.attempts.least_rounds", lambda arrivals: arrivals.bound
    )
    for effort, least in (1.0, parity_bound(arrivals)), (1e-4, arrivals.bound):
        attempts = Attempts(Solving("z3", 0, effort, None), print)
        _, rounds = attempts.shortest(arrivals)
        assert check(arrivals.schedule(rounds)).verdict is Verdict.PROVED
        assert attempts.least(arrivals) == least
        assert len(rounds) - arrivals.last >= least


def test_what_a_solver_has_exhausted_is_not_called_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "latecomer.synth.arrivals.attempts.least_rounds", lambda arrivals: arrivals.bound
    )
    small = Setting(buffer_bytes=1, alpha_s=1.0, bandwidth=1e9)
    answer = search(7, dict.fromkeys(range(3, 7), 40), chunks=1, setting=small)
    assert (answer.value, answer.basis, answer.bound) == (4, Basis.SOLVER, 4)


def test_of_several_numbers_of_chunks_the_first_is_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("latecomer.synth.arrivals.attempts.FREE_TREES_WORK", 0.01)
    told: list[str] = []
    attempts = Attempts(Solving("z3", 0, 0.1, None), told.append)
    for k in 5, 4, 6:
        attempts.shortest(together(8, 3, k))
    assert [text for text in told if "all completions" in text] == [
        "z3, all completions of 7 rounds"
    ]
