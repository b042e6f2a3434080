"""What the user chooses, and what decisions are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from runtime.policy.cost_model import Candidate, Profile
from runtime.policy.history import History, ModelCorrection
from verify.errors import ArgumentError

Mode = Literal["native", "static", "predict", "eager", "auto"]
MODES: tuple[Mode, ...] = get_args(Mode)
DETERMINISTIC: tuple[Mode, ...] = ("native", "static")
"""Modes that run the same buffer sizes by the same schedules in every step: the same bits."""
COORDINATED: tuple[Mode, ...] = ("eager", "auto")
"""Modes in which a coordinator decides each operation."""


@dataclass(frozen=True)
class Options:
    """Options of the modes; the same on all ranks.

    Attributes:
        mode: who decides, and from what.
        late: mode static: the late ranks in the order of their arrival.
        threshold_s: mode eager: how long the ranks that are there wait for the next one before
            they start; default: what a start that turns out to be needless would cost.
        most_late: never start without more ranks than this; default: a quarter, from 1 to 3.

    Raises:
        ArgumentError: an option out of its range, or one that the mode has no use for.
    """

    mode: Mode = "auto"
    late: tuple[int, ...] = ()
    threshold_s: float | None = None
    most_late: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ArgumentError("mode", self.mode, f"must be one of {', '.join(MODES)}")
        if self.mode == "static" and not self.late:
            raise ArgumentError("late", self.late, "must name who is late", "Or use mode='auto'")
        if self.mode != "static" and self.late:
            remedy = "Leave it out, or use mode='static'"
            raise ArgumentError("late", self.late, f"mode {self.mode} finds out by itself", remedy)
        if self.threshold_s is not None and self.mode != "eager":
            raise ArgumentError("threshold_s", self.threshold_s, "is for mode='eager' only")
        if self.threshold_s is not None and not self.threshold_s >= 0:
            raise ArgumentError("threshold_s", self.threshold_s, "must be 0 or more")
        if self.most_late is not None and self.most_late < 1:
            raise ArgumentError("most_late", self.most_late, "must be 1 or more")

    def at_most_late(self, ranks: int) -> int:
        """Q: how many may be missing when an operation is started; 0 for fewer than 3 ranks."""
        if self.mode == "static":
            return len(self.late)
        wanted = min(3, max(1, ranks // 4)) if self.most_late is None else self.most_late
        return max(0, min(wanted, ranks - 2))


@dataclass
class PolicyInputs:
    """What all decisions are made from; history and experience are the coordinator's own.

    Attributes:
        size: number of ranks.
        candidates: the schedules to choose from.
        profile: measured latency and bandwidth.
    """

    size: int
    candidates: tuple[Candidate, ...]
    profile: Profile
    history: History = field(init=False)
    experience: ModelCorrection = field(default_factory=ModelCorrection)

    def __post_init__(self) -> None:
        self.history = History(self.size)

    def native_s(self, size: int) -> float:
        """N as it is by experience."""
        return self.experience.factor(True) * self.profile.native_s(size)
