"""A checker of refutations, small enough to be read before it is believed. Needs nothing installed.

A refutation is a text, one step per line: ``LITERALS 0 HINTS 0``. A step adds the clause of its
literals. It must follow from the clauses that its hints name, by unit propagation in that order:
with all its literals false, each hint leaves one literal that must hold, and the last leaves none.
Clauses are numbered from 1, those of the formula first, then those of the steps. The last step adds
the empty clause. (This is LRAT without RAT steps and deletions.) ``proofs/coq/Refutation.v`` is the
same checker, proved.
"""

from __future__ import annotations

from collections.abc import Iterable


class Refused(Exception):
    """A step does not follow, or the text is no refutation; says which line."""


def check(formula: list[list[int]], proof: Iterable[str]) -> int:
    """Check that ``proof`` refutes ``formula``; gives the number of steps.

    Raises:
        Refused: it does not.
    """
    known = [[], *formula]  # clauses are numbered from 1
    for line, text in enumerate(proof, 1):
        try:
            numbers = [int(word) for word in text.split()]
            end = numbers.index(0)
        except ValueError:
            raise Refused(f"line {line}: not LITERALS 0 HINTS 0") from None
        clause = numbers[:end]
        hints = numbers[end + 1 : -1]
        if numbers[-1] != 0 or end == len(numbers) - 1 or 0 in hints:
            raise Refused(f"line {line}: not LITERALS 0 HINTS 0")
        false = set(clause)
        for hint in hints:
            if not 1 <= hint < len(known):
                raise Refused(f"line {line}: there is no clause {hint} yet")
            left = {literal for literal in known[hint] if literal not in false}
            if not left:
                break
            if len(left) > 1:
                raise Refused(f"line {line}: clause {hint} forces nothing")
            false.add(-left.pop())
        else:
            raise Refused(f"line {line}: the clause does not follow from its hints")
        if not clause:
            return line
        known.append(clause)
    raise Refused("the empty clause is never reached")
