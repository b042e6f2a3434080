"""Where replicas find their group: a store that outlives them, used at the start and to come back.

Under ``view`` is the last view, written by its rank 0. A replica that finds one, or that another
process has come in its place before, applies, with a number that tells its process from those; the
group answers with the view that takes it in. Without the store a group goes on as it is, and
can't grow.
"""

from __future__ import annotations

import dataclasses

import msgspec

from latecomer.runtime.elastic.view import VIEW, Member, View, dealt
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.errors import RankFailure

PHASES = 3  # of a change: the agreement on a view, its connections, the agreement on its start


class Meeting:
    """One replica's end of it.

    Args:
        group: the store; its time-out is how long replicas wait for each other.
    """

    def __init__(self, group: StoreExchange) -> None:
        self._group = group
        # the group may be changing just now, and for each phase of that it has the time to join
        self._patient = dataclasses.replace(group, timeout_s=PHASES * group.timeout_s)
        self._replica = group.rank
        self._welcomed: set[str] = set()  # applications that were answered

    def last_view(self) -> View | None:
        """The view that was in force the last time that somebody said so; None before the first."""
        found = self._group.peek({0: "view"})
        return VIEW.decode(found[0]) if found else None

    def has_begun(self) -> bool:
        """Whether another process has come as this replica before, or a view was in force."""
        return bool(self._group.peek({0: "view", 1: f"presence/{self._replica}"}))

    def first_view(self, presence: str, microbatches: int) -> View:
        """The view of all replicas, which meet here (collective)."""
        presences = self._group.all_gather("presence", presence)
        members = tuple(Member(replica, presences[replica]) for replica in sorted(presences))
        return View(
            number=0,
            members=members,
            step=0,
            behind=(),
            newcomers=(),
            owners=dealt(microbatches, len(members)),
            store="",
        )

    def tell(self, view: View) -> None:
        """This view is in force now."""
        self._group.send("view", msgspec.json.encode(view).decode())

    def apply(self, presence: str) -> View:
        """Ask to be taken in; the view that does, or a RankFailure if none comes in time."""
        number = host.random_token(8)
        own = Member(self._replica, presence, number)
        self._group.send(f"applies/{self._replica}", msgspec.json.encode(own).decode())
        answer = self._patient.receive({0: f"welcome/{number}"})
        # what has been answered, or is given up, must not be found by who looks later
        self._group.send(f"applies/{self._replica}", "")
        if not answer:
            text = (
                f"the group has not taken replica {self._replica} in within "
                f"{self._patient.timeout_s:g} s: it may have finished, or be gone; a job that "
                "begins anew needs an empty store"
            )
            raise RankFailure([], text)
        return VIEW.decode(answer[0])

    def applicants(self, view: View) -> tuple[Member, ...]:
        """Who waits to be taken in; RankFailure: the store is gone."""
        absent = set(range(self._group.world_size)) - set(view.replicas)
        found = self._group.peek({replica: f"applies/{replica}" for replica in absent})
        members = [msgspec.json.decode(text, type=Member) for text in found.values() if text]
        return tuple(each for each in members if each.application not in self._welcomed)

    def welcome(self, view: View) -> None:
        """Tell a view's newcomers that it takes them in; each once, whatever comes of it."""
        text = msgspec.json.encode(view).decode()
        for rank in view.newcomers:
            number = view.members[rank].application
            self._welcomed.add(number)
            self._group.send(f"welcome/{number}", text)
