"""Who is in the process groups of a Flight Recorder's dump, which Gloo's recorder leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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
