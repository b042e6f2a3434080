"""Who is in a group of replicas, from one step to a later one; the same on all its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from latecomer.runtime.elastic.presence import is_gone
from latecomer.verify.errors import RankFailure

PROBE_S = 0.05  # how long a member's host may take to say whether its process has ended


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A replica in a view; its rank there is its place among the members."""

    replica: int  # its number in the job, which a process that takes its place has, too
    presence: str  # where its host says whether its process exists
    application: str = ""  # the number under which it has asked to be taken in


class View(msgspec.Struct, frozen=True):
    """One composition of the group."""

    number: int  # views are numbered; one that did not start leaves a gap
    members: tuple[Member, ...]  # by rank: those of the view before, then newcomers
    step: int  # the next step; all before are done
    behind: tuple[int, ...]  # ranks that lack the results of the step before it
    newcomers: tuple[int, ...]  # of these, ranks that have no parameters yet
    owners: tuple[int, ...]  # by microbatch of that next step: the rank that computes it
    store: str  # where the members meet to connect

    @property
    def replicas(self) -> tuple[int, ...]:
        """The members' replicas, by rank."""
        return tuple(member.replica for member in self.members)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.members)

    @property
    def giver(self) -> int:
        """The rank that gives those behind what they lack."""
        return next(rank for rank in range(self.size) if rank not in self.behind)

    def microbatches(self, replica: int, step: int) -> list[int]:
        """Which microbatches of a step a member computes."""
        owners = self.owners if step == self.step else dealt(len(self.owners), self.size)
        rank = self.rank_of(replica)
        return [microbatch for microbatch, owner in enumerate(owners) if owner == rank]

    def rank_of(self, replica: int) -> int:
        """Its rank; ValueError if it is no member."""
        return self.replicas.index(replica)


class Standing(msgspec.Struct, frozen=True):
    """How far a member is when its view ends: what it reports to the others."""

    done: int  # steps of which it has all results
    has_state: bool  # false: it has no parameters yet
    grows: bool  # the view ends because another replica waits; false: it has failed


class Start(msgspec.Struct, frozen=True):
    """Whether a view starts: what a member of the one before says, and what all agree on."""

    is_ready: bool  # it is connected to all members
    failed: tuple[int, ...] = ()  # ranks of the view before that were lost meanwhile


def is_member_gone(view: View, rank: int) -> bool:
    """Whether the process of a view's member is proved gone."""
    return is_gone(view.members[rank].presence, PROBE_S)


def dealt(microbatches: int, ranks: int) -> tuple[int, ...]:
    """The rank that computes each microbatch of a step in which nothing happens."""
    return tuple(microbatch * ranks // microbatches for microbatch in range(microbatches))


VIEW = msgspec.json.Decoder(View)
STANDING = msgspec.json.Decoder(Standing)
START = msgspec.json.Decoder(Start)


def next_view(
    view: View,
    standings: dict[int, Standing],
    applicants: tuple[Member, ...],
    store: str,
    *,
    number: int,
) -> View:
    """The view of those who have reported, by their ranks in the one before, and of applicants.

    Applicants come in where all members have ended the same step, since they begin with the state
    that these have then; likewise a member that has no state yet when its view ends is left out,
    and has to apply anew.

    Raises:
        RankFailure: nobody who is left has a state.
    """
    staying = [rank for rank in sorted(standings) if standings[rank].has_state]
    if not staying:
        raise RankFailure([], "none of the replicas that are left has the parameters")
    step = max(standings[rank].done for rank in staying)
    behind = [new for new, old in enumerate(staying) if standings[old].done < step]
    assert all(standings[staying[rank]].done == step - 1 for rank in behind)
    may_grow = not behind and all(standings[rank].grows for rank in staying)
    coming = applicants if may_grow else ()
    size = len(staying) + len(coming)
    newcomers = tuple(range(len(staying), size))
    owners = dealt(len(view.owners), size) if may_grow else _taken_over(view, step, staying)
    return View(
        number=number,
        members=(*(view.members[rank] for rank in staying), *coming),
        step=step,
        behind=(*behind, *newcomers),
        newcomers=newcomers,
        owners=owners,
        store=store,
    )


def _taken_over(view: View, step: int, staying: list[int]) -> tuple[int, ...]:
    """Who computes a step's microbatches: each its own; those of the lost, who has fewest."""
    rank_of = {old: new for new, old in enumerate(staying)}
    before = view.owners if step == view.step else dealt(len(view.owners), view.size)
    load = Counter(rank_of[owner] for owner in before if owner in rank_of)
    owners = []
    for owner in before:
        if owner in rank_of:
            owners.append(rank_of[owner])
        else:
            rank = min(range(len(staying)), key=lambda rank: load[rank])
            load[rank] += 1
            owners.append(rank)
    return tuple(owners)


def joint_start(staying: Collection[int], starts: Mapping[int, Start]) -> Start:
    """What follows from what each has said, by its rank: a view starts if all who stay can."""
    is_ready = all(rank in starts and starts[rank].is_ready for rank in staying)
    failed = {rank for start in starts.values() for rank in start.failed}
    failed |= set(staying) - set(starts)
    return Start(is_ready, tuple(sorted(failed)))
