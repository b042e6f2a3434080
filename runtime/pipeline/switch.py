"""How all ranks change the schedule at one step boundary, agreed through a store.

Two phases (commit after a unanimous vote; Gray, 1978), tied to step numbers:

    propose   the coordinator writes the schedule and the first step it is for
    vote      a rank that has proved it, and has not yet begun that step, votes for it; one that
              can't votes against, and one that reaches the step undecided never votes for it again
    decide    the coordinator writes ``go`` when all have voted for it, else ``stay``, at the
              latest before it begins that step itself

A rank that has voted for it reads the decision before it begins that step, and waits for it there.

Invariant: every step runs by one schedule on all ranks. ``go`` means that all voted for it before
they began the step, so all of them read the decision first; without ``go`` no rank changes. Late or
lost writes cost a proposal or a wait, never that. No rank is ever a whole step ahead: a proposal
for two steps on is seen, and its votes are there, before anybody has to wait.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange

COORDINATOR = 0

# as they stand in the store: a decision, and a vote; a vote against is its reason
GO = "go"
STAY = "stay"
FOR = "for"


class Proposal(msgspec.Struct, frozen=True):
    """A schedule (the text of the file) for all steps from ``first_step`` on; numbered from 0."""

    number: int
    first_step: int
    schedule: str


PROPOSAL = msgspec.json.Decoder(Proposal)  # with the module: see latecomer.verify.core.format


class Switch:
    """One rank's part; that of the coordinator also proposes and decides."""

    def __init__(self, group: StoreExchange) -> None:
        self._group = group
        self._next = 0  # the number of the proposal that is open here, or comes next
        self._open: Proposal | None = None
        self._voted_for = False
        self._lock = host.Lock()  # no vote while the decision is being read
        self._proposed = 0
        self._undecided: Proposal | None = None

    def propose(self, first_step: int, schedule: str) -> Proposal:
        """Coordinator: propose a schedule; none may be undecided."""
        assert self._undecided is None
        self._undecided = proposal = Proposal(self._proposed, first_step, schedule)
        self._group.send(f"proposal/{proposal.number}", msgspec.json.encode(proposal).decode())
        self._proposed += 1
        return proposal

    def decide(self, step: int) -> str | None:
        """Coordinator, before each step begins: why a proposal fell, "" if it holds, else None."""
        proposal = self._undecided
        if proposal is None:
            return None
        ranks = range(self._group.world_size)
        votes = self._group.peek({r: f"vote/{proposal.number}/{r}" for r in ranks})
        against = [f"rank {r}: {vote}" for r, vote in sorted(votes.items()) if vote != FOR]
        missing = [str(r) for r in ranks if r not in votes]
        if missing and not against:
            if step < proposal.first_step:
                return None
            against = [f"no vote yet from rank(s) {', '.join(missing)}"]
        self._group.send(f"decision/{proposal.number}", STAY if against else GO)
        self._undecided = None
        return "; ".join(against)

    def notice(self, step: int) -> Proposal | None:
        """Before step ``step`` begins: a proposal that is new, to be proved and voted on."""
        if self._open is not None:
            return None
        texts = self._group.peek({COORDINATOR: f"proposal/{self._next}"})
        if not texts:
            return None
        self._voted_for = False
        self._open = proposal = PROPOSAL.decode(texts[COORDINATOR])
        return proposal if step < proposal.first_step else None  # too late to vote for it

    def vote(self, proposal: Proposal, problem: str = "") -> None:
        """Vote on what :meth:`notice` returned, for it without a ``problem``; any thread."""
        with self._lock:
            if self._open is proposal:
                self._voted_for = not problem
                self._group.send(f"vote/{proposal.number}/{self._group.rank}", problem or FOR)

    def change(self, step: int, pause: Callable[[Proposal], None]) -> Proposal | None:
        """Before step ``step`` begins: the proposal that holds from it on; ``pause`` may raise."""
        proposal = self._open
        if proposal is None or step < proposal.first_step:
            return None
        key = {COORDINATOR: f"decision/{proposal.number}"}
        with self._lock:
            decided = {} if self._voted_for else {COORDINATOR: STAY}
            while not (decided := decided or self._group.peek(key)):
                pause(proposal)
            self._open = None  # from here on no vote for it
        self._next += 1
        return proposal if decided[COORDINATOR] == GO else None
