"""Numbers that follow each other, for people: 0, 1, 2, 3, 7 are two runs."""

from __future__ import annotations

from collections.abc import Iterable


def runs_of(numbers: Iterable[int]) -> list[range]:
    """The runs of these numbers, in order.

    Examples:
        >>> from latecomer.verify.runs import runs_of
        >>> runs_of([7, 0, 1, 2, 3])
        [range(0, 4), range(7, 8)]
    """
    runs: list[range] = []
    for number in sorted(numbers):
        if runs and number == runs[-1].stop:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
