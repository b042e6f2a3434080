"""Several ranks that come together: rounds after the arrival, and the lower bound.

    python -m bench.together [--ranks 3..8] [--chunks 1,2,3,4,5,6,7,8]

For every number of ranks, of late ranks from 2 to all but one, and of chunks: they come together,
after a wait in which the others can share all that they have. Counted, not measured; every
schedule was proved. ``+`` says how many rounds above the bound of the theorem ``synth`` reaches;
``=`` says optimal by a certificate, on paper, or by an exhausted search, where that is above the
bound.
"""

from __future__ import annotations

import argparse
from collections import Counter

from latecomer.synth.answer import checked
from latecomer.synth.arrivals.attempts import Attempts
from latecomer.synth.arrivals.generate import CERTIFIED
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.solvers.choice import Solving
from latecomer.verify.core.verdict import Verdict

EXHAUSTED = {
    (5, 3, 5): 8,
    (6, 3, 5): 8,
    (6, 3, 6): 9,
    (6, 4, 4): 7,
    (7, 2, 5): 8,
    (7, 3, 3): 6,
    (7, 3, 4): 7,
    (7, 4, 3): 6,
    (7, 5, 2): 5,
    (8, 2, 5): 8,
    (8, 2, 6): 9,
    (8, 3, 4): 7,
}
"""(ranks, late, chunks) -> no schedule has fewer rounds, by :mod:`bench.together_asked`."""


def instance(ranks: int, late: int, chunks: int) -> Arrivals:
    """The last ``late`` ranks come together, after a wait that is long enough for anything.

    A rank that waits alone has nothing to do, so one round is as good as any number.
    """
    wait = 1 if late == ranks - 1 else 2 * (ranks + chunks)
    arrival = (0,) * (ranks - late) + (wait,) * late
    return Arrivals(chunks, arrival, tuple(range(ranks - late, ranks)))


def fewest(arrivals: Arrivals, effort: float) -> tuple[int, int]:
    """Rounds after the arrival, and those that are needed: on paper, or by an exhausted search."""
    attempts = Attempts(Solving("z3", 0, effort, None), lambda text: None)
    _, rounds = attempts.shortest(arrivals)
    report = checked(arrivals.schedule(rounds))
    assert report.verdict is Verdict.PROVED
    return report.completion_rounds, attempts.least(arrivals)


def certified(arrivals: Arrivals) -> int:
    """Rounds that are needed by a certificate or a search of CaDiCaL; 0 without one."""
    by_certificate = CERTIFIED.get((arrivals.chunks, *sorted(arrivals.arrival)), 0)
    by_search = EXHAUSTED.get((arrivals.ranks, len(arrivals.late), arrivals.chunks), 0)
    return max(by_certificate, by_search)


def numbers(text: str) -> list[int]:
    """``3..8`` or ``1,2,4``."""
    if ".." in text:
        first, last = text.split("..")
        return list(range(int(first), int(last) + 1))
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=numbers, default=numbers("3..8"))
    parser.add_argument("--chunks", type=numbers, default=numbers("1..8"))
    parser.add_argument("--effort", type=float, default=1.0)
    options = parser.parse_args()

    gaps: Counter[int] = Counter()
    optimal = 0

    print("| n | late | " + " | ".join(f"k = {k}" for k in options.chunks) + " |")
    print("|--:|--:|" + "--:|" * len(options.chunks))
    for ranks in options.ranks:
        for late in range(2, ranks):
            cells = []
            for chunks in options.chunks:
                arrivals = instance(ranks, late, chunks)
                rounds, needed = fewest(arrivals, options.effort)
                gap = rounds - arrivals.bound
                needed = max(needed, certified(arrivals))
                assert rounds >= needed

                gaps[gap] += 1
                if gap == 0:
                    cell = f"{arrivals.bound}"
                    optimal += 1
                elif rounds == needed:
                    cell = f"{arrivals.bound}={rounds}"
                    optimal += 1
                else:
                    cell = f"{arrivals.bound}+{gap}"
                cells.append(cell)
            print(f"| {ranks} | {late} | " + " | ".join(cells) + " |", flush=True)

    print(f"\n{optimal} of {gaps.total()} optimal; above the bound: {dict(sorted(gaps.items()))}")


if __name__ == "__main__":
    main()
