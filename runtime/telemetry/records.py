"""What a rank remembers of each operation: when it came, what was decided and why, when done.

Times are seconds on the reference rank's clock (``latecomer.runtime.network.clock``).
"""

from __future__ import annotations

import math

import msgspec

from latecomer.runtime.collective import ALL_REDUCE
from latecomer.runtime.telemetry.origin import Origin

NATIVE = "native"
BETWEEN_TWO = ("send", "recv")
UNSEEN = "unseen"
"""The kind of what a rank has entered in a new group before that was watched."""
NOT_COUNTED = -1  # the number of such a thing, if it was a send or a receive
UNSEEN_ENDS = ("reduce_scatter", UNSEEN)
"""What a rank enters on a CPU, and torch never tells of its end (the work stays undone)."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation on one rank."""

    operation: int
    rank: int
    arrived_s: float  # when the rank had its data ready and entered
    decided_s: float  # when it knew how the operation runs
    done_s: float = math.nan  # when it had the result (NaN: it failed, or that is not seen)
    uncertainty_s: float  # of the rank's clock against the reference's
    bytes: int
    way: str  # NATIVE, or the name of the schedule
    late: tuple[int, ...]  # the ranks that were taken to be late
    reason: str
    by: str = ""  # on a device: kernel, transfers or library; why not the kernel
    collective: str = ALL_REDUCE

    @property
    def description(self) -> str:
        """How it ran, and who was late."""
        way = self.way if self.collective == ALL_REDUCE else f"{self.collective} {self.way}"
        if not self.late:
            return way
        return f"{way}, late: {', '.join(map(str, self.late))}"


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


class UbtStep(msgspec.Struct, frozen=True):
    """One step over UBT on one rank: what was lost, how its stages ended, how it was sent."""

    step: int
    ended_s: float
    due: int  # datagrams
    lost: int
    complete: int  # stages that ended so
    early: int
    timeout: int
    incast: int  # the smallest number of senders taken at once
    rate: float  # the lowest pacing rate to a peer, bytes per second
    bound_s: float  # t_B
    hadamard: bool  # the transform was on
    skipped: bool  # too much was lost for the step to be applied


class Members(msgspec.Struct, frozen=True):
    """A process group of torch's: its name there, who is in it, and what runs its collectives."""

    name: str
    ranks: tuple[int, ...]
    description: str
    backend: str


class Collective(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One collective, send or receive of a group of torch's own, on one rank."""

    group: str  # its name
    number: int  # in the group since the watch began; sends and receives are counted apart
    kind: str  # or UNSEEN
    peer: int = -1  # of a send or a receive: the other rank, in the job; of a receive: or anybody
    arrived_s: float  # when the rank entered it
    uncertainty_s: float  # of the rank's clock against the reference's
    bytes: int
    signature: tuple[str | int, ...]  # the same on all ranks, if they did the same; or not known
    failed: bool = False

    @property
    def is_between_two(self) -> bool:
        """Whether it is a send or a receive."""
        return self.kind in BETWEEN_TWO


class Rank(msgspec.Struct, frozen=True):
    """All that a rank remembers."""

    rank: int
    records: tuple[Record, ...]
    rounds: tuple[Round, ...] = ()
    stages: tuple[Stage, ...] = ()
    steps: tuple[UbtStep, ...] = ()
    messages: int = 0  # that it has sent for control meanwhile
    dropped: int = 0  # records that did not fit and are missing
    origin: Origin | None = None  # who, when and where; unknown in traces of earlier versions
    groups: tuple[Members, ...] = ()  # of torch's own, where these are watched
    collectives: tuple[Collective, ...] = ()  # of those
    disagreements: tuple[str, ...] = ()  # where their ranks entered different ones


RANK = msgspec.json.Decoder(Rank)  # with the module: see latecomer.verify.core.format
