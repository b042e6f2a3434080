"""What process groups of the backend do, as set in Python or, else, by environment variables.

``latecomer.runtime.backend`` shows both. What is set in Python holds for groups made from then on.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, TypedDict, Unpack, cast, overload

from latecomer.runtime.device.option import OnDevice, resolved
from latecomer.runtime.executor.load import Late, Verified, load, named
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.policy import options as modes
from latecomer.runtime.policy.cost_model import Profile, read
from latecomer.runtime.policy.options import Chosen, Mode
from latecomer.runtime.samebits import option as samebits_option
from latecomer.runtime.samebits.option import Bits
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError

DEFAULT_MODE: Mode = "auto"  # where nothing is set
ScheduleSource = str | os.PathLike[str] | Schedule | Verified


class Scheduled(NamedTuple):
    """A schedule, who is late, and what runs it on GPUs."""

    verified: Verified
    late: tuple[int, ...]
    device: OnDevice
    bits: Bits = "any"


_configured: Scheduled | Chosen | Options | None = None


class RunOptions(TypedDict, total=False):
    """What goes with a schedule and with a mode; see :func:`configure`."""

    late: Late
    device: OnDevice | None
    bits: Bits | None


class ModeOptions(RunOptions, total=False):
    """What goes with a mode; see :func:`configure`."""

    threshold_s: float | None
    most_late: int | None
    profile: str | os.PathLike[str] | Profile | None


@overload
def configure(schedule: ScheduleSource, **options: Unpack[RunOptions]) -> Verified: ...


@overload
def configure(*, mode: Mode | Literal["off"], **of_mode: Unpack[ModeOptions]) -> Chosen: ...


@overload
def configure(*, algorithm: Literal["optireduce"], options: Options | None = None) -> Options: ...


def configure(
    schedule: ScheduleSource | None = None,
    *,
    mode: Mode | Literal["off"] | None = None,
    algorithm: Literal["schedule", "optireduce"] = "schedule",
    options: Options | None = None,
    **of_mode: Unpack[ModeOptions],
) -> Verified | Chosen | Options:
    """Choose what process groups made from now on with ``backend="latecomer"`` do.

    Args:
        schedule: a file, or an object; it is verified here.
        mode: instead of a schedule: who decides, and from what (``latecomer.runtime.policy``);
            ``off`` is ``native``.
        late: the late rank, or several in the order of their arrival; default: as the file says.
            In mode static it must be given, the other modes find out.
        threshold_s: mode eager: how long the ranks that are there wait for the next one before
            they start; default: what a start that turns out to be needless would cost.
        most_late: a mode never starts without more ranks than this; default: a quarter, 1 to 3.
        device: how schedules run on GPUs (:mod:`latecomer.runtime.device.option`); default:
            LATECOMER_DEVICE.
        bits: ``same``: sums of floats have the same bits whoever is late, in every mode and by
            every schedule (docs/explanation/same-bits.md); default: LATECOMER_BITS, or ``any``.
        profile: for a mode: a file written by ``latecomer profile``; default: measured at
            the start.
        algorithm: ``optireduce`` needs no schedule, ``options`` are its own.

    Raises:
        FormatError, ScheduleRefused: see ``latecomer.load``.
        ArgumentError: a bad ``late``, no schedule, an option that is out of its range or does not
            go with the mode, or a senseless environment variable.

    Examples:
        On every rank of ``torchrun``, here with two of them:

        >>> import torch, torch.distributed as dist
        >>> import latecomer
        >>> from latecomer import synth
        >>> verified = latecomer.configure(synth.generate(2), late=0)  # or a file, or mode="auto"
        >>> dist.init_process_group("latecomer")
        >>> dist.all_reduce(tensor := torch.ones(3))
        >>> tensor, dist.group.WORLD.paths  # a LatecomerGroup counts what went how
        (tensor([2., 2., 2.]), Counter({'schedule': 1}))
        >>> dist.destroy_process_group()
    """
    global _configured  # noqa: PLW0603  (init_process_group has no way to pass it)
    if algorithm == "optireduce":
        require_any_bits(of_mode.get("bits"))
        own_options = options or Options()
        _configured = own_options
        return own_options
    chosen = choose(schedule, mode, **of_mode)
    _configured = chosen
    return chosen if isinstance(chosen, Chosen) else chosen.verified


def choose(
    schedule: ScheduleSource | None,
    mode: Mode | Literal["off"] | None,
    *,
    late: Late = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
    device: OnDevice | None = None,
    bits: Bits | None = None,
) -> Scheduled | Chosen:
    """A schedule, verified, or a mode with its options; raises as :func:`configure`."""
    device = resolved(device)
    bits = samebits_option.resolved(bits)
    if mode is not None and schedule is not None:
        raise ArgumentError("mode", mode, "makes its own schedules", "Leave one of both out")
    if mode is not None:
        if profile is not None and not isinstance(profile, Profile):
            profile = read(profile)
        chosen_mode: Mode = "native" if mode == "off" else mode
        options = modes.Options(chosen_mode, named(late), threshold_s, most_late, device, bits)
        return Chosen(options, profile)
    if schedule is None:
        raise ArgumentError("schedule", schedule, "must be a file or a schedule", "Or set mode=")
    of_mode = {"threshold_s": threshold_s, "most_late": most_late, "profile": profile}
    for name, value in of_mode.items():
        if value is not None:
            raise ArgumentError(name, value, "goes with a mode only", "Leave it out, or set mode=")
    verified = load(schedule)
    return Scheduled(verified, verified.late_ranks(late), device, bits)


def configuration() -> Scheduled | Chosen | Options:
    """What a group that is made now does; raises as :func:`configure`."""
    if _configured is not None:
        return _configured
    algorithm = os.environ.get("LATECOMER_ALGORITHM", "schedule")
    if algorithm not in ("schedule", "optireduce"):
        raise ArgumentError("LATECOMER_ALGORITHM", algorithm, "must be schedule or optireduce")
    if algorithm == "optireduce":
        require_any_bits(None)
        return Options()
    late_text = os.environ.get("LATECOMER_LATE", "")
    numbers = late_text.split(",") if late_text else []
    if not all(number.strip().isdecimal() for number in numbers):
        requirement = "must be a rank, or several, separated by commas"
        raise ArgumentError("LATECOMER_LATE", late_text, requirement)
    late = [int(number) for number in numbers] or None
    mode = os.environ.get("LATECOMER_MODE")
    path = os.environ.get("LATECOMER_SCHEDULE")
    if path and not mode:
        return choose(path, None, late=late)
    profile = os.environ.get("LATECOMER_PROFILE") or None
    return choose(None, cast(Mode, mode or DEFAULT_MODE), late=late, profile=profile)


def require_any_bits(bits: Bits | None) -> None:
    """ArgumentError if OptiReduce is to have the same bits, which it can't."""
    if samebits_option.resolved(bits) == "same":
        requirement = "is not for algorithm='optireduce', whose sums lack what the network loses"
        raise ArgumentError("bits", "same", requirement, "Use a mode or a schedule")
