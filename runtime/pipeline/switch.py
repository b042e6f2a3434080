"""How all ranks change the schedule at one step boundary, agreed through a store.

Two phases (commit after a unanimous vote; Gray, 1978), tied to step numbers:

    propose   the coordinator writes the schedule and the first step it is for
    vote      a rank that has proved it, and has not yet begun that step, votes for it; one that
              can't votes against, and one that reaches the step undecided never votes for it again
    decide    the coordinator writes ``go`` when all have voted for it, else ``stay``, at the
              latest before it begins that step itself

A rank that has voted for it reads the decision before it begins that step, and waits for it there.

Invariant: every step runs by one schedule on all ranks. ``go`` means that all voted for it before
they began the step, so all of them read the decision first; without ``go`` nobody changes. Late or
lost writes cost a proposal or a wait, never that.

Finishing a step needs messages from all ranks in it, so no rank is ever a whole step ahead: a
proposal for two steps on is seen, and its votes are there, before anybody has to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

COORDINATOR = 0
GO, STAY = b"go", b"stay"


class Keys(Protocol):
    """Keys and values that all ranks see, sooner or later."""

    def put(self, key: str, value: bytes) -> None:
        """Write, once."""

    def see(self, key: str) -> bytes | None:
        """What is written, if it is seen yet."""


class Proposal(msgspec.Struct, frozen=True):
    """A schedule for all steps from ``first_step`` on.

    Attributes:
        number: proposals count from 0.
        schedule: the text of the schedule file.
    """

    number: int
    first_step: int
    schedule: bytes


class SwitchMember:
    """One rank's part.

    Args:
        keys: shared.
        rank: the own.
    """

    def __init__(self, keys: Keys, rank: int) -> None:
        self._keys, self._rank = keys, rank
        self._number = 0
        self._proposal: Proposal | None = None
        self._voted_for = False

    def notice(self, step: int) -> Proposal | None:
        """Before step ``step`` begins: a proposal that is new, to be proved and voted on."""
        if self._proposal is not None:
            return None
        text = self._keys.see(f"proposal/{self._number}")
        if text is None:
            return None
        self._proposal = msgspec.msgpack.decode(text, type=Proposal)
        self._voted_for = False
        return self._proposal if step < self._proposal.first_step else None

    def vote(self, proposal: Proposal, problem: str = "") -> None:
        """Vote on what :meth:`notice` returned, for it without a ``problem``; too late is nothing.

        Must not run at the same time as :meth:`change`.
        """
        if self._proposal is not proposal:
            return
        self._voted_for = not problem
        self._keys.put(f"vote/{proposal.number}/{self._rank}", problem.encode())

    def change(
        self, step: int, decided: Callable[[Callable[[], bytes | None]], bytes]
    ) -> Proposal | None:
        """Before step ``step`` begins: the proposal that holds from it on, if one does.

        Args:
            step: the step that is about to begin.
            decided: calls its argument until it returns a decision; has a deadline of its own.
        """
        proposal = self._proposal
        if proposal is None or step < proposal.first_step:
            return None
        decision = STAY
        if self._voted_for:
            decision = decided(lambda: self._keys.see(f"decision/{proposal.number}"))
        self._proposal = None  # from here on no vote for it
        self._number += 1
        return proposal if decision == GO else None


class SwitchCoordinator:
    """The part of the rank that proposes, beside its part as a member.

    Args:
        keys: shared.
        size: number of ranks.
    """

    def __init__(self, keys: Keys, size: int) -> None:
        self._keys, self._size = keys, size
        self._number = 0
        self._open: Proposal | None = None

    @property
    def busy(self) -> bool:
        """Whether a proposal is undecided."""
        return self._open is not None

    def propose(self, first_step: int, schedule: bytes) -> Proposal:
        """Propose a schedule; none may be undecided."""
        assert self._open is None
        self._open = Proposal(self._number, first_step, schedule)
        self._keys.put(f"proposal/{self._number}", msgspec.msgpack.encode(self._open))
        self._number += 1
        return self._open

    def decide(self, step: int) -> str | None:
        """Before step ``step`` begins, often enough: why a proposal fell, "" if it holds.

        None while there is none, or it is still open.
        """
        proposal = self._open
        if proposal is None:
            return None
        votes = {r: self._keys.see(f"vote/{proposal.number}/{r}") for r in range(self._size)}
        against = {r: vote.decode() for r, vote in votes.items() if vote}
        missing = [r for r, vote in votes.items() if vote is None]
        if missing and not against and step < proposal.first_step:
            return None
        reason = "; ".join(f"rank {r}: {text}" for r, text in against.items())
        if missing and not reason:
            reason = f"no vote yet from rank(s) {', '.join(map(str, missing))}"
        self._keys.put(f"decision/{proposal.number}", STAY if reason else GO)
        self._open = None
        return reason
