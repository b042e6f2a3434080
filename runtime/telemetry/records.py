"""What a rank remembers of each operation: when it came, what was decided and why, when done.

Times are seconds on the reference rank's clock (``runtime.network.clock``).
"""

from __future__ import annotations

import msgspec

NATIVE = "native"


class Record(msgspec.Struct, frozen=True):
    """One operation on one rank."""

    operation: int
    rank: int
    arrived_s: float  # when the rank had its data ready and entered
    decided_s: float  # when it knew how the operation runs
    done_s: float  # when it had the result (NaN: it failed or has not)
    uncertainty_s: float  # of the rank's clock against the reference's
    bytes: int
    way: str  # NATIVE, or the name of the schedule
    late: tuple[int, ...]  # the ranks that were taken to be late
    reason: str

    @property
    def description(self) -> str:
        """How it ran, and who was late."""
        return f"{self.way}, late: {', '.join(map(str, self.late))}" if self.late else self.way


class Round(msgspec.Struct, frozen=True):
    """One round of one operation, for traces."""

    operation: int
    phase: str
    round: int
    began_s: float
    ended_s: float


class Stage(msgspec.Struct, frozen=True):
    """One receive stage (1 or 2) of one operation over UBT: complete, early or timeout."""

    operation: int
    stage: int
    began_s: float
    ended_s: float
    end: str
    due: int
    lost: int


class Step(msgspec.Struct, frozen=True):
    """One step over UBT on one rank: what was lost, how its stages ended, how it was sent.

    ``due`` and ``lost`` are datagrams; ``incast`` the senders taken at once; ``rate`` the lowest
    pacing rate to a peer, bytes per second; ``bound_s`` is t_B; ``hadamard``: the transform was on;
    ``skipped``: too much was lost for the step to be applied.
    """

    step: int
    ended_s: float
    due: int
    lost: int
    complete: int
    early: int
    timeout: int
    incast: int
    rate: float
    bound_s: float
    hadamard: bool
    skipped: bool


class Rank(msgspec.Struct, frozen=True):
    """All that a rank remembers.

    ``messages`` it has sent for control meanwhile; ``dropped`` records did not fit and are missing.
    """

    rank: int
    records: tuple[Record, ...]
    rounds: tuple[Round, ...] = ()
    stages: tuple[Stage, ...] = ()
    steps: tuple[Step, ...] = ()
    messages: int = 0
    dropped: int = 0
