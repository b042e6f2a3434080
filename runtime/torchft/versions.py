"""What is taken of torchft that torchft does not promise, and what differs between its versions.

| what is private or differs | 0.2.0 | nightly of 2026-10 | why it is needed |
|---|---|---|---|
| ``Manager._pg``: :func:`process_group_of` | there | there | the hook submits to it itself |
| ``Manager.report_error``: :func:`tell_of_errors` | there | there | it tells nobody |
| ``ProcessGroupWrapper._create_pg`` | ``configure`` | ``reconfigure`` | both call it |
| ``ProcessGroupWrapper._wrap_work`` | there | there | native collectives are watched |
| ``ProcessGroupWrapper._replica_id`` | ``configure`` | ``set_rank_info`` | stragglers have names |
"""

from __future__ import annotations

import functools
from typing import Any, Protocol, runtime_checkable

from torchft import Manager


@runtime_checkable
class ToldOfErrors(Protocol):
    """A process group that wants to know of errors that are reported to its Manager."""

    def error_reported(self, error: Exception) -> None:
        """``report_error`` has been called; any thread."""


def process_group_of(manager: Any) -> Any:
    """What a Manager reduces over."""
    return manager._pg


def tell_of_errors() -> None:
    """Let every Manager tell its process group of an error as soon as it is reported.

    torchft keeps it to itself until the step's end, and the other replicas wait meanwhile: so its
    method is replaced by one that looks at the process group as well. Done once.
    """
    original = Manager.report_error
    if hasattr(original, "__wrapped_by_latecomer__"):
        return

    @functools.wraps(original)
    def report_error(self: Any, e: Exception) -> None:
        original(self, e)
        group = process_group_of(self)
        if isinstance(group, ToldOfErrors):
            group.error_reported(e)

    report_error.__wrapped_by_latecomer__ = True  # type: ignore[attr-defined]
    Manager.report_error = report_error
