"""Check certificates of optimal pipelines: a schedule, and a refutation of every shorter one.

    python -m proofs.pipeline_certificates.check [SCHEDULE.json ...]

Beside ``NAME.json`` lies ``NAME.refutation.xz``. ``verify`` says that the schedule is right and
what it takes; ``latecomer.verify.pipeline.refutation`` checks that no schedule of the instance
takes less. Without arguments all certificates of this folder are checked. ``make proofs`` has the
program that is extracted from Coq check both.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.pipeline import check, read
from latecomer.verify.pipeline.costs import told_apart
from latecomer.verify.pipeline.refutation import Refused
from latecomer.verify.pipeline.refutation import check as check_refutation

FOLDER = Path(__file__).resolve().parent


def refutation_of(schedule: Path) -> Path:
    """Where the refutation of everything shorter than ``schedule`` lies."""
    return schedule.with_name(schedule.stem + ".refutation.xz")


def check_certificate(path: Path) -> str:
    """Check one certificate; gives a line that says what is certified.

    Raises:
        Refused: the schedule is not right, or the refutation is none.
    """
    schedule = read(path)
    report = check(schedule)
    if report.verdict is not Verdict.PROVED or report.measures is None:
        raise Refused(f"the schedule is {report.verdict.value}")
    exact = report.measures.exact
    with lzma.open(refutation_of(path), "rt", encoding="ascii") as lines:
        steps = check_refutation(schedule, exact.makespan, lines)
    span, bound = told_apart(exact.time(exact.makespan), exact.time(exact.lower_bound))
    return (
        f"{schedule.stages} stages, {schedule.microbatches} microbatches: no makespan below "
        f"{span} ({steps} steps; the bound of verify is {bound})"
    )


def main() -> None:
    """Run from the command line; exit code 1 where a certificate is refused."""
    named = [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.json"))
    refused = 0
    for path in named:
        try:
            print(f"{path.stem}: {check_certificate(path)}", flush=True)
        except (Refused, OSError, EOFError, lzma.LZMAError) as error:
            refused += 1
            print(f"{path.stem}: REFUSED: {error}", flush=True)
    print(f"{len(named) - refused} of {len(named)} pipeline certificates hold")
    sys.exit(refused > 0 or not named)


if __name__ == "__main__":
    main()
