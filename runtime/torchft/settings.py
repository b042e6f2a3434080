"""What the user of a process group for torchft chooses, and what follows for one quorum."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from latecomer.runtime.health.checks import require_times
from latecomer.runtime.policy.cost_model import Profile, read
from latecomer.runtime.policy.options import Mode, Options
from latecomer.verify.errors import ArgumentError

Seconds = float | timedelta


def seconds(time: Seconds) -> float:
    """A time as torchft's users write it, in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else float(time)


@dataclass(frozen=True)
class Settings:
    """The options of :class:`latecomer.torchft.ProcessGroup`, checked."""

    timeout_s: float
    silence_s: float
    join_timeout_s: float
    mode: Mode
    late: tuple[str, ...]  # replicas, in the order of their arrival
    most_late: int | None
    profile: Profile | None

    def options(self, replicas: Sequence[str], unclear: set[str]) -> Options:
        """The options of the modes for a group of these ``replicas``, which are in order of rank.

        Two replicas at least have to be on time, since one alone has nothing to sum up while it
        waits; of the late ones the last count then. Without any left all-reduces go natively.

        ArgumentError if one is named late whose name is ``unclear``: several have it.
        """
        if self.mode != "static":
            return Options(self.mode, most_late=self.most_late)
        for name in self.late:
            if name in unclear:
                requirement = "must be the name of one replica: several of this quorum have it"
                remedy = "Give each Manager a replica_id of its own"
                raise ArgumentError("late", name, requirement, remedy)

        late = [replicas.index(name) for name in self.late if name in replicas]
        most_late = max(0, len(replicas) - 2)
        last = late[len(late) - min(len(late), most_late) :]
        return Options("static", tuple(last)) if last else Options("native")


def checked(
    timeout: Seconds,
    silence: Seconds,
    join_timeout: Seconds,
    mode: Mode | None,
    late: str | Iterable[str],
    most_late: int | None,
    profile: str | os.PathLike[str] | Profile | None,
) -> Settings:
    """Settings that make sense, else ArgumentError."""
    require_times(seconds(timeout), seconds(silence), seconds(join_timeout))
    names = _names(late)
    if mode is None:
        mode = "static" if names else "auto"
    _require_late_in_static(mode, names)
    if profile is not None and not isinstance(profile, Profile):
        profile = read(profile)
    Options(mode, tuple(range(len(names))), most_late=most_late)  # raises for what it does not take
    return Settings(
        timeout_s=seconds(timeout),
        silence_s=seconds(silence),
        join_timeout_s=seconds(join_timeout),
        mode=mode,
        late=names,
        most_late=most_late,
        profile=profile,
    )


def _names(late: str | Iterable[str]) -> tuple[str, ...]:
    """The replicas named late; a set has no order, and is taken by name."""
    if isinstance(late, str):
        return (late,)
    names = sorted(late) if isinstance(late, set | frozenset) else list(late)
    for name in names:
        if not isinstance(name, str):
            requirement = "must be names of replicas, as Manager(replica_id=) has them"
            raise ArgumentError("late", name, requirement, "Ranks change with each quorum")
    return tuple(dict.fromkeys(names))


def _require_late_in_static(mode: Mode, names: tuple[str, ...]) -> None:
    """ArgumentError where names and mode do not go together; Options would speak of ranks."""
    if mode == "static" and not names:
        raise ArgumentError("late", names, "must name the late replicas", "Or use mode='auto'")
    if mode != "static" and names:
        remedy = "Leave it out, or use mode='static'"
        raise ArgumentError("late", names, f"mode {mode} finds out by itself", remedy)
