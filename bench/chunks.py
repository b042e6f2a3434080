"""Every number of ranks and chunks in a range: at the lower bound, and proved by ``verify``.

    python -m bench.chunks [--n 2..130] [--chunks 1..40]

A closed form for each of them, both phases, through the whole of ``verify``. Prints a line per
number of ranks as it goes and a summary; exit code 1 if one schedule is not proved or above the
bound.
"""

from __future__ import annotations

import argparse
import sys
import time

from latecomer.synth.straggler.generate import search
from latecomer.synth.survey import parse_range
from latecomer.verify.core.verdict import Verdict


def main() -> int:
    """Print the lines; the number of schedules that are not as they should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", default="2..130", help="ranks, as 2..64 or 2,3,8..12")
    parser.add_argument("--chunks", default="1..40", help="chunks of the buffer, likewise")
    options = parser.parse_args()

    ns = parse_range("--n", options.n, 2, 2**14)
    ks = parse_range("--chunks", options.chunks, 1, 2**12)
    started_s = time.monotonic()
    wrong = 0
    for n in ns:
        began_s = time.monotonic()
        above = []
        for k in ks:
            generated = search(n, chunks=k, owners="free")
            is_optimal = generated.report.verdict is Verdict.PROVED and generated.optimal
            if not is_optimal or generated.value != k + (n - 1).bit_length() - 1:
                above.append(k)

        wrong += len(above)
        took_s = time.monotonic() - began_s
        print(
            f"n = {n:4}: {len(ks) - len(above)} of {len(ks)} at the bound, {took_s:.1f} s, {above}"
        )

    took_s = time.monotonic() - started_s
    total = len(ns) * len(ks)
    print(f"{total - wrong} of {total} proved and at the bound, in {took_s:.0f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(main() > 0)
