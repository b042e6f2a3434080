"""The survivors of a failure agree on who goes on, over messages that get lost.

Source: the single-decree synod of Lamport, "The Part-Time Parliament" (ACM TOCS 16:2, 1998, section
2), with ranks of the group as acceptors. All survivors learn the same outcome, whoever else
dies meanwhile, and a group that the network has cut in two does not go on as two.

    report     each survivor tells all others that it has given up, and what the next group must
               know of it, until the outcome is known
    prepare    the lowest survivor begins a ballot, as soon as all who are to come have reported or
               their time is over; should it die, the next one does
    promise    to heed no lower ballot; says which outcome was accepted before, if one was, and
               reports again: nobody who has promised is left out because a report was lost
    accept     the outcome of this ballot: what was accepted before, else what its owner chooses
    accepted   the outcome is decided once a quorum has
    outcome    to all, until they know

Deviations: A quorum is more than half of the acceptors, or all of them but those that are *proved
gone* (:meth:`Agreement.prove_gone`: the rank's own host says that its process does not exist any
more). So one of two goes on, too, if the other's process has died; where its whole host is silent
it does not, since it might be the network that has died.

Why two survivors never learn different outcomes: let one decide by ballot b, and another rank by
ballot c > b. If both have more than half, a rank is in both quorums. If b's quorum is all that were
not proved gone, the owner of c is in it, or was gone by then; if c's is, each survivor of b's
quorum is in it. A rank in both has accepted b before it promised c, since it refuses b afterwards;
so c's owner has heard of b's outcome, and chose it. What remains are outcomes that only the dead
have known.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from latecomer.runtime.network.protocol import Protocol

RETRY_S = 0.05  # between two times that the same thing is sent
TELLS = 20  # times that an outcome is sent to a rank that does not say that it knows it


class Ballot(NamedTuple):
    """An attempt to decide; higher ones supersede lower ones."""

    round: int
    owner: int  # the rank that has begun it


NO_BALLOT = Ballot(round=-1, owner=-1)


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    pass


class Report(_Message, frozen=True):
    """The sender goes on if it can; ``content`` is what the next group must know of it."""

    content: bytes


class Prepare(_Message, frozen=True):
    """Will you heed no lower ballot?"""

    ballot: Ballot


class Promise(_Message, frozen=True):
    """Heeds no ballot below this one; has accepted an ``outcome`` in ``accepted``, if in any.

    ``content`` is that of the sender's :class:`Report`.
    """

    ballot: Ballot
    accepted: Ballot
    outcome: bytes
    content: bytes


class Refuse(_Message, frozen=True):
    """Has promised a higher ballot."""

    promised: Ballot


class Accept(_Message, frozen=True):
    """Will you accept this as the outcome?"""

    ballot: Ballot
    outcome: bytes


class Accepted(_Message, frozen=True):
    """Has accepted the outcome of this ballot."""

    ballot: Ballot


class Outcome(_Message, frozen=True):
    """This is decided."""

    outcome: bytes


class Known(_Message, frozen=True):
    """The sender knows the outcome."""


AgreementMessage = Report | Prepare | Promise | Refuse | Accept | Accepted | Outcome | Known


@dataclass(frozen=True)
class MustChoose:
    """This rank's ballot has a quorum, and is free: the owner calls :meth:`Agreement.choose`."""

    ballot: Ballot
    reports: dict[int, bytes]  # of those who go on if they can, by rank


@dataclass(frozen=True)
class Decided:
    """All survivors go on with this outcome."""

    outcome: bytes


AgreementEvent = MustChoose | Decided


@dataclass
class _OwnBallot:
    """How far a ballot of this rank's own has come."""

    ballot: Ballot
    promises: dict[int, Promise] = field(default_factory=dict)
    outcome: bytes | None = None  # what it is to decide, once a quorum has promised
    is_asked: bool = False  # the owner has to choose that
    accepted: set[int] = field(default_factory=set)


