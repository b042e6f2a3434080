"""Modes: the runtime finds out who is late, or is told, and decides how each all-reduce runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from runtime.executor.load import Late
from runtime.policy import profile as profiles
from runtime.policy.cost_model import Profile
from runtime.policy.options import Mode, Options


@dataclass(frozen=True)
class Chosen:
    """A mode with its options and, where it is known, the profile."""

    options: Options
    profile: Profile | None = None


def choose(
    mode: Mode,
    *,
    late: Late = None,
    threshold_s: float | None = None,
    most_late: int | None = None,
    profile: str | os.PathLike[str] | Profile | None = None,
) -> Chosen:
    """A mode, with what :class:`runtime.policy.options.Options` describes.

    Args:
        profile: a file written by ``python -m runtime profile``; default: measured at the start.

    Raises:
        ArgumentError: an option is out of its range or does not go with the mode.
    """
    named = () if late is None else (late,) if isinstance(late, int) else tuple(late)
    options = Options(mode, named, threshold_s, most_late)
    if profile is None or isinstance(profile, Profile):
        return Chosen(options, profile)
    return Chosen(options, profiles.read(profile))
