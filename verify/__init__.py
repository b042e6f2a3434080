"""What a schedule is, and whether it is right. Imports neither ``synth`` nor ``runtime``."""

from verify.core.check import check
from verify.core.format import decode, read
from verify.core.schedule import Incast, Phase, Schedule, Transfer
from verify.core.verdict import Counterexample, Report, Verdict
from verify.output import encode, write

__all__ = [
    "Counterexample",
    "Incast",
    "Phase",
    "Report",
    "Schedule",
    "Transfer",
    "Verdict",
    "check",
    "decode",
    "encode",
    "read",
    "write",
]
