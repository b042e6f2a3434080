"""Looks for programs on which ``verify`` and an oracle contradict each other.

    python -m tests.hunt --kind xml|plan|model --count 100000 [--seed 0] [--seconds 60] [--first 1]

Program number n of a kind is always the same. Exit code 1: there is a contradiction, but for those
that begin with HARSH (``verify`` refutes how a right program is put together) or PART (it proves a
property that does not hold of a program that it refutes).
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.hunt.all_kinds import KINDS
from tests.hunt.kinds import LENIENT
from tests.hunt.search import search, shrink

STRETCH = 2_000
"""Programs between two lines of progress."""


def _options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="tests.hunt", description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0, help="the first program's number")
    parser.add_argument("--seconds", type=float, help="of processor time, at most")
    parser.add_argument("--first", type=int, help="stop at so many contradictions")
    parser.add_argument("--show", type=int, default=1, help="of each way, how many are shrunk")
    return parser.parse_args()


def main() -> int:
    """Search, print the contradictions, and show some of them shrunk."""
    options = _options()
    kind = KINDS[options.kind]
    end = options.seed + options.count
    started = time.process_time()
    shown: dict[str, int] = {}
    programs = 0
    contradictions = 0
    serious = 0

    for low in range(options.seed, end, STRETCH):
        seeds = range(low, min(low + STRETCH, end))

        seconds_left = None
        if options.seconds is not None:
            seconds_left = options.seconds - (time.process_time() - started)
            if seconds_left <= 0:
                break

        findings_left = None
        if options.first is not None:
            findings_left = options.first - contradictions

        tally = search(kind, seeds, seconds_left, findings_left)
        programs += tally.count
        contradictions += len(tally.findings)

        spent = time.process_time() - started
        print(f"{kind.name}, from {low}: {tally}; {contradictions} contradictions, {spent:.0f} s")
        for (verdict, observed), count in sorted(tally.verdicts.items()):
            print(f"    {verdict:8} {observed:10} {count}")

        for finding in tally.findings:
            print(f"  {finding.contradiction}: seed {finding.seed}")
            if not finding.contradiction.startswith(LENIENT):
                serious += 1
            shown[finding.contradiction] = shown.get(finding.contradiction, 0) + 1
            if shown[finding.contradiction] <= options.show:
                small = shrink(kind, kind.make(finding.seed), finding.contradiction)
                print(kind.text(small).decode())
        sys.stdout.flush()

        if options.first is not None and contradictions >= options.first:
            break

    print(f"{programs} programs, {contradictions} contradictions, {serious} of them serious")
    return 1 if serious else 0


if __name__ == "__main__":
    sys.exit(main())
