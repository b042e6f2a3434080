"""Which of the operations under way goes first where several could: by when its result is needed.

What an all-gather brings the next layer computes with (FSDP), while sums of gradients are not
needed before the optimizer; and who starts a small operation (a loss, a norm, a flag) often waits
for it at once, while the others hardly notice it. Operations of one priority go in the order in
which they were submitted.

Every rank goes by this for itself. It only says which of several things that may happen happens
first, and who gets credit besides those that are due: what is due has credit whatever its priority,
so nothing here can get ranks stuck (proofs/coq/SendAhead.v).
"""

from __future__ import annotations

from enum import IntEnum

from latecomer.runtime.work import CollectiveWork

SMALL_BYTES = 64 * 1024


class Priority(IntEnum):
    """The smaller goes first."""

    SMALL = 0
    ALL_GATHER = 1
    OTHER = 2


def priority_of(work: CollectiveWork) -> Priority:
    """The same on all ranks."""
    if work.nbytes <= SMALL_BYTES:
        return Priority.SMALL
    if work.collective == "all_gather":
        return Priority.ALL_GATHER
    return Priority.OTHER
