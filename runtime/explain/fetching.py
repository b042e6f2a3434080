"""``latecomer dump``: the dumps of a running job's ranks, asked for while it hangs."""

from __future__ import annotations

import http.client
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from latecomer.runtime.explain.served import SUFFIX, RankFile
from latecomer.verify.errors import ArgumentError

HANDLER = "handler/fr_trace_json"
AT_A_TIME = 64  # ranks that are asked


class Answer(NamedTuple):
    """Of one rank: its dump, or why there is none."""

    served: RankFile
    dump: dict[str, Any]
    problem: str


def dump(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="That of latecomer.serve_dumps(DIR).")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the dumps go.")] = Path(
        "dumps"
    ),
    timeout: Annotated[
        float, typer.Option(help="Seconds for each rank.", min=0.1, max=3600)
    ] = 10.0,
) -> None:
    """Ask all ranks of a running job for their Flight Recorders' dumps; it need not go on for that.

    Exit code 0: all have answered; 1: some have not, and are named; 2: there is nothing to ask.

    \b
    Examples:
      latecomer dump servers/
      latecomer dump servers/ -o dumps && latecomer explain dumps/
    """
    served = list(read_files(directory))
    world_size = served[0].world_size
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        answers = list(pool.map(lambda each: ask(each, timeout), served))
    output.mkdir(parents=True, exist_ok=True)
    for answer in answers:
        where = (
            f"rank {answer.served.rank} (process {answer.served.process} on {answer.served.host})"
        )
        if answer.problem:
            print(f"{where}: {answer.problem}", file=sys.stderr)
        else:
            path = output / f"rank_{answer.served.rank}.json"
            path.write_bytes(msgspec.json.encode(answer.dump))
    absent = sorted(set(range(world_size)) - {each.rank for each in served})
    for rank in absent:
        print(f"rank {rank}: has no file in {directory}", file=sys.stderr)
    answered = sum(not answer.problem for answer in answers)
    print(f"{answered} of {world_size} ranks answered: {output}")
    print(f"latecomer explain {output} --world-size {world_size}")
    sys.exit(int(answered < world_size))


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


def with_members(dump: dict[str, Any], groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The dump with the ranks of its groups, which Gloo's recorder leaves out."""
    config = dump.get("pg_config") or {}
    has_members = any(
        name and isinstance(group, dict) and group.get("ranks") not in (None, "", "[]", [])
        for name, group in config.items()  # Gloo's recorder has one without a name
    )
    if has_members:
        return dump
    told = {
        name: {"name": name, "desc": "", "ranks": list(ranks)} for name, ranks in groups.items()
    }
    return dump | {"pg_config": told}
