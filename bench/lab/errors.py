"""Errors of the lab; all belong to the project's hierarchy (``latecomer.verify.errors``).

LatecomerError
├── LabUnavailable   this machine does not permit the lab, or lacks a tool it needs
└── LabError         the lab could not be built as asked, or broke while in use
    └── JobFailed    a command in the lab failed; ``rank`` names the first one
"""

from __future__ import annotations

from latecomer.verify.errors import LatecomerError


class LabUnavailable(LatecomerError):
    """The lab can't be had here; tests that need it are skipped with this text.

    Args:
        what: what is missing or refused.
        remedy: what would make it available.
    """

    def __init__(self, what: str, remedy: str) -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"no emulated network on this machine: {what}. {remedy}")


class LabError(LatecomerError):
    """A setting did not take effect, or a part of the lab ended too early."""


class JobFailed(LabError):
    """A rank ended with an error, or not in time.

    Attributes:
        rank: the first rank that failed.
        output: what it printed.
    """

    def __init__(self, rank: int, reason: str, output: str) -> None:
        self.rank = rank
        self.reason = reason
        self.output = output
        text = f"rank {rank} {reason}"
        last_lines = output.rstrip().splitlines()[-20:]
        if last_lines:
            text += "; it printed\n  " + "\n  ".join(last_lines)
        super().__init__(text)