class Agreement(Protocol[AgreementMessage, AgreementEvent]):
    """One rank's part.

    Args:
        rank: in the group that has failed.
        acceptors: the ranks that have a say, this one among them; the same for all of them.
        content: of this rank's report.
        suspects: ranks that have failed; nobody waits for their reports.
        reports_s: how long the other ranks' reports are waited for.
        settle_s: the lowest of those that have reported begins a ballot when all are there, or have
            been waited for, and each next one ``settle_s`` later.
        now_s: the time at which the group has ended here.
    """

    def __init__(
        self,
        rank: int,
        acceptors: Collection[int],
        content: bytes,
        *,
        suspects: Collection[int] = (),
        reports_s: float,
        settle_s: float,
        now_s: float,
    ) -> None:
        super().__init__()
        self.rank = rank
        self.acceptors = frozenset(acceptors)
        self.outcome: bytes | None = None  # once it is decided, and known here
        self._suspects = set(suspects)
        self._settle_s = settle_s
        self._settled_s = now_s + reports_s  # when no report is waited for any more
        self._reports = {rank: content}
        self._gone: set[int] = set()  # proved
        self._promised = NO_BALLOT  # lower ballots are refused
        self._accepted = NO_BALLOT  # the last ballot whose outcome was accepted,
        self._accepted_outcome = b""  # and that outcome
        self._own: _OwnBallot | None = None
        self._failed_ballots = 0  # of this rank's own
        self._begin_after_s = -math.inf  # no ballot of this rank's own before
        self._again_s = now_s  # when to send again what has not been answered
        self._unknowing = set(self.acceptors) - {rank}  # of the outcome
        self._tells = 0  # times that the outcome was sent to those

    @property
    def has_told(self) -> bool:
        """Whether the outcome is known to all, or was sent often enough."""
        return self.outcome is not None and not (self._unknowing and self._tells < TELLS)

    @property
    def silent(self) -> set[int]:
        """Ranks that have not reported, and are not proved gone."""
        return self.present - set(self._reports)

    @property
    def present(self) -> set[int]:
        """All other ranks that are not proved gone; one that has reported may die after it."""
        return set(self.acceptors) - {self.rank} - self._gone

    @property
    def awaited(self) -> set[int]:
        """Ranks whose reports are waited for."""
        return set() if self.outcome is not None else self.silent - self._suspects

    def suspect(self, ranks: Collection[int], now_s: float) -> None:
        """The group has failed, by these ranks as far as known: wait only a settle time more."""
        self._suspects |= set(ranks)
        self._settled_s = min(self._settled_s, now_s + self._settle_s)
        self._go_on(now_s)

    def prove_gone(self, rank: int, now_s: float) -> None:
        """The process of ``rank`` does not exist any more, and never will again.

        No silence is a proof: only what the rank's own host says.
        """
        self._gone.add(rank)
        self._reports.pop(rank, None)
        self._unknowing.discard(rank)
        if self._promised.owner == rank:
            self._begin_after_s = -math.inf  # its ballot comes to nothing, or has come to all
        self._go_on(now_s)

    def choose(self, ballot: Ballot, outcome: bytes, now_s: float) -> None:
        """The outcome of a ballot for which :class:`MustChoose` asked, unless it is over."""
        own = self._own
        if own is not None and own.ballot == ballot and own.outcome is None:
            self._propose(own, outcome, now_s)

    def receive_message(self, message: AgreementMessage, sender: int, now_s: float) -> None:
        """Take a message of another rank."""
        if isinstance(message, Known):
            self._unknowing.discard(sender)
        elif isinstance(message, Outcome):
            self._unknowing.discard(sender)
            self._send(sender, Known())
            self._learn(message.outcome, now_s)
        elif self.outcome is not None:
            self._send(sender, Outcome(self.outcome))
        elif isinstance(message, Report):
            self._reports[sender] = message.content
            self._go_on(now_s)
        elif isinstance(message, Prepare | Accept):
            self._send(sender, self._answer(message, now_s))
        elif isinstance(message, Refuse):
            self._give_way(message.promised, now_s)
        else:
            self._count(message, sender, now_s)

    def get_timer(self) -> float | None:
        """When something has to be sent again, or a ballot begins."""
        if self.outcome is not None:
            return None if self.has_told else self._again_s
        begin_s = math.inf if self._own is not None else self._begins_s()
        return min(self._again_s, begin_s)

    def handle_timer(self, now_s: float) -> None:
        """Send again what is due, and begin a ballot if it is time."""
        if now_s >= self._again_s:
            self._again_s = now_s + RETRY_S
            self._send_again()
        self._go_on(now_s)

    def _begins_s(self) -> float:
        """When this rank begins a ballot, if it hears nothing more until then."""
        before = sum(peer < self.rank for peer in self._reports)
        return max(self._settled_s + before * self._settle_s, self._begin_after_s)

    def _go_on(self, now_s: float) -> None:
        """Begin a ballot if it is time, or let the one that goes on come further."""
        if self.outcome is not None:
            return
        if not self.awaited:
            self._settled_s = min(self._settled_s, now_s)
        if self._own is None:
            if now_s >= self._begins_s():
                self._begin(now_s)
        elif self._own.outcome is None:
            self._see_promises(self._own, now_s)
        else:
            self._see_accepted(self._own, now_s)

    def _begin(self, now_s: float) -> None:
        ballot = Ballot(round=self._promised.round + 1, owner=self.rank)
        self._own = _OwnBallot(ballot)
        self._to_others(Prepare(ballot))
        promise = self._answer(Prepare(ballot), now_s)
        self._count(promise, self.rank, now_s)

    def _answer(self, message: Prepare | Accept, now_s: float) -> AgreementMessage:
        """What this rank says to a ballot, as an acceptor; a higher one ends its own."""
        ballot = message.ballot
        if ballot < self._promised:
            return Refuse(self._promised)
        self._promised = ballot
        self._give_way(ballot, now_s)
        if isinstance(message, Prepare):
            content = self._reports[self.rank]
            return Promise(ballot, self._accepted, self._accepted_outcome, content)
        self._accepted = ballot
        self._accepted_outcome = message.outcome
        return Accepted(ballot)

    def _give_way(self, higher: Ballot, now_s: float) -> None:
        """Leave the decision to a higher ballot, and begin another one only if it takes long."""
        if higher.owner == self.rank:
            return
        self._promised = max(self._promised, higher)
        if self._own is not None and self._own.ballot < higher:
            self._own = None
            self._failed_ballots += 1
        patience_s = self._settle_s * (1 + self.rank) * (1 + self._failed_ballots)
        self._begin_after_s = max(self._begin_after_s, now_s + patience_s)

    def _count(self, answer: AgreementMessage, sender: int, now_s: float) -> None:
        """An answer to this rank's own ballot, if it goes on."""
        own = self._own
        if own is None:
            return
        if isinstance(answer, Promise) and answer.ballot == own.ballot:
            own.promises[sender] = answer
            self._reports[sender] = answer.content
        elif isinstance(answer, Accepted) and answer.ballot == own.ballot:
            own.accepted.add(sender)
        self._go_on(now_s)

    def _is_quorum(self, ranks: Collection[int]) -> bool:
        is_majority = 2 * len(ranks) > len(self.acceptors)
        return is_majority or set(ranks) | self._gone >= self.acceptors

    def _see_promises(self, own: _OwnBallot, now_s: float) -> None:
        if not self._is_quorum(own.promises):
            return
        last = max(own.promises.values(), key=lambda promise: promise.accepted)
        if last.accepted > NO_BALLOT:
            self._propose(own, last.outcome, now_s)
        elif not own.is_asked:
            own.is_asked = True
            self._events.append(MustChoose(own.ballot, dict(self._reports)))

    def _propose(self, own: _OwnBallot, outcome: bytes, now_s: float) -> None:
        own.outcome = outcome
        message = Accept(own.ballot, outcome)
        self._to_others(message)
        self._count(self._answer(message, now_s), self.rank, now_s)

    def _see_accepted(self, own: _OwnBallot, now_s: float) -> None:
        if self._is_quorum(own.accepted):
            assert own.outcome is not None
            self._learn(own.outcome, now_s)

    def _learn(self, outcome: bytes, now_s: float) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self._own = None
            self._again_s = now_s
            self._events.append(Decided(outcome))

    def _send_again(self) -> None:
        if self.outcome is not None:
            if not self.has_told:
                self._tells += 1
                for peer in sorted(self._unknowing):
                    self._send(peer, Outcome(self.outcome))
            return
        self._to_others(Report(self._reports[self.rank]))
        own = self._own
        if own is None:
            return
        if own.outcome is None:
            self._to_others(Prepare(own.ballot), but=own.promises)
        else:
            self._to_others(Accept(own.ballot, own.outcome), but=own.accepted)

    def _to_others(self, message: AgreementMessage, but: Collection[int] = ()) -> None:
        for peer in sorted(self.present - set(but)):
            self._send(peer, message)
