"""What must hold after every event of the shipped code: it is looked at while it runs.

After each turn of a data loop (or, if it has many transfers, after some): of every transfer no more
has moved than there is credit for, and no more credit than bytes; nothing is sent before it is
there, and nothing written where something has still to be read.

An operation is settled once, and its tensor does not change any more, unless who owns it takes it
for another operation. All ranks, those that die later among them, are told the same decision. What
a clock says about the reference's is true within the uncertainty that it claims.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from latecomer.runtime.executor.tcp.loop import EventLoop
from latecomer.runtime.executor.tcp.transfer import TransferState
from latecomer.runtime.network.clock import Aligned
from latecomer.runtime.policy.agent import Decided
from latecomer.runtime.policy.control_plane import ControlPlane
from latecomer.runtime.policy.coordinator import Fault
from latecomer.runtime.policy.messages import Decision
from latecomer.runtime.samebits.travelling import Spare, Travelling
from latecomer.runtime.simulation.job import Job
from latecomer.runtime.simulation.world import STEP_S
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import LatecomerError

MOST_PROBLEMS = 10  # more say nothing new
TRANSFERS = 50  # a loop with more is looked at less often, else nothing else would be done
BETWEEN_READINGS_S = 10 * STEP_S  # two clocks are not read at the very same moment


class Watched:
    """A job that is looked at; ``problems`` are what does not hold, in order.

    Args:
        clocks_are_good: whether the ranks' clocks drift by no more than the code allows for.
    """

    def __init__(self, job: Job, *, clocks_are_good: bool) -> None:
        self.problems: list[str] = []
        self.turns = 0
        self.decisions = 0
        self.clocks = 0
        self._job = job
        self._clocks_are_good = clocks_are_good
        self._decisions: dict[int, tuple[int, Decision]] = {}  # by operation: who first heard it
        self._settled: list[tuple[int, CollectiveWork, torch.Tensor]] = []  # by rank, with a copy

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look at what runs in the block."""
        watched = self
        turn = EventLoop._turn
        settle = CollectiveWork.settle
        handle_event = ControlPlane.handle_event
        take = Spare.take

        def watched_turn(loop: EventLoop) -> None:
            turn(loop)
            watched._after_turn(loop)

        def watched_settle(work: CollectiveWork, error: LatecomerError | None = None) -> None:
            watched._before_settling(work)
            settle(work, error)

        def watched_event(plane: ControlPlane, event: Aligned | Decided | Fault) -> None:
            if isinstance(event, Decided):
                watched._on_decision(plane, event)
            handle_event(plane, event)

        def watched_take(spare: Spare, *kind: Any) -> Travelling:
            taken = take(spare, *kind)
            watched._before_reuse(taken.flat)
            return taken

        with (
            mock.patch.object(Spare, "take", watched_take),
            mock.patch.object(EventLoop, "_turn", watched_turn),
            mock.patch.object(CollectiveWork, "settle", watched_settle),
            mock.patch.object(ControlPlane, "handle_event", watched_event),
        ):
            yield

    def look_at_tensors(self) -> None:
        """At the end: what was settled is as it was then."""
        for rank, work, copy in self._settled:
            self._look_at_tensor(rank, work, copy)

    def _look_at_tensor(self, rank: int, work: CollectiveWork, copy: torch.Tensor) -> None:
        if not torch.equal(work.tensor, copy):
            how = "failed" if work.error is not None else "was done"
            self._problem(rank, f"the tensor of operation {work.number} changed after it {how}")

    def _before_reuse(self, tensor: torch.Tensor) -> None:
        """A tensor is taken for another operation: look at it for the last time."""
        of_others = []
        for rank, work, copy in self._settled:
            if work.tensor.data_ptr() == tensor.data_ptr():
                self._look_at_tensor(rank, work, copy)
            else:
                of_others.append((rank, work, copy))
        self._settled = of_others

    def _after_turn(self, loop: EventLoop) -> None:
        self.turns += 1
        states = list(loop._states.values())
        transfers = sum(len(state.size) for state in states)
        if self.turns % (1 + transfers // TRANSFERS):
            return
        for state in states:
            wrong = wrong_transfer(state)
            if wrong:
                self._problem(self._job.world.rank, wrong)

    def _before_settling(self, work: CollectiveWork) -> None:
        rank = self._job.world.rank
        if work.is_done:
            self._problem(rank, f"operation {work.number} is settled twice")
        self._settled.append((rank, work, work.tensor.clone()))

    def _on_decision(self, plane: ControlPlane, event: Decided) -> None:
        rank = self._job.world.rank
        self.decisions += 1
        first, decision = self._decisions.setdefault(event.operation, (rank, event.decision))
        if (decision.candidate, decision.late) != (event.decision.candidate, event.decision.late):
            text = f"operation {event.operation} is decided as {event.decision}"
            self._problem(rank, f"{text}, for rank {first} as {decision}")
        if self._clocks_are_good:
            self._look_at_clock(rank, plane)

    def _look_at_clock(self, rank: int, plane: ControlPlane) -> None:
        alignment = plane._agent.clock.alignment(self._job.clock_s(rank))
        if alignment.uncertainty_s == float("inf"):
            return  # it claims nothing
        self.clocks += 1
        true_s = self._job.clock_s(0) - self._job.clock_s(rank)
        off_s = abs(alignment.offset_s - true_s)
        if off_s > alignment.uncertainty_s + BETWEEN_READINGS_S:
            claim = f"within {alignment.uncertainty_s:.6f} s"
            self._problem(rank, f"its clock is off by {off_s:.6f} s, and claims {claim}")

    def _problem(self, rank: int, text: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            at_s = self._job.elapsed_s()
            self.problems.append(f"rank {rank} at {at_s:.6f} s: {text}")


def wrong_transfer(state: TransferState) -> str:
    """What does not hold of an operation under way, as far as one rank sees it; empty: all does."""
    counts: Any = zip(
        state.program.ends, state.arrived, state.done, state.credit, state.size, strict=True
    )
    for i, (end, arrived, done, credit, size) in enumerate(counts):
        moved = done if end.send else max(arrived, done)
        if not 0 <= moved <= credit <= size:
            text = f"{moved} bytes have moved, {credit} may, of {size}"
            return f"operation {state.number}, transfer {end.index}: {text}"
        if done > state.limit(i):
            way = "sent" if end.send else "written"
            text = f"{done} bytes are {way}, {state.limit(i)} may be"
            return f"operation {state.number}, transfer {end.index}: {text}"
    return ""
