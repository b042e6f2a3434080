"""The exact question against a search through all states that knows nothing of it."""

import itertools
from collections.abc import Iterator
from functools import cache

import pytest

from synth.answer import checked
from synth.arrivals.exact import Question
from synth.arrivals.instance import Arrivals
from synth.solvers.choice import SOLVERS, solve
from synth.solvers.model import Exhausted, Found
from verify import Verdict

both_solvers = pytest.mark.parametrize("solver", SOLVERS)

USELESS = -1
State = tuple[tuple[int, ...], ...]
"""[chunk][rank]: the number of the value that is held, or USELESS."""


class Values:
    """Values by number: 0 .. n-1 the ranks' data, then unordered sums of two values."""

    def __init__(self, ranks: int) -> None:
        self.leaves = [1 << rank for rank in range(ranks)]
        self.sums: dict[tuple[int, int], int] = {}

    def added(self, one: int, other: int) -> int:
        if USELESS in (one, other) or self.leaves[one] & self.leaves[other]:
            return USELESS
        pair = (one, other) if one < other else (other, one)
        if pair not in self.sums:
            self.sums[pair] = len(self.leaves)
            self.leaves.append(self.leaves[one] | self.leaves[other])
        return self.sums[pair]


def receptions(
    values: Values, state: State, ranks: list[int], rank: int
) -> Iterator[tuple[int, int, int]]:
    """Everything that ``rank`` may receive in a round: (sender, chunk, what it then holds)."""
    for chunk, held in enumerate(state):
        for sender in ranks:
            if sender != rank:
                for after in (held[sender], values.added(held[rank], held[sender])):
                    if after not in (USELESS, held[rank]):
                        yield sender, chunk, after


def next_states(values: Values, state: State, ranks: list[int]) -> Iterator[State]:
    options = [[None, *receptions(values, state, ranks, rank)] for rank in ranks]
    for choice in itertools.product(*options):
        senders = [option[0] for option in choice if option]
        if len(set(senders)) < len(senders):
            continue
        new = [list(held) for held in state]
        for rank, option in zip(ranks, choice, strict=True):
            if option:
                new[option[1]][rank] = option[2]
        yield tuple(sorted(map(tuple, new)))  # chunks have no names


@cache
def fewest_rounds(arrivals: Arrivals) -> int:
    """Rounds after the last arrival, by looking at all states that can be reached."""
    values = Values(arrivals.ranks)
    everybody = (1 << arrivals.ranks) - 1

    def finished(state: State) -> bool:
        return all(
            held[0] != USELESS
            and values.leaves[held[0]] == everybody
            and all(value == held[0] for value in held)
            for held in state
        )

    states = {tuple(tuple(range(arrivals.ranks)) for _ in range(arrivals.chunks))}
    for t in itertools.count(1):
        ranks = [r for r, a in enumerate(arrivals.arrival) if a < t]
        following = set()
        for state in states:
            for new in next_states(values, state, ranks):
                if new not in following:
                    if t > arrivals.last and finished(new):
                        return t - arrivals.last
                    following.add(new)
        states = following
    raise AssertionError


def fewest_by_solver(arrivals: Arrivals, solver: str) -> int:
    """From no rounds on, not trusting the lower bound."""
    for rounds in itertools.count():
        question = Question(arrivals, rounds)
        answer = solve(question.model, solver, seed=0, time_limit_s=30)
        if isinstance(answer, Found):
            report = checked(arrivals.schedule(question.decode(answer)))
            assert report.verdict is Verdict.PROVED
            assert report.completion_rounds == rounds
            return rounds
        assert isinstance(answer, Exhausted)
    raise AssertionError


CASES = {
    (2, 1): [(0,), (4,)],
    (2, 2): [(0,)],
    (2, 3): [(1,)],
    (3, 1): [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)],
    (3, 2): [(0, 0), (0, 1), (1, 2)],
    (4, 1): [(0, 0, 0), (0, 0, 1), (0, 1, 1)],
}
"""By ranks and chunks: arrivals of the others than rank 0."""


@both_solvers
@pytest.mark.parametrize(
    ("n", "chunks", "late"), [(*shape, late) for shape, some in CASES.items() for late in some]
)
def test_as_few_as_brute_force(n: int, chunks: int, late: tuple[int, ...], solver: str) -> None:
    arrivals = Arrivals(chunks, (0, *late), tuple(range(1, n)))
    fewest = fewest_rounds(arrivals)
    assert fewest_by_solver(arrivals, solver) == fewest
    assert arrivals.bound <= fewest
