"""A job by the files of ``latecomer.watch``: what its ranks did, and whether they stand still.

A watch of torch's own groups knows what Gloo's recorder does not: who is in a group, sends and
receives, and whether an operation ended well. Of what runs on a GPU it does not see the end; there
the dumps that it writes decide.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from latecomer.runtime.explain.records import Noted, Record
from latecomer.runtime.explain.slow import Together
from latecomer.runtime.host import host
from latecomer.runtime.telemetry.follower import Follower, Story, kept_operations
from latecomer.runtime.telemetry.lateness import Arrival
from latecomer.runtime.telemetry.native.by_collective import joint_collectives
from latecomer.runtime.telemetry.records import Collective, Rank

STANDS_S = 10.0  # so long a rank has been in an operation, or told nothing, before it hangs
UNSEEN = "of what runs on a GPU a watch does not see the end: the dumps decide, if there are any"


@dataclass
class Watched:
    """What the files of a directory tell.

    Attributes:
        records: by rank, what it did in torch's own groups; empty if the job is not known to stand.
        together: operations to which all ranks of their groups came.
        needs_dumps: whether only dumps can tell what the job waits for, if it still does.
        newest_unix_s: when a rank last entered anything.
        notices: what to tell about the files.
    """

    records: dict[int, Record] = field(default_factory=dict)
    together: list[Together] = field(default_factory=list)
    needs_dumps: bool = False
    newest_unix_s: float = 0.0
    notices: list[str] = field(default_factory=list)


def read_watched(directory: Path) -> Watched:
    """The newest watch in a directory; FormatError if there is none."""
    follower = Follower(directory)
    follower.read()
    ranks = follower.last_ranks(kept_operations(follower.world_size))
    watched = Watched(together=_together(ranks, follower.world_size))
    stories = follower.stories
    backends = {group.backend for story in stories.values() for group in story.groups.values()}
    is_over = all(story.state is not None and story.state.over for story in stories.values())
    if any("nccl" in backend for backend in backends):
        watched.notices.append(f"{directory}: {UNSEEN}")
        watched.needs_dumps = not is_over
        watched.newest_unix_s = max(map(_newest_unix_s, stories.values()))
    elif backends and _stands(stories):
        watched.records = {rank: _record(story) for rank, story in stories.items()}
    return watched


def _together(ranks: list[Rank], world_size: int) -> list[Together]:
    """Of torch's own groups where these are watched, else of this package's all-reduces."""
    if any(rank.groups for rank in ranks):
        return [
            Together(joint.group.name, joint.kind, joint.arrivals, joint.group.description)
            for joint in joint_collectives(ranks)
        ]
    by_operation: dict[int, dict[int, Arrival]] = defaultdict(dict)
    for rank in ranks:
        for record in rank.records:
            by_operation[record.operation][rank.rank] = record
    return [
        Together("", "all_reduce", arrivals)
        for arrivals in by_operation.values()
        if len(arrivals) == world_size > 1
    ]


def _stands(stories: dict[int, Story]) -> bool:
    """Whether ranks have been in one operation for long, or the job is gone while they were."""
    states = [story.state for story in stories.values() if story.state is not None]
    if not states or all(state.over and not state.error for state in states):
        return False
    newest = max(states, key=lambda state: state.unix_s)
    if host.unix_time() - newest.unix_s > STANDS_S:
        return True
    longest_s = max(
        (newest.clock_s - each.arrived_s for story in stories.values() for each in _open(story)),
        default=0.0,
    )
    return longest_s > STANDS_S


def _newest_unix_s(story: Story) -> float:
    """When a rank last entered anything, by the clock of its host."""
    if story.state is None:
        return 0.0
    entered_s = max((each.arrived_s for each in story.collectives), default=0.0)
    return story.state.unix_s - story.state.clock_s + entered_s


def _open(story: Story) -> list[Collective]:
    """What the rank is in, as far as it has not told of the end since."""
    if story.state is None:
        return []
    ended = {_key(each) for each in story.collectives}
    return [each for each in story.state.open if _key(each) not in ended]


def _key(collective: Collective) -> tuple[str, int, str, int]:
    kind = collective.kind if collective.is_between_two else ""
    return (collective.group, collective.number, kind, collective.peer)


def _record(story: Story) -> Record:
    """One rank's, as if it were a dump's."""
    open_now = _open(story)
    still_open = {_key(each) for each in open_now}
    entered = sorted((*story.collectives, *open_now), key=lambda each: each.arrived_s)
    first: dict[str, int] = {}
    for each in entered:
        if not each.is_between_two:
            first.setdefault(each.group, each.number)
    is_whole = not any(first.values())

    record = Record(
        configured={name: group.ranks for name, group in story.groups.items()},
        groups={(group.name, group.description): 0 for group in story.groups.values()},
    )
    for number, each in enumerate(entered, 0 if is_whole else 1):
        if each.is_between_two and each.peer < 0:
            continue  # a receive from anybody: nobody can be named
        peer = None
        if each.is_between_two:
            peer = story.groups[each.group].ranks.index(each.peer)
        noted = Noted(
            record=number,
            group=each.group,
            sequence=each.number,
            kind=each.kind,
            peer=peer,
            signature=each.signature,
            is_done=_key(each) not in still_open and not each.failed,
            created_ns=round(each.arrived_s * 1e9),
            where="",
        )
        record.noted.append(noted)
    return record
