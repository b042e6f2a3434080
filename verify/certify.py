"""Certificates: a schedule as a file for Coq, whose kernel then proves that one schedule right.

The file defines the schedule, has the kernel compute the verified checker on it, and concludes the
theorems of ``proofs/coq/Check.v``: correct for every commutative monoid, equal bits, within its
ports; and optimal, where the completion is at the lower bound. Compile it with ``coqc -Q proofs/coq
Latecomer FILE.v`` after ``make proofs``. What has to be believed is Coq's kernel, the definitions
that the theorems are stated with, and that the schedule in the certificate is the one in the file:
both carry it in plain text.
"""

from __future__ import annotations

from pathlib import Path

from latecomer.verify.core.schedule import Incast, Phase, Ports, Round, Schedule
from latecomer.verify.core.verdict import Report, Verdict
from latecomer.verify.errors import ArgumentError

TEMPLATE = """\
(* {title}
   Written by verify --certify; sha256 of the (uncompressed) schedule file:
   {digest}
   To check it: make proofs, then coqc -Q proofs/coq Latecomer {target} *)
From Latecomer Require Import Certificate.

Definition the_schedule : schedule := Schedule {ranks} {chunks} {late} {ports} [
{phases}].

Theorem certificate :
  (correct the_schedule /\\ same_bits the_schedule /\\
   well_formed the_schedule /\\ ports_respected the_schedule /\\
   absence_respected the_schedule /\\ hazard_free the_schedule){optimal}.
Proof. apply {lemma}. vm_cast_no_check (eq_refl true). Qed.

Print Assumptions certificate.
"""


def require_target(path: Path) -> None:
    """Refuse a name that Coq can't compile (ArgumentError)."""
    if path.suffix != ".v" or not (path.stem.isidentifier() and path.stem.isascii()):
        raise ArgumentError(
            "--certify", str(path), "must be a name of letters, digits and _ that ends in .v"
        )


def certificate(schedule: Schedule, report: Report, digest: str, target: Path) -> str:
    """The text of a file for Coq that proves what ``report`` says of ``schedule``.

    Args:
        schedule: what the report is about.
        report: must be ``proved``; nothing else of it is believed, Coq recomputes it.
        digest: sha256 of the schedule file, to find the file that a certificate is about.
        target: the file's name, for the instructions in it.

    Raises:
        ArgumentError: the schedule is not proved.
    """
    if report.verdict is not Verdict.PROVED:
        raise ArgumentError(
            "--certify", str(target), f"needs a proved schedule, this one is {report.verdict.value}"
        )
    at_bound = report.optimal is True
    return TEMPLATE.format(
        title=f"{schedule.kind} of {schedule.ranks} ranks in {schedule.chunks} chunks",
        digest=digest,
        target=target.name,
        ranks=schedule.ranks,
        chunks=schedule.chunks,
        late=_list(schedule.late),
        ports=_ports(schedule.ports),
        phases=";\n".join(map(_phase, schedule.phases)),
        optimal=" /\\\n  optimal the_schedule" if at_bound else "",
        lemma="certify_optimal" if at_bound else "certify",
    )


def _list(numbers: tuple[int, ...]) -> str:
    return "[" + "; ".join(map(str, numbers)) + "]"


def _ports(ports: Ports) -> str:
    return f"(Incast {ports.incast})" if isinstance(ports, Incast) else ports.capitalize()


def _phase(phase: Phase) -> str:
    """A phase; its name has no meaning and stays out."""
    return f" Phase {_list(phase.absent)} [\n  " + ";\n  ".join(map(_round, phase.rounds)) + "]"


def _round(transfers: Round) -> str:
    verbs = {"copy": "Send", "reduce": "Add"}
    return "[" + "; ".join(f"{verbs[t.op]} {t.src} {t.dst} {t.chunk}" for t in transfers) + "]"
