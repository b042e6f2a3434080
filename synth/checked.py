"""Nothing leaves ``synth`` unproved: the verifier, which shares no code with it, has the say."""

from __future__ import annotations

from verify.core.check import check
from verify.core.schedule import Schedule
from verify.core.verdict import Report, Verdict
from verify.errors import SynthesisError


def checked(schedule: Schedule) -> Report:
    """The verifier's report on ``schedule``.

    Raises:
        SynthesisError: it is not proved, which is a fault of this package.
    """
    report = check(schedule)
    if report.verdict is not Verdict.PROVED:
        raise SynthesisError(
            "internal error: the schedule that was made is not proved, so it is not used "
            f"({report.verdict.value}: {report.counterexample})"
        )
    return report
