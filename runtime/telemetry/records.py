"""What a rank remembers of each operation: when it came, what was decided and why, when done.

Times are seconds on the reference rank's clock (``runtime.network.clock``).
"""

from __future__ import annotations

import msgspec

NATIVE = "native"


class Record(msgspec.Struct, frozen=True):
    """One operation on one rank.

    Attributes:
        operation: its number, from 0.
        arrived_s: when the rank had its data ready and entered.
        decided_s: when it knew how the operation runs.
        done_s: when it had the result (NaN: it failed or has not).
        uncertainty_s: of the rank's clock against the reference's.
        bytes: size of the buffer.
        way: ``native``, or the name of the schedule.
        late: the ranks that were taken to be late.
        reason: why it ran this way.
    """

    operation: int
    rank: int
    arrived_s: float
    decided_s: float
    done_s: float
    uncertainty_s: float
    bytes: int
    way: str
    late: tuple[int, ...]
    reason: str


class Round(msgspec.Struct, frozen=True):
    """One round of one operation, for traces."""

    operation: int
    phase: str
    round: int
    began_s: float
    ended_s: float


class Stage(msgspec.Struct, frozen=True):
    """One receive stage (1 or 2) of one operation over UBT, for traces.

    Attributes:
        end: ``complete``, ``early`` or ``timeout``.
        due, lost: datagrams.
    """

    operation: int
    stage: int
    began_s: float
    ended_s: float
    end: str
    due: int
    lost: int


class Step(msgspec.Struct, frozen=True):
    """One step over UBT on one rank: what was lost, how its stages ended, how it was sent.

    Attributes:
        due, lost: datagrams due here and those that did not arrive.
        complete, early, timeout: stages that ended so.
        incast: senders that the rank takes at once.
        rate: lowest pacing rate over the peers, bytes per second.
        bound_s: t_B.
        hadamard: the transform was on.
        skipped: the step lost too much to be applied.
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

    Attributes:
        messages: control messages it has sent meanwhile.
        dropped: records that did not fit and are missing at the beginning.
        stages, steps: of operations over UBT.
    """

    rank: int
    records: tuple[Record, ...]
    rounds: tuple[Round, ...] = ()
    stages: tuple[Stage, ...] = ()
    steps: tuple[Step, ...] = ()
    messages: int = 0
    dropped: int = 0
