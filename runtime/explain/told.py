"""What ranks have told in a watch of torch's own groups, and how the job stood at the end of that.

A rank's files tell what it did up to a second before they end, or up to the very end if its watch
was over in order. They do not say how a reduce-scatter ended, or what a rank entered in a new group
before that was seen. Where ranks gave up waiting and ended, what matters is how the job stood then:
who comes later finds nobody there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from latecomer.runtime.explain.records import Noted, Record
from latecomer.runtime.host import host
from latecomer.runtime.telemetry.files import State
from latecomer.runtime.telemetry.follower import Story
from latecomer.runtime.telemetry.records import NOT_COUNTED, UNSEEN_ENDS, Collective

STANDS_S = 10.0  # so long a rank has entered nothing, or told nothing, before it hangs
MOMENT_S = 1.5  # a rank tells at most so late what it does: two looks, on a busy machine
CUT_S = 5.0  # who tells nothing for so long is gone or stopped: else it tells every two seconds

Place = tuple[str, int, str, int]
"""An operation: group and number, of a send or a receive also which of both, and the other rank."""


class Told:
    """What one rank has told: the operations that it ``entered``, in order."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.state = story.state or _state_at_its_beginning(story)
        ended = {_place(each) for each in story.collectives}
        open_now = [each for each in self.state.open if _place(each) not in ended]
        self._open = {_place(each) for each in open_now}
        in_order = sorted((*story.collectives, *open_now), key=lambda each: each.arrived_s)

        self.may_be_between_two = any(each.number == NOT_COUNTED for each in in_order)
        at_the_end = _failed_at_the_end(in_order)
        self.entered = [
            each
            for each in in_order
            if each.number != NOT_COUNTED and (not each.failed or _place(each) in at_the_end)
        ]

    def is_open(self, collective: Collective) -> bool:
        """Whether the rank is in it as far as it has told, or has left it by an error at last."""
        is_told = collective.kind not in UNSEEN_ENDS
        return collective.failed or (is_told and _place(collective) in self._open)

    @property
    def entered_s(self) -> float:
        """When it last entered anything."""
        return self.entered[-1].arrived_s if self.entered else -math.inf

    @property
    def has_failed(self) -> bool:
        """Whether the last that it entered has failed."""
        return bool(self.entered) and self.entered[-1].failed

    @property
    def waited_s(self) -> float:
        """How long it had entered nothing, when it last told, while it was or may be in something.

        An operation that is open while others are entered, as a receive that is posted early, is
        nothing in which its rank stands.
        """
        if not self.entered:
            return 0.0
        may_be_in_one = self.entered[-1].kind in UNSEEN_ENDS or any(map(self.is_open, self.entered))
        return self.state.clock_s - self.entered_s if may_be_in_one else 0.0

    @property
    def gave_up_s(self) -> float:
        """When it ended by an error after it had waited; infinite if it has not."""
        gave_up = self.state.over and self.state.error and self.waited_s > MOMENT_S
        return self.state.clock_s if gave_up else math.inf


