"""What process groups of the backend do, as set in Python or by environment variables.

    runtime.configure(mode="auto")              LATECOMER_MODE (_LATE, _PROFILE)
    runtime.configure("schedule.json", late=7)  LATECOMER_SCHEDULE, LATECOMER_LATE
    runtime.configure(algorithm="optireduce")   LATECOMER_ALGORITHM=optireduce

What is set in Python comes first; it holds for groups made from then on.
"""

from __future__ import annotations

import os
from typing import Any, Literal, cast, overload

from runtime.executor.load import Late, Verified, load
from runtime.optireduce.options import Options
from runtime.policy.cost_model import Profile
from runtime.policy.options import Chosen, Mode
from runtime.policy.options import choose as choose_mode
from verify.core.schedule import Schedule
from verify.errors import ArgumentError

Given = str | os.PathLike[str] | Schedule | Verified
Scheduled = tuple[Verified, tuple[int, ...]]
"""A schedule, and who is late."""

_configured: Scheduled | Chosen | Options | None = None


@overload
def configure(schedule: Given, *, late: Late = None) -> Verified: ...


@overload
def configure(
    *,
    mode: Mode,
    late: Late = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
) -> Chosen: ...


@overload
def configure(*, algorithm: Literal["optireduce"], options: Options | None = None) -> Options: ...


def configure(
    schedule: Given | None = None,
    *,
    mode: Mode | None = None,
    late: Late = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    algorithm: Literal["schedule", "optireduce"] = "schedule",
    options: Options | None = None,
) -> Verified | Chosen | Options:
    """Choose what process groups made from now on with ``backend="latecomer"`` do.

    Args:
        schedule: a file, or an object; it is verified here.
        mode: instead of a schedule; for it, ``threshold_s``, ``most_late`` and ``profile`` see
            :func:`runtime.policy.options.choose`.
        late: the late rank, or several in the order of their arrival; default: as the file says.
        algorithm: ``optireduce`` needs no schedule, ``options`` are its own.

    Raises:
        FormatError, ScheduleRefused: see :func:`runtime.load`.
        ArgumentError: a bad ``late``, no schedule, or a senseless environment variable.
    """
    global _configured  # noqa: PLW0603  (init_process_group has no way to pass it)
    if algorithm == "optireduce":
        _configured = found = options or Options()
        return found
    _configured = chosen = choose(
        schedule, mode, late, threshold_s=threshold_s, most_late=most_late, profile=profile
    )
    return chosen if isinstance(chosen, Chosen) else chosen[0]


def choose(
    schedule: Given | None, mode: Mode | None, late: Late, **of_mode: Any
) -> Scheduled | Chosen:
    """A schedule, verified, or a mode with its options ``of_mode``; raises as :func:`configure`."""
    if mode is not None and schedule is not None:
        raise ArgumentError("mode", mode, "makes its own schedules", "Leave one of both out")
    if mode is not None:
        return choose_mode(mode, late=late, **of_mode)
    if schedule is None:
        raise ArgumentError("schedule", schedule, "must be a file or a schedule", "Or set mode=")
    verified = load(schedule)
    return verified, verified.late_ranks(late)


def configuration() -> Scheduled | Chosen | Options:
    """What a group that is made now does; raises as :func:`configure`."""
    if _configured is not None:
        return _configured
    algorithm = os.environ.get("LATECOMER_ALGORITHM", "schedule")
    if algorithm not in ("schedule", "optireduce"):
        raise ArgumentError("LATECOMER_ALGORITHM", algorithm, "must be schedule or optireduce")
    if algorithm == "optireduce":
        return Options()
    given = os.environ.get("LATECOMER_LATE", "")
    numbers = given.split(",") if given else []
    if not all(number.strip().isdecimal() for number in numbers):
        requirement = "must be a rank, or several, separated by commas"
        raise ArgumentError("LATECOMER_LATE", given, requirement)
    late = [int(number) for number in numbers] or None
    if mode := os.environ.get("LATECOMER_MODE"):
        profile = os.environ.get("LATECOMER_PROFILE") or None
        return choose(None, cast(Mode, mode), late, profile=profile)
    path = os.environ.get("LATECOMER_SCHEDULE")
    if not path:
        remedy = (
            "Set LATECOMER_MODE=auto, or this to a file made with `synth generate`, or call "
            "runtime.configure() first"
        )
        requirement = "the backend needs a schedule or a mode"
        raise ArgumentError("LATECOMER_SCHEDULE", path, requirement, remedy)
    return choose(path, None, late)
