"""The recorder of what runs natively: every collective of this rank, in every group of torch's own.

    hooks (any thread) ── Entry ──> open ── its end ──> collectives, and operations of all ranks

The collectives of the group of all ranks are remembered as operations, too, so that whatever shows
operations shows them. Ranks align their clocks and compare what they enter by datagrams of the
watch's own; training waits for neither.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch.distributed as dist

from latecomer.runtime.host import host
from latecomer.runtime.network.aligned_clock import AlignedClock
from latecomer.runtime.network.clock import Alignment
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.protocol import ProtocolRunner
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.telemetry.live import Periodic
from latecomer.runtime.telemetry.native.agreement import Agreement, Claim, Claims, Disagreement
from latecomer.runtime.telemetry.native.hooks import Entry, GroupHooks
from latecomer.runtime.telemetry.native.overdue import write_dump
from latecomer.runtime.telemetry.rank_names import names
from latecomer.runtime.telemetry.recorder import KEPT, Event, Feed, OperationRecorder
from latecomer.runtime.telemetry.records import (
    NATIVE,
    Collective,
    Members,
    Rank,
    Record,
    UbtStep,
)
from latecomer.runtime.torch_versions import PrefixStore, store_of

ALIGN_S = 2.0  # how long the beginning waits for aligned clocks
OPEN_SHOWN = 16  # of the operations that are open, the oldest
DEFAULT_DESCRIPTION = "default_pg"  # how torch describes the group of all ranks

logger = logging.getLogger("latecomer")


class NativeRecorder(OperationRecorder):
    """One rank's (collective); it watches from :meth:`begin` to :meth:`close`.

    Args:
        number: of the watch, the same on all ranks.
        overdue_s: after so long in a collective, or without a new one, a dump is written.
        directory: under which; None: nowhere.

    RankFailure is raised for ranks that did not come within ``wait_s``.
    """

    def __init__(
        self, number: int, wait_s: float, overdue_s: float, directory: Path | None
    ) -> None:
        rank = dist.get_rank()
        store = PrefixStore(f"latecomer/native/{number}", store_of(None))
        group = StoreExchange(store, rank, dist.get_world_size(), wait_s)
        self._channel = ControlChannel(group.under("datagrams"))
        self._clock = AlignedClock(self._channel)
        self._agreement = _Agreement(self, Agreement(rank), self._channel)
        self._alignment = Alignment(0.0, math.inf).finite
        self._overdue_s = overdue_s
        self._directory = directory
        self._open: dict[int, Entry] = {}  # by id(): the very same object comes back at its end
        self._unclaimed: deque[Entry] = deque(maxlen=KEPT)  # until the next look
        self._ended: deque[tuple[Entry, bool]] = deque(maxlen=KEPT)  # too
        self._collectives: deque[Collective] = deque(maxlen=KEPT)
        self._entered = 0  # collectives of the group of all ranks
        self._kept = 0  # of all groups
        self._newest_s = math.inf  # when this rank last entered anything
        self._told_of: Entry | float = math.inf
        self.disagreements: list[str] = []
        self._hooks = GroupHooks(self._enter, self._end)
        super().__init__(group, lambda: self._alignment, lambda: self._entered)
        self._periodic = Periodic(
            "latecomer-native", {f"rank {rank}: watch of native collectives": self._look}
        )

    def begin(self, rounds: range) -> None:
        """Watch from now on; rounds are not seen."""
        super().begin(rounds)
        self._clock.wait(ALIGN_S)
        self._align()
        self._hooks.begin()
        self._periodic.start()

    def end(self) -> Rank:
        """What was remembered, and what is still open."""
        self._hooks.look()
        self._keep_ended()
        remembered = super().end()
        open_now = [self._collective(entry) for entry in self._all_open()]
        return msgspec.structs.replace(
            remembered,
            groups=self.groups(),
            collectives=(*self._collectives, *open_now),
            disagreements=tuple(self.disagreements),
            dropped=self._kept - len(self._collectives),
        )

    def close(self) -> None:
        """Take the hooks away, and release the socket."""
        super().close()
        self._periodic.close()
        self._hooks.end()
        self._agreement.close()
        self._clock.close()
        self._channel.close()

    def news(self, feed: Feed) -> tuple[list[Event], list[UbtStep]]:
        """What is new in a feed: all of it is of this watch."""
        return feed.take(), []

    def open_collectives(self) -> tuple[Collective, ...]:
        """The oldest of those in which this rank is now, and what it may be in unseen."""
        oldest = sorted(self._all_open(), key=lambda entry: entry.entered_s)[:OPEN_SHOWN]
        unseen = self._hooks.unseen
        if unseen is not None:
            oldest.append(unseen)
        return tuple(self._collective(entry) for entry in oldest)

    def groups(self) -> tuple[Members, ...]:
        """Those that this rank is in."""
        return tuple(self._hooks.groups.values())

    def disagree(self, text: str) -> None:
        """Ranks have entered different collectives, as this rank has seen."""
        self.disagreements.append(text)
        logger.error("rank %d: watch: %s", self.group.rank, text)

    def _all_open(self) -> list[Entry]:
        return list(self._open.values())

    def _enter(self, entry: Entry) -> None:
        self._newest_s = entry.entered_s
        if entry.group.description == DEFAULT_DESCRIPTION and not entry.is_between_two:
            self._entered += 1
        if not entry.is_between_two:
            self._unclaimed.append(entry)
        if entry.is_seen_to_end:
            self._open[id(entry)] = entry
        else:
            self._ended.append((entry, False))

    def _end(self, entry: Entry, failed: bool) -> None:
        self._open.pop(id(entry), None)
        self._ended.append((entry, failed))

    def _keep_ended(self) -> None:
        """Remember, and tell of, what has ended since the last look."""
        while self._ended:
            entry, failed = self._ended.popleft()
            self._keep(self._collective(entry, failed=failed), entry)

    def _keep(self, collective: Collective, entry: Entry) -> None:
        self._kept += 1
        self._collectives.append(collective)
        self._tell(collective)
        if entry.group.description == DEFAULT_DESCRIPTION and not entry.is_between_two:
            record = Record(
                operation=collective.number,
                rank=self.group.rank,
                arrived_s=collective.arrived_s,
                decided_s=collective.arrived_s,
                uncertainty_s=collective.uncertainty_s,
                bytes=collective.bytes,
                way=NATIVE,
                late=(),
                reason=f"it is {collective.kind} of {entry.group.backend}, and is only watched",
            )
            self.records.append(record)
            self._tell(record)

    def _collective(self, entry: Entry, *, failed: bool = False) -> Collective:
        return Collective(
            group=entry.group.name,
            number=entry.number,
            kind=entry.kind,
            peer=entry.peer,
            arrived_s=entry.entered_s + self._alignment.offset_s,
            uncertainty_s=self._alignment.uncertainty_s,
            bytes=entry.bytes,
            signature=entry.signature,
            failed=failed,
        )

    def _look(self, is_last: bool) -> None:
        self._align()
        self._hooks.look()
        self._keep_ended()
        self._claim()
        if not is_last:
            self._look_for_overdue()

    def _align(self) -> None:
        self._alignment = self._clock.alignment()

    def _claim(self) -> None:
        """Tell the others what this rank has entered since the last look."""
        entries = []
        while self._unclaimed:
            entries.append(self._unclaimed.popleft())
        self._agreement.enter(entries)

    def _look_for_overdue(self) -> None:
        """Tell once of what this rank waits for too long, and write what it has recorded of it."""
        now_s = host.monotonic()
        oldest = min(self._all_open(), key=lambda entry: entry.entered_s, default=None)
        if oldest is not None and now_s - oldest.entered_s > self._overdue_s:
            if self._told_of != oldest:
                self._told_of = oldest
                self._tell_of_overdue(oldest)
        elif now_s - self._newest_s > self._overdue_s and self._told_of != self._newest_s:
            self._told_of = self._newest_s  # on a GPU no end is seen: perhaps it waits there
            self._dump(f"it has entered nothing for {self._overdue_s:g} s")

    def _tell_of_overdue(self, entry: Entry) -> None:
        text = f"it has been in {entry.kind} {entry.number} of group {entry.group.name} "
        text += f"for more than {self._overdue_s:g} s"
        absent = self._agreement.absent(entry.group.name, entry.number)
        if entry.is_between_two:
            text += f", with rank {entry.peer}"
        elif absent:
            text += f"; not there yet: {names(absent)}"
        self._dump(text)

    def _dump(self, text: str) -> None:
        where = ""
        if self._directory is not None:
            path = write_dump(self._directory, self.group.rank, self._hooks.groups)
            where = f"; `latecomer explain {path.parent}` says why"
        logger.warning("rank %d: watch: %s%s", self.group.rank, text, where)


class _Agreement(ProtocolRunner[Claims, Disagreement]):
    """What ranks enter, compared."""

    def __init__(
        self, recorder: NativeRecorder, agreement: Agreement, channel: ControlChannel
    ) -> None:
        self._recorder = recorder
        self._of = agreement
        super().__init__(agreement, channel, "agreement", Claims)

    def handle_event(self, event: Disagreement) -> None:
        """Ranks have entered different collectives."""
        did = "; ".join(f"{names(ranks)}: {did}" for did, ranks in event.ranks_by_did.items())
        text = f"ranks entered different collectives as number {event.number} of group "
        self._recorder.disagree(f"{text}{event.group}: {did}")

    def enter(self, entries: Sequence[Entry]) -> None:
        """This rank has entered collectives."""

        def act(now_s: float) -> None:
            for entry in entries:
                did = " ".join(map(str, entry.signature))
                claim = Claim(entry.group.name, entry.number, did)
                self._of.enter(claim, entry.group.ranks, now_s)

        self.run(act)

    def absent(self, group: str, number: int) -> tuple[int, ...] | None:
        """See :meth:`Agreement.absent`."""
        return self.run(lambda now_s: self._of.absent(group, number))
