"""From a view that ends to the next one: who is in it, and whether it starts, all agree on.

    reports ──> who goes on ──> they connect ──> starts? ── yes ──> the next view
                     ^                              │
                     └──────── without the lost ─── no

Both are agreements (:mod:`latecomer.runtime.elastic.agreement`), over the control channel of the
view that ends. The second one is needed because a member may die while the others connect: some of
them are connected then, and others never will be. Only those who go on have a say in it, and in
what follows; whoever is left behind is not missing from a later quorum.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from latecomer.runtime.elastic.agreement import (
    Agreement,
    AgreementEvent,
    AgreementMessage,
    Decided,
    MustChoose,
)
from latecomer.runtime.elastic.connecting import Connected
from latecomer.runtime.elastic.view import (
    STANDING,
    START,
    VIEW,
    Standing,
    Start,
    View,
    is_member_gone,
    joint_start,
)
from latecomer.runtime.host import Empty, Queue, host
from latecomer.runtime.network.protocol import ProtocolRunner
from latecomer.runtime.policy.alone import GroupOfOne
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine
from latecomer.verify.errors import LatecomerError, RankFailure

LOOK_S = 0.05  # between two times that hosts are asked whether a silent rank's process exists

REPORTS_SHARE = 0.5  # of the time for an agreement: how long those who live are waited for

PATIENCE = 3  # times of silence until this rank asks whether the others have gone on without it

logger = logging.getLogger("latecomer")


class NoOutcome(RankFailure):
    """The others have not agreed with this rank."""


class LeftBehind(RankFailure):
    """The others go on without this replica; it may apply anew."""


@dataclass(frozen=True)
class _Ending:
    """A view that ends, and the attempt to agree on what comes next."""

    view: View
    engine: ModeEngine
    attempt: int  # from 0 on; another one where the next view does not start
    electorate: frozenset[int]  # ranks that have a say
    suspects: frozenset[int]  # ranks that were lost


class Succession:
    """One replica's way from the end of a view to the next one that starts.

    Args:
        replica: its number in the job.
        silence_s: how long the others' reports are waited for after a failure; where a view ends
            without one, only the reports of those that give no sign of life.
        join_timeout_s: how long an agreement may take; one on a start, twice as long.
        is_past: whether the others are known to be in a later view.
        has_left: whether this replica takes part no more; then it waits for nothing.
        choose: makes the next view, given the last one, its number, and the reports of those who
            go on, by rank.
        connect: connects to all its members; RankFailure: one of them is lost.
        begin: puts it in force here.
    """

    def __init__(
        self,
        replica: int,
        *,
        silence_s: float,
        join_timeout_s: float,
        is_past: Callable[[View], bool],
        has_left: Callable[[], bool],
        choose: Callable[[View, int, dict[int, Standing]], View],
        connect: Callable[[View], Connected],
        begin: Callable[[View, Connected], None],
    ) -> None:
        self._replica = replica
        self._silence_s = silence_s
        self._join_timeout_s = join_timeout_s
        self._is_past = is_past
        self._has_left = has_left
        self._choose = choose
        self._connect = connect
        self._begin = begin

    def run(
        self, view: View, engine: ModeEngine, standing: Standing, suspects: Collection[int]
    ) -> None:
        """Go from a view to the next one (blocks).

        Raises:
            LeftBehind: the others go on without this replica.
            NoOutcome: too few are left to go on, or they do not agree in time; or this replica has
                left.
        """
        failed = frozenset(suspects)
        electorate = frozenset(range(view.size))
        attempt = 0
        while True:
            ending = _Ending(view, engine, attempt, electorate, failed)
            began_s = host.monotonic()
            following = self._agreed(ending, standing)
            agreed_s = host.monotonic() - began_s
            if self._replica not in following.replicas:
                raise left_behind(view, self._replica)
            logger.info("view %d: agreed on in %.3f s", following.number, agreed_s)

            # these alone have a say from now on: whoever is left behind has nothing to do with it
            electorate = frozenset(view.rank_of(each) for each in _staying(view, following))
            ending = dataclasses.replace(ending, electorate=electorate)
            start = self._begin_after(ending, following)
            if start.is_ready:
                return
            failed |= frozenset(start.failed)
            standing = msgspec.structs.replace(standing, grows=False)
            attempt += 1

    def _agreed(self, ending: _Ending, standing: Standing) -> View:
        """The next view, on which all who go on agree."""
        view = ending.view
        number = view.number + 1 + ending.attempt  # none is given twice, whether it starts or not
        if isinstance(ending.engine, GroupOfOne):
            return self._choose(view, number, {0: standing})
        agreeing = _Agreeing(
            ending,
            f"view/{ending.attempt}",
            msgspec.json.encode(standing),
            reports_s=REPORTS_SHARE * self._join_timeout_s if standing.grows else self._silence_s,
            settle_s=self._silence_s,
        )
        if standing.grows:
            agreeing.look_who_is_silent()

        def choose(reports: Mapping[int, bytes]) -> bytes:
            standings = {rank: STANDING.decode(content) for rank, content in reports.items()}
            return msgspec.json.encode(self._choose(view, number, standings))

        # it goes on to tell the outcome until the channel is closed, when the next view has begun
        return VIEW.decode(self._wait_for_outcome(view, agreeing, choose, self._join_timeout_s))

    def _begin_after(self, ending: _Ending, following: View) -> Start:
        """Let the next view begin, unless one of those who stay is not connected."""
        connected: Connected | None = None
        own = Start(is_ready=True)
        try:
            connected = self._connect(following)
        except RankFailure as failure:
            logger.warning("view %d does not start here: %s", following.number, failure)
            lost = {following.replicas[rank] for rank in failure.ranks}
            failed = [ending.view.rank_of(each) for each in lost & set(ending.view.replicas)]
            own = Start(is_ready=False, failed=tuple(sorted(failed)))
        try:
            agreeing, start = self._start_together(ending, own)
        except LatecomerError:
            if connected is not None:
                connected.give_up(f"replica {self._replica} does not go on")
            raise
        if connected is not None and start.is_ready:
            self._begin(following, connected)
        elif connected is not None:
            connected.give_up(f"view {following.number} does not start")
        while agreeing is not None and not (agreeing.has_told or self._has_left()):
            host.sleep(LOOK_S)
        return start

    def _start_together(self, ending: _Ending, own: Start) -> tuple[_Agreeing | None, Start]:
        """Whether the view starts, on which all who stay agree."""
        if isinstance(ending.engine, GroupOfOne):
            return None, own
        # whoever is slow is waited for: it may still be connecting to one that has died
        agreeing = _Agreeing(
            dataclasses.replace(ending, suspects=frozenset()),
            f"start/{ending.attempt}",
            msgspec.json.encode(own),
            reports_s=self._join_timeout_s,
            settle_s=self._join_timeout_s,
        )

        def choose(reports: Mapping[int, bytes]) -> bytes:
            starts = {rank: START.decode(content) for rank, content in reports.items()}
            return msgspec.json.encode(joint_start(ending.electorate, starts))

        outcome = self._wait_for_outcome(ending.view, agreeing, choose, 2 * self._join_timeout_s)
        return agreeing, START.decode(outcome)

    def _wait_for_outcome(
        self,
        view: View,
        agreeing: _Agreeing,
        choose: Callable[[Mapping[int, bytes]], bytes],
        limit_s: float,
    ) -> bytes:
        began_s = host.monotonic()
        look_s = began_s + PATIENCE * self._silence_s
        give_up_s = began_s + limit_s
        while True:
            event = agreeing.next_event(LOOK_S)
            if self._has_left():
                raise NoOutcome([], f"replica {self._replica} has left")
            if isinstance(event, Decided):
                return event.outcome
            if isinstance(event, MustChoose):
                agreeing.choose(event, choose(event.reports))
            elif host.monotonic() > min(look_s, give_up_s):
                # the others may have told this rank of the outcome while it could not listen
                if self._is_past(view):
                    raise left_behind(view, self._replica)
                if host.monotonic() > give_up_s:
                    raise self._no_outcome(agreeing.silent, limit_s)
                look_s = give_up_s
            else:
                for rank in agreeing.present:
                    if is_member_gone(view, rank):
                        agreeing.prove_gone(rank)

    def _no_outcome(self, silent: list[int], limit_s: float) -> NoOutcome:
        names = ", ".join(map(str, silent))
        if silent:
            text = (
                f"rank(s) {names}: silent, and not proved dead; the others are too few to go on "
                "by themselves, since it may be the network that has failed"
            )
        else:
            text = (
                f"replica {self._replica}: the others have not agreed with it on how to go on "
                f"within {limit_s:g} s; they may have given up"
            )
        return NoOutcome(silent, text)


def left_behind(view: View, replica: int) -> LeftBehind:
    """That the others have gone on after a view without one of its replicas."""
    text = f"the others have gone on without replica {replica}, which was silent"
    return LeftBehind([view.rank_of(replica)], text)


def _staying(view: View, following: View) -> list[int]:
    """The replicas of a view that are in the next one, too."""
    return [replica for replica in view.replicas if replica in following.replicas]


class _Agreeing(ProtocolRunner[AgreementMessage, AgreementEvent]):
    """An agreement at work, over the control channel of the view that ends."""

    def __init__(
        self, ending: _Ending, topic: str, content: bytes, *, reports_s: float, settle_s: float
    ) -> None:
        assert isinstance(ending.engine, AllReduceDispatcher)
        datagrams = ending.engine.executor.datagrams
        self._watchdog = ending.engine.executor.watchdog
        self._events: Queue[AgreementEvent] = host.Queue()
        self._agreement = Agreement(
            datagrams.rank,
            ending.electorate,
            content,
            suspects=ending.suspects,
            reports_s=reports_s,
            settle_s=settle_s,
            now_s=host.monotonic(),
        )
        super().__init__(self._agreement, datagrams, topic, AgreementMessage)

    def look_who_is_silent(self) -> None:
        """Ask those whose reports are waited for where they stand, and don't wait for the silent.

        The view has not failed so far, so its watchdog does that, and lets it fail.
        """
        self._watchdog.suspect(
            lambda longest_s: self.run(lambda now_s: sorted(self._agreement.awaited)),
            "a replica waits to be taken in, and not all have reported how far they are",
        )
        self._watchdog.on_failure(self._suspect)

    def _suspect(self, failure: LatecomerError) -> None:
        ranks = failure.ranks if isinstance(failure, RankFailure) else ()
        self.run(lambda now_s: self._agreement.suspect(ranks, now_s))

    @property
    def silent(self) -> list[int]:
        """See :attr:`Agreement.silent`."""
        return self.run(lambda now_s: sorted(self._agreement.silent))

    @property
    def present(self) -> list[int]:
        """See :attr:`Agreement.present`."""
        return self.run(lambda now_s: sorted(self._agreement.present))

    @property
    def has_told(self) -> bool:
        """See :attr:`Agreement.has_told`."""
        return self.run(lambda now_s: self._agreement.has_told)

    def next_event(self, limit_s: float) -> AgreementEvent | None:
        """What this rank has to do next, or the outcome; None if nothing came within the limit."""
        try:
            return self._events.get(timeout=limit_s)
        except Empty:
            return None

    def choose(self, asked: MustChoose, outcome: bytes) -> None:
        """See :meth:`Agreement.choose`."""
        self.run(lambda now_s: self._agreement.choose(asked.ballot, outcome, now_s))

    def prove_gone(self, rank: int) -> None:
        """See :meth:`Agreement.prove_gone`."""
        self.run(lambda now_s: self._agreement.prove_gone(rank, now_s))

    def handle_event(self, event: AgreementEvent) -> None:
        """Hand it to the thread that goes from one view to the next."""
        self._events.put(event)
