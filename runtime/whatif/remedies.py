"""What would help a job more than any all-reduce, from who comes last and how often.

A remedy is counted in full: the rank as fast as the others, the work spread evenly. So each is at
most what it says. None of them is by latecomer.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.runtime.whatif.operations import Recording, covered_s

OFTEN = 0.5  # of the operations: who is last in more of them is the straggler
WORTH_SAYING = 0.01  # of a step


@dataclass(frozen=True)
class Remedy:
    """Something to do, and the seconds of a step that it saves at most."""

    text: str
    saves_s: float


def remedies(recording: Recording) -> list[Remedy]:
    """The largest first; only those that save a hundredth of a step."""
    found = []
    rank, share = recording.often_last
    if share > OFTEN:
        saves_s = _after_others_s(recording, rank)
        text = f"mend or replace rank {rank}, which is last in {share:.0%} of them"
        found.append(Remedy(text, saves_s))
    found.append(Remedy("spread the work evenly over the ranks", recording.wait_s))
    found = [each for each in found if each.saves_s > WORTH_SAYING * recording.step_s]
    return sorted(found, key=lambda remedy: -remedy.saves_s)


def _after_others_s(recording: Recording, rank: int) -> float:
    """How long in a step operations wait for this rank alone."""
    alone = [
        (
            operation.first_s + operation.last_s - operation.gap_s,
            operation.first_s + operation.last_s,
        )
        for operation in recording.operations
        if operation.last_rank == rank
    ]
    return covered_s(alone) / recording.steps
