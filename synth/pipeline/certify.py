"""Certificates for answers: "optimal" by a checked refutation instead of a solver's word.

The search (``latecomer.synth.pipeline.refute``) is believed nothing: what it writes is checked by
``latecomer.verify.pipeline.refutation``, which shares no code with it, and can be checked by the
program that is extracted from Coq (docs/explanation/trust.md).
"""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from latecomer.synth.answer import Basis
from latecomer.synth.pipeline.answer import CERTIFICATE, PipelineAnswer, basis_of, makespan_of
from latecomer.synth.pipeline.refute import OutOfTime, Possible, refute, suits
from latecomer.verify.errors import SynthesisError
from latecomer.verify.pipeline.refutation import Refused, check


class NoCertificate(Exception):
    """There is none, and why."""


def certified(answer: PipelineAnswer, time_limit_s: float) -> PipelineAnswer:
    """The same answer, optimal by a certificate.

    Raises:
        NoCertificate: the problem is not covered, or no certificate was found in time.
        SynthesisError: what was found is refused, or the answer is not optimal: faults of this
            package, or of the solver.
    """
    problem = answer.problem
    if not suits(problem):
        raise NoCertificate(
            "links that are held, limits of ranks with several stages, actions that take no time, "
            "and very many or very long ones are not covered"
        )

    span = makespan_of(problem, answer.report)
    began_s = time.monotonic()
    try:
        lines = refute(problem, span, time_limit_s)
    except OutOfTime:
        raise NoCertificate(f"none was found in {time_limit_s:g} s") from None
    except Possible:
        if not answer.optimal:
            raise NoCertificate("there may be a shorter schedule") from None
        raise SynthesisError(
            f"internal error: makespan {answer.value:g} is called optimal ({answer.basis}), but "
            "the search for a refutation of anything shorter ends without one"
        ) from None

    try:
        check(answer.schedule, span, lines)
    except Refused as error:
        raise SynthesisError(f"internal error: a refutation is refused ({error})") from None

    basis, reason = basis_of(span, span, CERTIFICATE)
    assert basis is Basis.CERTIFICATE
    meta = {**answer.schedule.meta, "proved_bound": answer.value, "proved_by": CERTIFICATE}
    return replace(
        answer,
        schedule=msgspec.structs.replace(answer.schedule, meta=meta),
        bound=answer.value,
        bound_ticks=span,
        basis=basis,
        reason=reason,
        proof=CERTIFICATE,
        certificate=tuple(lines),
        certificate_s=time.monotonic() - began_s,
    )
