"""What a rank writes by itself when a collective is overdue: its Flight Recorder's dump.

It goes to ``dumps`` in the directory of the watch, for ``latecomer explain``: with the ranks of the
groups, which Gloo's recorder does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from latecomer.runtime.telemetry.files import DUMPS
from latecomer.runtime.telemetry.members import with_members
from latecomer.runtime.telemetry.records import Members
from latecomer.runtime.torch_versions import flight_dump


def write_dump(directory: Path, rank: int, groups: Mapping[str, Members]) -> Path:
    """Write it, in place of an earlier one; OSError."""
    dumped, suffix = flight_dump()
    if suffix == ".json":
        ranks = {name: members.ranks for name, members in groups.items()}
        found = msgspec.json.decode(dumped, type=dict[str, object])
        dumped = msgspec.json.encode(with_members(found, ranks))
    place = directory / DUMPS
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"rank_{rank}{suffix}"
    new = path.with_suffix(".new")
    new.write_bytes(dumped)
    new.replace(path)
    return path
