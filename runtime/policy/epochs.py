"""How ranks change from one epoch to the next at the same operation, over messages that get lost.

Source: two-phase commit (Gray, 1978). Deviation: only the coordinator of the epoch in force
proposes, one epoch at a time, and it holds from an operation that every rank has yet to reach:

    propose    to all; who has not bound operation ``first`` yet accepts, and from then on binds no
               operation >= first until the outcome is known
    outcome    it holds when *all* have accepted; void by a refusal, by a question (that rank is
               there already), or by too long a silence
    ask        whoever stands at ``first`` and has not heard asks, again and again

To *bind* an operation is to look up its epoch. Invariant: all ranks bind an operation to the same
epoch. For an epoch holds only if all have accepted, so none of them has bound or binds an operation
from its first on to the one before; and it is void only if the coordinator, who alone decides,
never counts it as accepted. Messages may be lost, doubled, delayed and reordered at will: an answer
belongs to a version, and no version is proposed twice. If the coordinator dies, operations below
``first`` go on; what comes after waits for it, and the job's time-out names it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from latecomer.runtime.network.protocol import Protocol
from latecomer.runtime.policy.messages import (
    Answer,
    Ask,
    Epoch,
    EpochMessage,
    OnTime,
    Outcome,
    Propose,
)

RETRY_S = 0.05  # between two times that the same thing is sent
PATIENCE_S = 1.0  # then an epoch that not all have accepted is void: nobody waits, nothing changes
LEAST_MARGIN = 4
MOST_MARGIN = 4096
"""Operations until an epoch begins, so that no rank has come to its first one when it hears of it.
Where one has, the next epoch gets twice as many."""


@dataclass
class _Proposal:
    epoch: Epoch
    accepted: set[int]
    began_s: float
    again_s: float = 0.0


class EpochCommit(Protocol[EpochMessage, None]):
    """One rank's part.

    ``first``, ``coordinator``, ``on_time``: the first epoch's, the same on all ranks.
    """

    def __init__(
        self, rank: int, world_size: int, coordinator: int, on_time: OnTime = (), first: int = 0
    ) -> None:
        super().__init__()
        self.rank = rank
        self.world_size = world_size
        # those that hold, by first operation
        self._epochs = [Epoch(0, first, coordinator, on_time=on_time)]
        self._bound = first  # operations below are bound
        self._seen = 0  # the highest version heard of
        self._accepted: Epoch | None = None  # outcome unknown
        self._asked_s = -math.inf
        self._stuck = False  # an operation waits for that outcome
        self._proposal: _Proposal | None = None
        self._outcomes: dict[int, bool] = {}  # of own proposals
        self._margin = LEAST_MARGIN

    @property
    def latest(self) -> Epoch:
        """The last epoch that is known to hold."""
        return self._epochs[-1]

    @property
    def may_propose(self) -> bool:
        """Whether this rank coordinates, and nothing is being changed."""
        return self._accepted is None and self.latest.coordinator == self.rank

    @property
    def stuck_on(self) -> int | None:
        """The rank whose outcome an operation here waits for, if one does."""
        return self.latest.coordinator if self._stuck else None

    def bind(self, operation: int) -> Epoch | None:
        """The epoch of ``operation``; ``None`` while the outcome that decides it is unknown."""
        if self._accepted is not None and operation >= self._accepted.first:
            self._stuck = True
            return None
        self._bound = max(self._bound, operation + 1)
        return next(epoch for epoch in reversed(self._epochs) if epoch.first <= operation)

    def propose(self, epoch: Epoch, now_s: float) -> None:
        """Begin to change over, if :attr:`may_propose`; version and first are chosen here."""
        assert self.may_propose
        first = max(self._bound, self.latest.first) + self._margin
        self._seen += 1
        self._accepted = msgspec.structs.replace(epoch, version=self._seen, first=first)
        self._proposal = _Proposal(self._accepted, {self.rank}, now_s)
        self.handle_timer(now_s)

    def receive_message(self, message: EpochMessage, sender: int, now_s: float) -> None:
        """Answer a proposal or a question, count an answer, heed an outcome."""
        if isinstance(message, Propose):
            self._on_propose(message.epoch, sender)
        elif isinstance(message, Outcome):
            self._settle(message.version, message.holds)
        elif self._proposal is None or message.version != self._proposal.epoch.version:
            if (holds := self._outcomes.get(message.version)) is not None:
                self._send(sender, Outcome(message.version, holds))
        elif isinstance(message, Answer) and message.accepts:
            self._on_accept(self._proposal, sender)
        else:  # a rank is there already, so this epoch came too late
            self._margin = min(MOST_MARGIN, 2 * self._margin)
            self._decide(False)

    def get_timer(self) -> float | None:
        """When something has to be sent again, or a proposal is void."""
        if self._proposal is not None:
            # This rank stands at the first operation of its own proposal: that is void, at once.
            return -math.inf if self._stuck else self._proposal.again_s
        return self._asked_s + RETRY_S if self._stuck else None

    def handle_timer(self, now_s: float) -> None:
        """Send again what is due by now."""
        proposal = self._proposal
        if proposal is not None:
            if self._stuck or now_s >= proposal.began_s + PATIENCE_S:
                self._decide(False)
            elif now_s >= proposal.again_s:
                proposal.again_s = now_s + RETRY_S
                for peer in sorted(set(range(self.world_size)) - proposal.accepted):
                    self._send(peer, Propose(proposal.epoch))
        elif self._stuck and self._accepted is not None and now_s >= self._asked_s + RETRY_S:
            self._asked_s = now_s
            self._send(self.latest.coordinator, Ask(self._accepted.version))

    def _on_propose(self, epoch: Epoch, sender: int) -> None:
        if self._accepted is not None and epoch.version == self._accepted.version:
            self._send(sender, Answer(epoch.version, True))
        elif epoch.version <= self._seen:
            pass  # an old copy: settled or refused long ago
        elif self._accepted is not None:
            # first the one before, from whoever proposed it; this one will come again
            self._send(self.latest.coordinator, Ask(self._accepted.version))
        elif epoch.first < self._bound:
            self._send(sender, Answer(epoch.version, False))
        else:
            self._seen = epoch.version
            self._accepted = epoch
            self._send(sender, Answer(epoch.version, True))

    def _on_accept(self, proposal: _Proposal, sender: int) -> None:
        proposal.accepted.add(sender)
        if len(proposal.accepted) == self.world_size:
            self._decide(True)

    def _decide(self, holds: bool) -> None:
        assert self._proposal is not None
        version = self._proposal.epoch.version
        self._proposal = None
        self._outcomes[version] = holds
        self._settle(version, holds)
        for peer in range(self.world_size):
            if peer != self.rank:
                self._send(peer, Outcome(version, holds))

    def _settle(self, version: int, holds: bool) -> None:
        if self._accepted is not None and self._accepted.version == version:
            if holds:
                self._epochs.append(self._accepted)
            self._accepted = None
            self._stuck = False
