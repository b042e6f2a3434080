"""Where a watch takes place: which job, rank, host and process, since when, by which version."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from latecomer.runtime.host import host
from latecomer.verify.version import version

NAMES_OF_JOB = ("LATECOMER_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""Environment variables that name a job; the first that is set counts."""

NAMES_OF_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
"""Environment variables that number the ranks of a host, by who starts them."""

ORIGIN = "latecomer_origin"
"""The name of a trace's event that has a rank's origin."""

UNNAMED = ("", "none")  # torchrun's run id is "none" where nobody gives one


class Origin(msgspec.Struct, frozen=True):
    """Of one rank's part in a watch."""

    watch: str  # names the watch; the same on all its ranks, and later ones sort behind it
    rank: int
    ranks: int  # of the group
    host: str
    process: int
    job: str  # empty where nothing names it
    version: str  # of latecomer
    began: str  # when this rank entered the block: date and time in UTC, ISO 8601
    began_unix_s: float  # the same in seconds since 1970
    clock_s: float  # the same on the clock of all other times, the reference rank's


def origin(watch: str, rank: int, ranks: int, offset_s: float) -> Origin:
    """This rank's origin, now; ``offset_s`` takes ``time.monotonic()`` to the reference clock."""
    now = datetime.now(UTC)
    return Origin(
        watch=watch,
        rank=rank,
        ranks=ranks,
        host=host.name(),
        process=os.getpid(),
        job=job_name(os.environ),
        version=version(),
        began=now.isoformat(timespec="milliseconds"),
        began_unix_s=now.timestamp(),
        clock_s=host.monotonic() + offset_s,
    )


def new_watch() -> str:
    """A name for a watch that begins now; names of later watches sort behind it."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S.%f}-{host.random_token(4)}"


def job_name(environment: Mapping[str, str]) -> str:
    """What the environment calls this job; empty if it has no name."""
    for variable in NAMES_OF_JOB:
        name = environment.get(variable, "")
        if name not in UNNAMED:
            return name
    return ""


def local_rank(environment: Mapping[str, str], rank: int) -> int:
    """This process's number on its host; where nothing says so, all ranks are on one host."""
    for variable in NAMES_OF_LOCAL_RANK:
        number = environment.get(variable, "")
        if number.isdecimal():
            return int(number)
    return rank
