"""What ``synth pipeline`` answers: a proved schedule, and what is known of the optimum.

A lower bound has a proof: the closed form of ``latecomer.verify.pipeline.bounds`` (on paper), a
certificate, or CP-SAT's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from latecomer.synth.answer import Answer, Basis
from latecomer.synth.pipeline.problem import Problem
from latecomer.verify.pipeline.costs import told_apart
from latecomer.verify.pipeline.schedule import Number, PipelineSchedule
from latecomer.verify.pipeline.verdict import Measures, PipelineReport, gap_in_words, relative_gap

CLOSED_FORM = "closed form"
CERTIFICATE = "certificate"


@dataclass(frozen=True, kw_only=True)
class PipelineAnswer(Answer[PipelineSchedule, PipelineReport]):
    """The schedule with the shortest step found; times in the unit of the instance.

    Attributes:
        bound_ticks: the bound exactly, in ticks.
        method: the one whose schedule this is.
        choice: why this one.
        proof: where the bound is from.
        candidates: method -> makespan, of all that were tried, best first.
        unsuited: method -> why it was of no use.
        seconds: time taken, the proof of the schedule included.
        interrupted: whether Ctrl-C ended the search, so that this is the best by then.
        certificate: lines that refute everything shorter, where the basis is a certificate of this
            answer's own; ``certificate_s`` is how long it took, beside ``seconds``.
    """

    problem: Problem
    bound_ticks: int
    method: str
    choice: str
    proof: str
    candidates: dict[str, Number]
    unsuited: dict[str, str]
    seconds: float
    interrupted: bool = False
    certificate: tuple[str, ...] = ()
    certificate_s: float = 0.0

    @property
    def measures(self) -> Measures:
        """Makespan, memory and so on; a proved schedule has them."""
        assert self.report.measures is not None
        return self.report.measures

    @property
    def gap(self) -> float:
        """How far the makespan is above the bound, relative to it."""
        return relative_gap(self.measures.exact.makespan, self.bound_ticks)

    @property
    def optimal(self) -> bool:
        """Whether nothing is shorter; decided in ticks, since times of floats may look alike."""
        return self.basis is not Basis.UNKNOWN and self.measures.exact.makespan == self.bound_ticks

    @property
    def claim(self) -> str:
        """What is known about optimality, never without its basis."""
        if self.optimal:
            return super().claim
        return f"gap {gap_in_words(self.gap)}, optimality unknown"

    @property
    def in_words(self) -> tuple[str, str]:
        """Makespan and bound, alike only if they are equal."""
        exact = self.measures.exact
        value, bound = told_apart(exact.time(exact.makespan), exact.time(self.bound_ticks))
        return value, bound


def basis_of(bound: int | Fraction, value: int | Fraction, proof: str) -> tuple[Basis, str]:
    """What optimality rests on where the bound has this proof; both are exact, in one unit."""
    if value > bound:
        return Basis.UNKNOWN, "the lower bound may be out of reach"
    if proof == CLOSED_FORM:
        return Basis.PAPER, "at the lower bound that verify recomputes"
    if proof == CERTIFICATE:
        return Basis.CERTIFICATE, "every shorter schedule is refuted, step by step, and checked"
    return Basis.SOLVER, proof


def weakest(proofs: Sequence[str]) -> str:
    """The proof to name where a bound rests on several: a solver's word before all others."""
    for proof in proofs:
        if proof not in (CLOSED_FORM, CERTIFICATE):
            return proof
    return CLOSED_FORM if CLOSED_FORM in proofs else CERTIFICATE


def makespan_of(problem: Problem, report: PipelineReport) -> int:
    """The makespan that the verifier found, in ticks."""
    assert report.measures is not None
    assert report.measures.exact.ticks == problem.costs.ticks
    return report.measures.exact.makespan
