"""What a schedule is, and whether it is right. Imports neither ``synth`` nor ``runtime``."""

from verify.core.check import check
from verify.core.format import decode, encode, read, write
from verify.core.schedule import Incast, Phase, Schedule, Transfer
from verify.core.verdict import Counterexample, Report, Verdict

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
