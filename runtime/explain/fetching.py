"""The dumps of a running job's ranks, asked for while it hangs: see ``latecomer dump``."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from latecomer.runtime.explain.served import SUFFIX, RankFile
from latecomer.runtime.telemetry.members import with_members
from latecomer.verify.errors import ArgumentError

AT_A_TIME = 64  # ranks that are asked
HANDLER = "handler/fr_trace_json"


class Answer(NamedTuple):
    """Of one rank: its dump, or why there is none."""

    served: RankFile
    dump: dict[str, Any]
    problem: str


def read_files(directory: Path) -> Iterator[RankFile]:
    """What the ranks' files in a directory tell; ArgumentError if there is none."""
    paths = sorted(directory.glob(f"rank*{SUFFIX}"))
    if not paths:
        requirement = "has no rank's file: call latecomer.serve_dumps(DIR) on all ranks"
        raise ArgumentError("DIR", str(directory), requirement)
    for path in paths:
        try:
            yield msgspec.json.decode(path.read_bytes(), type=RankFile)
        except (OSError, msgspec.DecodeError) as error:
            raise ArgumentError("DIR", str(path), f"is no rank's file ({error})") from None


def ask_all(served: Sequence[RankFile], timeout_s: float) -> list[Answer]:
    """What each of them answers within so long."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(lambda each: ask(each, timeout_s), served))


def ask(served: RankFile, timeout_s: float) -> Answer:
    """Ask one rank, and add who is in its groups where its recorder does not tell."""
    request = urllib.request.Request(f"{served.url}/{HANDLER}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            found: dict[str, Any] = msgspec.json.decode(reply.read(), type=dict[str, Any])
    except (OSError, urllib.error.URLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return Answer(served, {}, f"does not answer at {served.url} ({reason})")
    except msgspec.DecodeError as error:
        return Answer(served, {}, f"answers with something that is no dump ({error})")
    return Answer(served, with_members(found, served.groups), "")
