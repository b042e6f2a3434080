"""Yes/no questions, free of any solver: boolean variables and three kinds of constraint.

Legend: a variable is a positive integer, counted from 1; a literal is a variable ``v`` or its
negation ``-v``. Equal constraints are kept once, which is what makes symmetric models small.

Answers are one of three, and they are three types, so that none can be taken for another:

    Found       an assignment that satisfies every constraint
    Exhausted   there is none (the solver searched everything)
    Undecided   the time ran out first, or the solver gave up; nothing is known
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Model:
    """A conjunction of clauses, at-most-one and at-least constraints over boolean variables.

    Attributes:
        variables: how many there are; they are 1 .. variables.
        clauses: tuples of literals of which at least one holds.
        at_most_one: tuples of literals of which at most one holds.
        at_least: pairs (count, literals); at least ``count`` of the literals hold.
    """

    def __init__(self) -> None:
        self.variables = 0
        self.clauses: dict[tuple[int, ...], None] = {}
        self.at_most_one: dict[tuple[int, ...], None] = {}
        self.at_least: dict[tuple[int, tuple[int, ...]], None] = {}

    def new_variable(self) -> int:
        """A fresh variable."""
        self.variables += 1
        return self.variables

    def require_any(self, literals: Iterable[int]) -> None:
        """At least one of the literals holds; of none, nothing can hold (the empty clause)."""
        self.clauses[tuple(literals)] = None

    def require_at_most_one(self, literals: Iterable[int]) -> None:
        """No two of the literals hold together."""
        chosen = tuple(literals)
        if len(chosen) > 1:
            self.at_most_one[chosen] = None

    def require_no_more(self, few: Iterable[int], many: Iterable[int]) -> None:
        """At most as many of ``few`` hold as of ``many``."""
        negated = [-literal for literal in few]
        self.at_least[len(negated), (*negated, *many)] = None


@dataclass(frozen=True)
class Found:
    """A satisfying assignment: the variables that are true."""

    true: frozenset[int]


@dataclass(frozen=True)
class Exhausted:
    """No assignment satisfies the model."""


@dataclass(frozen=True)
class Undecided:
    """Nothing is known; ``reason`` says what stopped the solver."""

    reason: str


Outcome = Found | Exhausted | Undecided
