"""How ranks change from one plan to the next at the same operation, over messages that get lost.

Source: two-phase commit (Gray, 1978). Deviation: only the coordinator of the plan in force
proposes, one plan at a time, and the plan holds from an operation that every rank has yet to reach:

    propose(plan)    to all; a rank that has not bound operation ``plan.first`` yet accepts, and
                     from then on binds no operation >= first until it knows the outcome
    outcome          the plan holds when *all* have accepted; a refusal, a rank that asks because it
                     is already there, or too long a silence make it void
    ask              whoever stands at ``first`` and has not heard asks, again and again

To *bind* an operation is to look up its plan. Invariant: all ranks bind an operation to the same
plan. For a plan holds only if all have accepted, so none of them has bound or binds an operation
from its first on to the one before; and it is void only if the coordinator, who alone decides,
never counts it as accepted. Messages may be lost, doubled, delayed and reordered at will: an answer
belongs to a version, and no version is proposed twice. If the coordinator dies, operations below
``first`` go on; what comes after waits for it, and the job's time-out names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from runtime.policy.decision import Epoch

RETRY_S = 0.05
PATIENCE_S = 1.0
"""A plan that not all have accepted after so long is void: nobody waits, but it stays as it is."""
LEAST_MARGIN, MOST_MARGIN = 4, 4096
"""How many operations ahead a plan begins: doubled when a rank turns out to be further."""


class Propose(msgspec.Struct, frozen=True, array_like=True, tag="propose"):
    """A plan, to be accepted or refused."""

    plan: Epoch


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Accepts the version, or refuses it because ``bound`` operations are bound already."""

    version: int
    accepts: bool
    bound: int


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """What became of this version?"""

    version: int


class Outcome(msgspec.Struct, frozen=True, array_like=True, tag="outcome"):
    """Whether the version holds."""

    version: int
    holds: bool


Message = Propose | Answer | Ask | Outcome
Send = tuple[int, Message]


@dataclass
class _Proposal:
    plan: Epoch
    accepted: set[int]
    began_s: float
    again_s: float = field(default=0.0)


class EpochCommit:
    """One rank's part.

    Args:
        rank, size: place in the group.
        coordinator: of the first plan, the same on all ranks.
    """

    def __init__(self, rank: int, size: int, coordinator: int) -> None:
        self.rank, self.size = rank, size
        self._plans = [Epoch(0, 0, coordinator)]  # those that hold, by first operation
        self._bound = 0  # operations below are bound
        self._seen = 0  # the highest version heard of
        self._accepted: Epoch | None = None  # outcome unknown
        self._asked_s = float("-inf")
        self._stuck = False  # an operation waits for that outcome
        self._proposal: _Proposal | None = None
        self._outcomes: dict[int, bool] = {}  # of own proposals
        self._margin = LEAST_MARGIN

    @property
    def latest(self) -> Epoch:
        """The last plan that is known to hold."""
        return self._plans[-1]

    @property
    def leads(self) -> bool:
        """Whether this rank may propose now."""
        settled = self._proposal is None and self._accepted is None
        return settled and self.latest.coordinator == self.rank

    @property
    def stuck_on(self) -> int | None:
        """The rank whose word an operation here waits for, if one does."""
        waits = self._stuck and self._accepted is not None
        return self.latest.coordinator if waits else None

    def plan(self, operation: int) -> Epoch | None:
        """Bind ``operation``; ``None`` while the outcome that decides its plan is unknown."""
        if self._accepted is not None and operation >= self._accepted.first:
            self._stuck = True
            return None
        self._bound = max(self._bound, operation + 1)
        return next(plan for plan in reversed(self._plans) if plan.first <= operation)

    def propose(
        self,
        now_s: float,
        coordinator: int,
        late: tuple[int, ...],
        delay_s: float,
        reason: str,
        *,
        quiet: bool = False,
    ) -> list[Send]:
        """Begin to change over; only where :attr:`leads`."""
        assert self.leads
        first = max(self._bound, self.latest.first) + self._margin
        self._seen += 1
        plan = Epoch(self._seen, first, coordinator, late, delay_s, reason, quiet)
        self._accepted = plan
        self._proposal = _Proposal(plan, {self.rank}, now_s)
        return self.tick(now_s)

    def receive(self, sender: int, message: Message) -> list[Send]:
        """Take a message; what to send in answer."""
        if isinstance(message, Propose):
            return self._proposed(sender, message.plan)
        if isinstance(message, Answer):
            return self._answered(sender, message)
        if isinstance(message, Ask):
            return self._asked(sender, message.version)
        self._settled(message.version, message.holds)
        return []

    def tick(self, now_s: float) -> list[Send]:
        """What is to be said again by now."""
        proposal = self._proposal
        if proposal is not None:
            if self._stuck or now_s >= proposal.began_s + PATIENCE_S:
                return self._decide(False)
            if now_s < proposal.again_s:
                return []
            proposal.again_s = now_s + RETRY_S
            others = set(range(self.size)) - proposal.accepted
            return [(peer, Propose(proposal.plan)) for peer in sorted(others)]
        if self._stuck and self._accepted is not None and now_s >= self._asked_s + RETRY_S:
            self._asked_s = now_s
            return [(self.latest.coordinator, Ask(self._accepted.version))]
        return []

    @property
    def wake_s(self) -> float:
        """When to tick next."""
        if self._proposal is not None:
            return float("-inf") if self._stuck else self._proposal.again_s
        return self._asked_s + RETRY_S if self._stuck and self._accepted else float("inf")

    def _proposed(self, sender: int, plan: Epoch) -> list[Send]:
        if self._accepted is not None and plan.version == self._accepted.version:
            return [(sender, Answer(plan.version, True, self._bound))]
        if plan.version <= self._seen:
            return []  # an old copy: settled or refused long ago
        if self._accepted is not None:
            # first the one before, from whoever proposed it; this one will come again
            return [(self.latest.coordinator, Ask(self._accepted.version))]
        if plan.first < self._bound:
            return [(sender, Answer(plan.version, False, self._bound))]
        self._seen = plan.version
        self._accepted, self._stuck = plan, False
        return [(sender, Answer(plan.version, True, self._bound))]

    def _answered(self, sender: int, answer: Answer) -> list[Send]:
        proposal = self._proposal
        if proposal is None or answer.version != proposal.plan.version:
            outcome = self._outcomes.get(answer.version)
            return [] if outcome is None else [(sender, Outcome(answer.version, outcome))]
        if not answer.accepts:
            self._margin = min(MOST_MARGIN, 2 * self._margin)
            return self._decide(False)
        proposal.accepted.add(sender)
        return self._decide(True) if len(proposal.accepted) == self.size else []

    def _asked(self, sender: int, version: int) -> list[Send]:
        proposal = self._proposal
        if proposal is not None and version == proposal.plan.version:
            self._margin = min(MOST_MARGIN, 2 * self._margin)
            return self._decide(False)  # it stands there already, so this plan came too late
        outcome = self._outcomes.get(version)
        return [] if outcome is None else [(sender, Outcome(version, outcome))]

    def _decide(self, holds: bool) -> list[Send]:
        assert self._proposal is not None
        version = self._proposal.plan.version
        self._proposal = None
        self._outcomes[version] = holds
        self._settled(version, holds)
        others = [peer for peer in range(self.size) if peer != self.rank]
        return [(peer, Outcome(version, holds)) for peer in others]

    def _settled(self, version: int, holds: bool) -> None:
        if self._accepted is None or self._accepted.version != version:
            return
        if holds:
            self._plans.append(self._accepted)
        self._accepted, self._stuck = None, False
