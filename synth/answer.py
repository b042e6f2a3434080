"""What every family returns: a proved schedule, a lower bound, and what "optimal" rests on.

Nothing leaves ``synth`` unproved: the verifier, which shares no code with it, has the say. Whether
a schedule is optimal is never said without its basis (docs/explanation/trust.md says what each one
asks you to believe):

    theorem       at a lower bound that is proved in Coq
    certificate   a certificate refutes every shorter schedule: one of proofs/certificates, or (for
                  pipelines) one that was found and checked
    paper         at a lower bound that is proved on paper
    solver        a solver has exhausted the question for anything shorter
    unknown       none of these: there may be something shorter
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from latecomer.verify.core.check import check
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import Report, Verdict
from latecomer.verify.errors import SynthesisError
from latecomer.verify.pipeline.schedule import PipelineSchedule
from latecomer.verify.pipeline.verdict import PipelineReport


class Basis(StrEnum):
    """What a claim about optimality rests on.

    Examples:
        >>> from latecomer.synth.answer import Basis
        >>> print(*Basis)
        theorem certificate paper solver unknown
    """

    THEOREM = "theorem"
    CERTIFICATE = "certificate"
    PAPER = "paper"
    SOLVER = "solver"
    UNKNOWN = "unknown"


S = TypeVar("S", Schedule, PipelineSchedule)
R = TypeVar("R", Report, PipelineReport)


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[S, R]):
    """A proved schedule and how good it is; families add what their search recorded.

    Attributes:
        report: what the verifier says about the schedule.
        bound: no schedule for the same instance has a smaller ``value``.
        basis, reason: what is known about optimality rests on this, in one line.

    Examples:
        >>> from latecomer.synth.answer import Basis
        >>> from latecomer.synth.straggler.generate import search
        >>> answer = search(4)
        >>> answer.value, answer.bound, answer.gap
        (4, 4, 0)
        >>> answer.optimal and answer.basis is Basis.THEOREM
        True
    """

    schedule: S
    report: R
    bound: float
    basis: Basis
    reason: str

    @property
    def value(self) -> float:
        """What is minimized: rounds after the last arrival, or the makespan of a pipeline."""
        if isinstance(self.report, Report):
            return self.report.completion_rounds
        assert self.report.measures is not None
        return self.report.measures.makespan

    @property
    def gap(self) -> float:
        """How far the value is above the bound."""
        return self.value - self.bound

    @property
    def optimal(self) -> bool:
        """Whether nothing is shorter; if False, that is unknown unless the basis says otherwise."""
        return self.basis is not Basis.UNKNOWN and self.value == self.bound

    @property
    def claim(self) -> str:
        """What is known about optimality, never without its basis."""
        if self.optimal:
            return optimal_by(self.basis, self.reason)
        if self.basis is Basis.THEOREM:
            return f"not optimal ({self.basis}: {self.reason})"
        return f"gap {self.gap:g}: optimality unknown ({self.reason})"


def optimal_by(basis: Basis, reason: str) -> str:
    """ "Optimal" with its basis."""
    return f"optimal ({basis}: {reason})"


def basis_of(report: Report) -> tuple[Basis, str]:
    """The basis of what the verifier itself says about optimality."""
    if report.optimal is True:
        return Basis.THEOREM, "at the lower bound for so many chunks, which verify recomputes"
    if report.optimal is False:
        return Basis.THEOREM, "a round of the completion moves nothing"
    return Basis.UNKNOWN, "the lower bound may be out of reach"


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


def answered(schedule: Schedule) -> Answer[Schedule, Report]:
    """A schedule that needs no search, proved; SynthesisError as in :func:`checked`."""
    report = checked(schedule)
    basis, reason = basis_of(report)
    return Answer(
        schedule=schedule, report=report, bound=report.lower_bound, basis=basis, reason=reason
    )
