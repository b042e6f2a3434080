"""Do the ranks of a group enter the same collectives? And who has not entered one?

Each rank claims what it enters by datagrams to the two lowest ranks of the group, which compare;
two, since a rank that receives other sizes than it expects may be aborted by Gloo. So what differs
is named while ranks are in it, and no rank waits for the comparison. Claims go out every
:data:`PERIOD_S`, together: one by one they would cost each collective a datagram to be read.

A rank repeats its last claim in a group for as long as it enters nothing else there, so that a
datagram that got lost leaves nobody accused for long; what was lost before is not compared. Where
claims differ, those of the other members are waited for a little, so that it is seen who deviates.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec

from latecomer.runtime.network.protocol import Protocol

PERIOD_S = 0.5
MOST_TOGETHER = 256  # claims in a datagram, each of some 50 bytes
KEPT = 1024  # collectives of a group of which claims are remembered


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The sender enters collective ``number`` of a group, which is ``did``."""

    group: str
    number: int
    did: str


class Claims(msgspec.Struct, frozen=True, array_like=True, tag="claims"):
    """Of one rank, in one datagram."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Disagreement:
    """The event that ranks entered different collectives under one number, the first of a group."""

    group: str
    number: int
    ranks_by_did: dict[str, tuple[int, ...]]


@dataclass
class _Group:
    """What a rank that compares knows of a group."""

    claims: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    last: dict[int, int] = field(default_factory=dict)  # by rank, the number that it was last in
    differs_in: int | None = None  # the first number in which claims differ
    differs_since_s: float = 0.0
    told: bool = False


class Agreement(Protocol[Claims, Disagreement]):
    """One rank's part."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self._members: dict[str, tuple[int, ...]] = {}  # of groups in which this rank has claimed
        self._groups: dict[str, _Group] = defaultdict(_Group)
        self._unsent: dict[str, list[Claim]] = defaultdict(list)  # by group
        self._last: dict[str, Claim] = {}  # by group, of this rank
        self._due_s: float | None = None

    def enter(self, claim: Claim, members: tuple[int, ...], now_s: float) -> None:
        """This rank enters a collective of a group with these ``members``."""
        self._members[claim.group] = members
        self._unsent[claim.group].append(claim)
        if self._due_s is None:
            self._due_s = now_s + PERIOD_S

    def receive_message(self, message: Claims, sender: int, now_s: float) -> None:
        """Compare what another rank enters with what others do."""
        for claim in message.claims:
            self._compare(claim, sender, now_s)

    def get_timer(self) -> float | None:
        """When claims go out."""
        return self._due_s

    def handle_timer(self, now_s: float) -> None:
        """Send them."""
        if self._due_s is None or now_s < self._due_s:
            return
        for name, group in self._groups.items():
            if group.differs_in is None or group.told:
                continue
            if now_s >= group.differs_since_s + PERIOD_S:
                self._disagree(name, group, group.differs_in)

        self._due_s = now_s + PERIOD_S
        unsent = self._unsent
        self._unsent = defaultdict(list)
        for name in self._members:
            claims = unsent[name] or [self._last[name]]
            self._last[name] = claims[-1]
            for first in range(0, len(claims), MOST_TOGETHER):
                self._tell(tuple(claims[first : first + MOST_TOGETHER]), now_s)

    def absent(self, group: str, number: int) -> tuple[int, ...] | None:
        """Members that have not claimed to be in a collective; nothing if that is not known here.

        Known is it to the ranks that compare.
        """
        if group not in self._members or self.rank not in self._comparing(group):
            return None
        last = self._groups[group].last
        return tuple(rank for rank in self._members[group] if last.get(rank, -1) < number)

    def _comparing(self, group: str) -> tuple[int, ...]:
        return tuple(sorted(self._members[group])[:2])

    def _tell(self, claims: tuple[Claim, ...], now_s: float) -> None:
        """Those that compare: in one message each."""
        message = Claims(claims)
        for rank in self._comparing(claims[0].group):
            if rank == self.rank:
                for claim in claims:
                    self._compare(claim, rank, now_s)
            else:
                self._send(rank, message)

    def _compare(self, claim: Claim, sender: int, now_s: float) -> None:
        group = self._groups[claim.group]
        group.last[sender] = max(claim.number, group.last.get(sender, -1))
        if group.told:
            return
        did = group.claims[claim.number]
        did[sender] = claim.did
        are_all_here = len(did) == len(self._members.get(claim.group, ()))
        if len(set(did.values())) > 1:
            if group.differs_in is None:
                group.differs_in = claim.number
                group.differs_since_s = now_s
            group.differs_in = min(group.differs_in, claim.number)
            if are_all_here and group.differs_in == claim.number:
                self._disagree(claim.group, group, claim.number)
        elif are_all_here:
            del group.claims[claim.number]
        elif len(group.claims) > KEPT:
            del group.claims[min(group.claims)]

    def _disagree(self, name: str, group: _Group, number: int) -> None:
        """Tell once of the group's first difference."""
        ranks_by_did: dict[str, tuple[int, ...]] = {}
        for rank, what in sorted(group.claims[number].items()):
            ranks_by_did[what] = (*ranks_by_did.get(what, ()), rank)
        self._events.append(Disagreement(name, number, ranks_by_did))
        group.told = True
        group.claims.clear()