class ToldJob:
    """All ranks, by what each has told."""

    def __init__(self, told: Mapping[int, Told]) -> None:
        self._told = told
        everybody = told.values()
        self._newest_unix_s = max(each.state.unix_s for each in everybody)
        self._newest_clock_s = max(each.state.clock_s for each in everybody)
        self._newest_entered_s = max(each.entered_s for each in everybody)
        are_all_over = all(each.state.over for each in everybody)
        self._is_gone = are_all_over or host.unix_time() - self._newest_unix_s > STANDS_S
        self._given_up_s = min(each.gave_up_s for each in everybody)
        self._too_late = {
            _place(collective)
            for each in everybody
            for collective in each.entered
            if collective.arrived_s > self._given_up_s
        }

    def stands(self) -> bool:
        """Whether ranks have been in one operation for long, or were when the job ended.

        A job that was ended while it ran was in some operation at each rank, and in another one at
        each moment of the last: it did not stand.
        """
        everybody = self._told.values()
        if all(each.state.over and not each.state.error for each in everybody):
            return any(each.has_failed for each in everybody)
        if self._is_gone and any(each.has_failed for each in everybody):
            return True
        longest_s = MOMENT_S if self._is_gone else STANDS_S
        return any(each.waited_s > longest_s for each in everybody)

    def record(self, rank: int) -> Record:
        """One rank's, as if it were of a dump."""
        told = self._told[rank]
        groups = told.story.groups
        record = Record(
            configured={name: group.ranks for name, group in groups.items()},
            groups={(group.name, group.description): 0 for group in groups.values()},
            is_watched=True,
            is_cut=self._is_cut(told),
            remark=self._remark(told),
        )
        first_number = 0 if _is_whole(told) else 1
        for collective in told.entered:
            if collective.arrived_s > self._given_up_s:
                continue
            if collective.is_between_two and collective.peer < 0:
                continue  # a receive from anybody: nobody can be named
            record.noted.append(self._noted(first_number + len(record.noted), collective, told))
        return record

    def _noted(self, number: int, collective: Collective, told: Told) -> Noted:
        peer = None
        if collective.is_between_two:
            members = told.story.groups[collective.group].ranks
            peer = members.index(collective.peer)
        was_through = not told.is_open(collective) and _place(collective) not in self._too_late
        return Noted(
            record=number,
            group=collective.group,
            sequence=collective.number,
            kind=collective.kind,
            peer=peer,
            signature=collective.signature,
            is_done=was_through,
            created_ns=round(collective.arrived_s * 1e9),
            where="",
            is_end_told=collective.kind not in UNSEEN_ENDS,
        )

    def _is_cut(self, told: Told) -> bool:
        """Whether a rank may have entered something at the end of which its files do not tell.

        One that is gone may, unless it has told of nothing new since the last of all came to where
        that is; and one that has sent or received in a group before this was watched.
        """
        if told.may_be_between_two:
            return True
        is_quiet = told.state.clock_s - self._newest_entered_s > MOMENT_S
        return self._has_vanished(told) and not is_quiet

    def _has_vanished(self, told: Told) -> bool:
        """Whether a rank tells nothing any more, while others did or came to an end in order."""
        silent_s = self._silent_s(told)
        if told.state.over or silent_s <= 0:
            return False
        some_are_over = any(each.state.over for each in self._told.values())
        return silent_s > CUT_S or (self._is_gone and some_are_over)

    def _silent_s(self, told: Told) -> float:
        """How long others have told more, by the hosts' clocks and by the watch's: the less."""
        by_hosts_s = self._newest_unix_s - told.state.unix_s
        by_watch_s = self._newest_clock_s - told.state.clock_s
        return min(by_hosts_s, by_watch_s)

    def _remark(self, told: Told) -> str:
        """How what a rank has told ends, for people; empty where that is nothing to tell of."""
        late = (each.arrived_s - self._given_up_s for each in told.entered)
        late_s = next((each for each in late if each > 0), None)
        if late_s is not None:
            return f"it came {late_s:.1f} s after another rank had given up"
        if told.state.error:
            return f"it was ended by {told.state.error}"
        if told.may_be_between_two:
            return "it may be in a send or a receive of a new group, which is not seen"
        silent_s = self._silent_s(told)
        if not (self._is_cut(told) or silent_s > CUT_S):
            return ""
        origin = told.story.origin
        return (
            f"its files end {silent_s:.1f} s before those of others, and not in order: "
            f"process {origin.process} on {origin.host} is gone or stopped"
        )


def _is_whole(told: Told) -> bool:
    """Whether a rank has told of each collective of each group, from the first on."""
    first: dict[str, int] = {}
    for collective in told.story.collectives:
        if not collective.is_between_two:
            number = first.get(collective.group, collective.number)
            first[collective.group] = min(number, collective.number)
    return not any(first.values())


def _state_at_its_beginning(story: Story) -> State:
    """Of a rank that has told none."""
    return State(
        unix_s=story.origin.began_unix_s,
        clock_s=story.origin.clock_s,
        uncertainty_s=0.0,
        entered=0,
        done=0,
        messages=0,
        unwritten=0,
    )


def _failed_at_the_end(in_order: Sequence[Collective]) -> set[Place]:
    """What has failed and was followed by nothing else: there its rank has come to an end.

    A rank that went on after an error, as one may that torch has refused something, stands
    elsewhere, and others may never have entered what it was refused.
    """
    at_the_end = itertools.takewhile(lambda each: each.failed, reversed(in_order))
    return {_place(each) for each in at_the_end}


def _place(collective: Collective) -> Place:
    kind = collective.kind if collective.is_between_two else ""
    return (collective.group, collective.number, kind, collective.peer)
