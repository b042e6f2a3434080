"""What an option adds to the report on a schedule."""

from __future__ import annotations

from typing import Any

import msgspec

from latecomer.verify.core.verdict import Verdict


class Addition(msgspec.Struct, frozen=True):
    """Lines for people, an object for machines (None: not examined), and a verdict."""

    text: str
    json: dict[str, Any] | None
    verdict: Verdict
