"""The construction that is proved in Coq against the one that ``synth`` ships, round by round.

    python3 -m proofs.closed_form [--n 2..130] [--chunks 1..40]

``ClosedForm.v`` is extracted; for every number of ranks and chunks its rounds, as sets, must be
those of ``latecomer.synth.straggler.closed_form``, and so must what a rank finds of its own part
alone. Needs ``make proofs``. Exit code 1 at the first difference.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from latecomer.synth.straggler.closed_form import ClosedForm
from latecomer.synth.straggler.instance import Instance
from latecomer.synth.survey import parse_range
from latecomer.verify.core.schedule import Round
from latecomer.verify.kernel import BUILT

Rounds = list[list[list[Any]]]


def proved(*arguments: object) -> list[Rounds]:
    """The waiting phase and the completion, as the extracted program prints them."""
    command = [str(BUILT), "--closed-form", *map(str, arguments)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [[sorted(transfers) for transfers in json.loads(line)] for line in out.splitlines()]


def shipped(n: int, chunks: int, rank: int | None = None) -> list[Rounds]:
    """The same as ``synth`` makes it, of all ranks or of one."""

    def plain(rounds: tuple[Round, ...]) -> Rounds:
        return [sorted([t.src, t.dst, t.chunk, t.op] for t in transfers) for transfers in rounds]

    form = ClosedForm(Instance(n, chunks), rank)
    return [plain(form.waiting()), plain(form.completion())]


def same(n: int, chunks: int, ranks: list[int]) -> bool:
    """Whether both agree on the schedule, and on the programs of these ranks."""
    whole = proved("straggler", n, chunks) == shipped(n, chunks)
    return whole and all(
        proved("program", n, chunks, rank) == shipped(n, chunks, rank) for rank in ranks
    )


def main() -> int:
    """Compare all in a range; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", default="2..130", help="ranks, as 2..64 or 2,3,8..12")
    parser.add_argument("--chunks", default="1..40", help="chunks of the buffer, likewise")
    options = parser.parse_args()
    ns = parse_range("--n", options.n, 2, 2**10)
    ks = parse_range("--chunks", options.chunks, 1, 2**10)
    for n in ns:
        for k in ks:
            if not same(n, k, sorted({0, (7 * k) % n, n - 1})):
                print(f"n = {n}, k = {k}: another schedule")
                return 1
        print(f"n = {n:4}: the same for all {len(ks)} numbers of chunks", flush=True)
    print(f"{len(ns) * len(ks)} of {len(ns) * len(ks)} schedules are the same")
    return 0


if __name__ == "__main__":
    sys.exit(main())
