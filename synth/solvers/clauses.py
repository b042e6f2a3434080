"""Models in clauses alone, for questions that are answered sooner without counting constraints.

at most one     of many: of three and whether one of these holds, and so on
no more         both sides are counted in unary, by merging the counts of halves
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from latecomer.synth.solvers.model import Model


class Clauses(Model):
    """A model that says everything in clauses; ``at_most_one`` and ``at_least`` stay empty."""

    def require_at_most_one(self, literals: Iterable[int]) -> None:
        """No two of the literals hold together."""
        chosen = list(literals)
        # Up to four literals are written pair by pair; of more, three at a time are replaced by a
        # new one that says whether any of them holds.
        while len(chosen) > 4:
            *chosen, a, b, c = chosen
            either = self.new_variable()
            self.require_at_most_one([a, b, c, -either])
            chosen.append(either)
        for a, b in combinations(chosen, 2):
            self.require_any([-a, -b])

    def require_no_more(self, few: Iterable[int], many: Iterable[int]) -> None:
        """At most as many of ``few`` hold as of ``many``."""
        # One direction of each count is enough here, and takes half the clauses.
        lower = self._counted(list(many), up=False)
        upper = self._counted(list(few), up=True)
        for i, literal in enumerate(upper):
            self.require_any([-literal, *lower[i : i + 1]])

    def _counted(self, literals: list[int], *, up: bool) -> list[int]:
        """Unary: the i-th holds if (``up``), or only if, more than i of the literals do."""
        if len(literals) < 2:
            return literals
        half = len(literals) // 2
        left = self._counted(literals[:half], up=up)
        right = self._counted(literals[half:], up=up)
        count = [self.new_variable() for _ in literals]
        for i in range(len(left) + 1):
            for j in range(len(right) + 1):
                if up and i + j:
                    less = [-x for x in (*left[i - 1 : i], *right[j - 1 : j])]
                    self.require_any([count[i + j - 1], *less])
                if not up and i + j < len(count):
                    self.require_any([-count[i + j], *left[i : i + 1], *right[j : j + 1]])
        return count
