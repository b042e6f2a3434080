"""What a schedule is, and whether it is right. Imports neither ``synth`` nor ``runtime``."""

from verify.check import check
from verify.format import decode, encode, read, write
from verify.schedule import Incast, Phase, Schedule, Transfer
from verify.verdict import Counterexample, Report, Verdict

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
