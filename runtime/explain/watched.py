"""A job by the files of ``latecomer.watch``: what its ranks did, and whether they stand still.

A watch of torch's own groups knows what Gloo's recorder does not: who is in a group, sends and
receives, and whether an operation ended well. Of what runs on a GPU it does not see the end; there
the dumps that it writes decide.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from latecomer.runtime.explain.records import Record
from latecomer.runtime.explain.slow import Together
from latecomer.runtime.explain.told import Told, ToldJob
from latecomer.runtime.telemetry.follower import Follower, Story, kept_operations
from latecomer.runtime.telemetry.lateness import Arrival
from latecomer.runtime.telemetry.native.by_collective import joint_collectives
from latecomer.runtime.telemetry.records import Rank

UNSEEN = "of what runs on a GPU a watch does not see the end: the dumps decide, if there are any"


@dataclass
class Watched:
    """What the files of a directory tell.

    Attributes:
        records: by rank, what it did in torch's own groups; on a GPU dumps tell more.
        stands: whether the job is known to stand still, or to have stood when it ended.
        together: operations to which all ranks of their groups came.
        needs_dumps: whether only dumps can tell what the job waits for, if it still does.
        newest_unix_s: when a rank last entered anything.
        notices: what to tell about the files.
    """

    records: dict[int, Record] = field(default_factory=dict)
    stands: bool = False
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
    elif backends:
        job = ToldJob({rank: Told(story) for rank, story in stories.items()})
        watched.stands = job.stands()
        watched.records = {rank: job.record(rank) for rank in stories}
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


def _newest_unix_s(story: Story) -> float:
    """When a rank last entered anything, by the clock of its host."""
    if story.state is None:
        return 0.0
    entered_s = max((each.arrived_s for each in story.collectives), default=0.0)
    return story.state.unix_s - story.state.clock_s + entered_s
