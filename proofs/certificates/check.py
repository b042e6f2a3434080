"""Check certificates of optimality: a schedule, and a refutation of every shorter one.

    python3 -m proofs.certificates.check [SCHEDULE.json ...]

Needs nothing installed. Beside ``NAME.json`` lies ``NAME.refutation.xz``: it refutes the formula
that says that there is a right schedule for the same ranks, chunks, ports and arrivals with one
completion round less. Without arguments all certificates of this folder are checked. That the
schedule itself is right is ``verify``'s to say: ``verify NAME.json``; ``make proofs`` has the
verified program check both.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

from proofs.certificates.formula import clauses, shorter
from proofs.certificates.refutation import Refused, check

FOLDER = Path(__file__).resolve().parent
SUFFIX = ".refutation.xz"


def refutation_of(schedule: Path) -> Path:
    """Where the refutation of everything shorter than ``schedule`` lies."""
    return schedule.with_name(schedule.stem + SUFFIX)


def check_certificate(schedule: Path) -> str:
    """Check one certificate; gives a line that says what is certified.

    Raises:
        Refused: the refutation is none.
        ValueError: there can be no question about this schedule.
    """
    document = json.loads(schedule.read_text())
    question = shorter(document)
    formula = list(clauses(question))
    with lzma.open(refutation_of(schedule), "rt", encoding="ascii") as proof:
        steps = check(formula, proof)
    waits = max(question.arrival)
    return (
        f"{question.ranks} ranks, {question.chunks} chunks, arrivals {list(question.arrival)}, "
        f"{'matching' if question.pairs else 'duplex'}: impossible in {question.rounds - waits} "
        f"rounds after the last arrival ({len(formula)} clauses, {steps} steps)"
    )


def main() -> None:
    """Run from the command line; exit code 1 where a certificate is refused."""
    named = [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.json"))
    refused = 0
    for schedule in named:
        try:
            print(f"{schedule.name}: {check_certificate(schedule)}", flush=True)
        except (Refused, ValueError, OSError, EOFError, lzma.LZMAError) as error:
            refused += 1
            print(f"{schedule.name}: REFUSED: {error}", flush=True)
    print(f"{len(named) - refused} of {len(named)} certificates hold")
    sys.exit(refused > 0 or not named)


if __name__ == "__main__":
    main()
