"""A group of replicas that goes on without those that die, and takes in those that come back.

    view 0 ── a rank fails ──> agreement ──> view 1 ── a replica applies ──> agreement ──> view 2
      │                        of the survivors │                            of all          │
      └ engine 0, for 4 ranks                   └ engine 1, for 3 ranks                      └ ...

A view's engine runs its operations; when it fails, or all have seen that somebody wants to come in,
a thread of each member agrees with the others' on the next view, over the control channel of the
one that ends, makes the engine for it, and lets the members go on. No main thread takes part, so a
rank that is late, and will be for a minute, holds nobody up.

Whether that engine starts they agree on, too: one more may die while they connect, so that some
are connected and others never will be. Then they agree on another next view, over the same channel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import msgspec
import torch

from latecomer.runtime.elastic.agreement import (
    Agreement,
    AgreementEvent,
    AgreementMessage,
    Decided,
    MustChoose,
)
from latecomer.runtime.elastic.meeting import Meeting
from latecomer.runtime.elastic.presence import Presence, is_gone
from latecomer.runtime.elastic.view import (
    STANDING,
    START,
    VIEW,
    Member,
    Standing,
    Start,
    View,
    joint_start,
    next_view,
)
from latecomer.runtime.host import Empty, Queue, host
from latecomer.runtime.network.addresses import own_address
from latecomer.runtime.network.protocol import ProtocolRunner
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.alone import GroupOfOne
from latecomer.runtime.policy.cost_model import Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import LatecomerError, RankFailure

PROBE_S = 0.05  # between two times that hosts are asked whether a silent rank's process exists
APPLICATIONS = 5  # of a replica that wants to come in, if the group changes meanwhile
LOOK_S = 0.2  # between two looks for replicas that want to come in

Engine = AllReduceDispatcher | GroupOfOne

logger = logging.getLogger("latecomer")


class LeftBehind(RankFailure):
    """The others go on without this replica; it may apply anew."""


class Group:
    """One replica's membership.

    Args:
        store: where replicas find each other; nothing else uses it under the same prefix.
        replica, replicas: this one's number, and how many there are at the start.
        microbatches: in each step.
        options: of the engines' mode.
        device: of the tensors.
        timeout_s, silence_s: see :class:`latecomer.Executor`.
        join_timeout_s: how long replicas wait for each other when a view begins.
        standing: tells how far this replica is when the view of that number has ended, and no
            operation of it is under way any more. From then on that is how far it is.
        begins: is told of each view, with its engine and its store, before this replica's main
            thread may use it; on the thread that has made it. A RankFailure ends the view.

    Raises:
        RankFailure: replicas that did not come in time.
    """

    def __init__(
        self,
        store: Store,
        replica: int,
        replicas: int,
        *,
        microbatches: int,
        options: Options,
        device: torch.device,
        timeout_s: float,
        silence_s: float,
        join_timeout_s: float,
        standing: Callable[[int], Standing],
        begins: Callable[[View, Engine, StoreExchange], None],
    ) -> None:
        self.replica = replica
        self._microbatches = microbatches
        self._options = options
        self._device = device
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._join_timeout_s = join_timeout_s
        self._standing = standing
        self._begins = begins
        self._profile: Profile | None = None
        self._changed = host.Condition()  # guards what follows
        self._view: View | None = None  # in force, or None while there is none
        self._engine: Engine | None = None
        self._failure: LatecomerError | None = None  # why this replica does not go on
        self._is_closed = False
        self._applicants: tuple[Member, ...] = ()
        self._store: Store | None = None  # of the view, if this replica serves it

        exchange = StoreExchange(store, replica, replicas, join_timeout_s)
        self._meeting = Meeting(exchange)
        self._meeting_store = store
        self.address = own_address(store)
        self._presence = Presence(self.address)

    def join(self) -> View:
        """Take part from the first view, or apply to the group that there is (blocks)."""
        last = self._meeting.last_view()
        if last is None:
            first = self._meeting.first_view(self._presence.where, self._microbatches)
            store = host.prefixed("views/0", self._meeting_store)
            self._put_in_force(first, self._connect(first, store))
            return first
        return self.apply()

    def apply(self) -> View:
        """Ask the group to take this replica in, and go on in the view that does (blocks).

        Again, where the view that was to does not start, or fails as it begins.
        """
        with self._changed:
            self._failure = None
        for attempt in range(1, APPLICATIONS + 1):
            view = self._meeting.apply(self._presence.where)
            try:
                self._put_in_force(view, self._connect(view, self._open(view)))
            except RankFailure as failure:
                if attempt == APPLICATIONS:
                    raise
                logger.warning("view %d does not start: %s", view.number, failure)
            else:
                break
        return view

    @property
    def wants_to_grow(self) -> bool:
        """Whether this rank knows of a replica that waits to be taken in."""
        return bool(self._applicants)

    def view_after(self, number: int) -> View:
        """The first view after this one, once it is in force here (blocks).

        Raises:
            LeftBehind: the others go on without this replica.
            RankFailure: too few are left to go on, or they do not agree in time.
        """
        with self._changed:
            self._changed.wait_for(self._is_there_after(number))
            if self._failure is not None:
                raise self._failure
            assert self._view is not None
            return self._view

    def grow(self, number: int) -> None:
        """End this view, on all its members after the same step, to take in who waits."""
        self._end(number, suspects=(), grows=True)

    def close(self) -> None:
        """Leave for good."""
        with self._changed:
            self._is_closed = True
            engine = self._engine
        if engine is not None:
            engine.close()
        self._presence.close()

    def _is_there_after(self, number: int) -> Callable[[], bool]:
        def is_there() -> bool:
            is_later = self._view is not None and self._view.number > number
            return is_later or self._failure is not None

        return is_there

    def _end(self, number: int, suspects: Collection[int], *, grows: bool) -> None:
        """A view ends: agree on the next one, on a thread of its own; once for each view."""
        with self._changed:
            view = self._view
            engine = self._engine
            if self._is_closed or view is None or view.number != number:
                return
            self._view = None
        assert engine is not None
        standing = msgspec.structs.replace(self._standing(number), grows=grows)
        host.Thread(
            target=self._go_over,
            args=(view, engine, standing, suspects),
            name="latecomer-elastic",
            daemon=True,
        ).start()

    def _go_over(
        self, view: View, engine: Engine, standing: Standing, suspects: Collection[int]
    ) -> None:
        """From a view to the next one that starts."""
        try:
            self._go_on(view, engine, standing, suspects)
        except LatecomerError as error:
            self._give_up(error)
        except Exception as error:
            logger.exception("replica %d does not go on after view %d", self.replica, view.number)
            self._give_up(LatecomerError(f"replica {self.replica} does not go on: {error!r}"))
        finally:
            engine.close(at_once=True)

    def _go_on(
        self, view: View, engine: Engine, standing: Standing, suspects: Collection[int]
    ) -> None:
        failed = frozenset(suspects)
        electorate = frozenset(range(view.size))
        attempt = 0
        while True:
            ending = _Ending(view, engine, attempt, electorate, failed)
            began_s = host.monotonic()
            following = self._agreed(ending, standing)
            agreed_s = host.monotonic() - began_s
            if self.replica not in following.replicas:
                raise self._left_behind(view)
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
        if isinstance(ending.engine, GroupOfOne):
            return self._choose(view, {0: standing})
        agreeing = _Agreeing(
            ending, f"view/{ending.attempt}", msgspec.json.encode(standing), self._silence_s
        )

        def choose(reports: Mapping[int, bytes]) -> bytes:
            standings = {rank: STANDING.decode(content) for rank, content in reports.items()}
            return msgspec.json.encode(self._choose(view, standings))

        # it goes on to tell the outcome until the channel is closed, when the next view has begun
        return VIEW.decode(self._wait_for_outcome(view, agreeing, choose, self._join_timeout_s))

    def _begin_after(self, ending: _Ending, following: View) -> Start:
        """Let the next view begin, unless one of those who stay is not connected."""
        connected: _Connected | None = None
        own = Start(is_ready=True)
        try:
            if following.newcomers and following.members[0].replica == self.replica:
                self._meeting.welcome(following)
            connected = self._connect(following, self._open(following))
        except RankFailure as failure:
            logger.warning("view %d does not start here: %s", following.number, failure)
            lost = {following.replicas[rank] for rank in failure.ranks}
            failed = [ending.view.rank_of(each) for each in lost & set(ending.view.replicas)]
            own = Start(is_ready=False, failed=tuple(sorted(failed)))
        try:
            agreeing, start = self._start_together(ending, own)
        except LatecomerError:
            if connected is not None:
                connected.give_up(f"replica {self.replica} does not go on")
            raise
        if connected is not None and start.is_ready:
            self._put_in_force(following, connected)
        elif connected is not None:
            connected.give_up(f"view {following.number} does not start")
        if agreeing is not None:
            agreeing.wait_until_told()
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
            self._join_timeout_s,
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
        give_up_s = host.monotonic() + limit_s
        while True:
            event = agreeing.next_event(PROBE_S)
            if isinstance(event, Decided):
                return event.outcome
            if isinstance(event, MustChoose):
                agreeing.choose(event, choose(event.reports))
            elif host.monotonic() > give_up_s:
                raise self._no_outcome(view, agreeing.silent)
            else:
                for rank in agreeing.present:
                    if is_gone(view.members[rank].presence, PROBE_S):
                        agreeing.prove_gone(rank)

    def _no_outcome(self, view: View, silent: list[int]) -> RankFailure:
        """Why there is no next view for this replica."""
        with contextlib.suppress(RankFailure):  # of the store
            last = self._meeting.last_view()
            if last is not None and last.number > view.number:
                return self._left_behind(view)
        names = ", ".join(map(str, silent))
        if silent:
            text = (
                f"rank(s) {names}: silent, and not proved dead; the others are too few to go on "
                "by themselves, since it may be the network that has failed"
            )
        else:
            text = (
                f"replica {self.replica}: the others have not agreed with it on how to go on "
                f"within {self._join_timeout_s:g} s; they may have given up"
            )
        return RankFailure(silent, text)

    def _left_behind(self, view: View) -> LeftBehind:
        text = f"the others have gone on without replica {self.replica}, which was silent"
        return LeftBehind([view.rank_of(self.replica)], text)

    def _choose(self, view: View, standings: dict[int, Standing]) -> View:
        """The next view, as this rank would have it; it serves the store for it."""
        store, where = host.serve_store(self.address, timedelta(seconds=self._join_timeout_s))
        self._store = store
        return next_view(view, standings, self._applicants, where)

    def _open(self, view: View) -> Store:
        limit = timedelta(seconds=self._join_timeout_s)
        try:
            store: Store = host.open_store(view.store, limit)
        except RuntimeError as error:
            raise RankFailure([], f"the store of view {view.number} is gone: {error}") from None
        return store

    def _meet(self, view: View, exchange: StoreExchange) -> None:
        """Wait until all members are there; RankFailure as soon as one is proved gone.

        Connecting would wait for it for the whole time to join.
        """
        exchange.send(f"here/{exchange.rank}")
        keys = {rank: f"here/{rank}" for rank in range(view.size)}
        give_up_s = host.monotonic() + self._join_timeout_s
        glance = dataclasses.replace(exchange, timeout_s=PROBE_S)
        while absent := sorted(keys.keys() - glance.receive(keys).keys()):
            gone = [rank for rank in absent if is_gone(view.members[rank].presence, PROBE_S)]
            names = ", ".join(map(str, gone or absent))
            if gone:
                raise RankFailure(gone, f"rank(s) {names} died before view {view.number} began")
            if host.monotonic() > give_up_s:
                text = f"rank(s) {names}: did not join within {self._join_timeout_s:g} s"
                raise RankFailure(absent, text)

    def _make(self, view: View, store: Store) -> Engine:
        """What runs the operations of a view (collective)."""
        store = host.prefixed("engine", store)
        rank = view.rank_of(self.replica)
        if view.size == 1:
            return GroupOfOne(
                store, options=self._options, device=self._device, timeout_s=self._timeout_s
            )
        profile = None if self._profile is None else self._profile.for_some(view.size)
        engine = AllReduceDispatcher(
            store,
            rank,
            view.size,
            options=self._options,
            profile=profile,
            device=self._device,
            timeout_s=self._timeout_s,
            silence_s=self._silence_s,
            join_timeout_s=self._join_timeout_s,
        )
        self._profile = engine.profile
        return engine

    def _connect(self, view: View, store: Store) -> _Connected:
        """Make a view's engine, with all its members; RankFailure: it does not start."""
        began_s = host.monotonic()
        rank = view.rank_of(self.replica)
        exchange = StoreExchange(store, rank, view.size, self._join_timeout_s)
        self._meet(view, exchange)
        engine = self._make(view, store)
        connected_s = host.monotonic()
        logger.info(
            "replica %d is rank %d of %d in view %d: replicas %s (connected in %.3f s)",
            self.replica,
            rank,
            view.size,
            view.number,
            ", ".join(map(str, view.replicas)),
            connected_s - began_s,
        )
        return _Connected(engine, exchange)

    def _put_in_force(self, view: View, connected: _Connected) -> None:
        """Let a view begin here."""
        engine = connected.engine
        try:
            self._begins(view, engine, connected.exchange)
        except RankFailure as failure:
            logger.warning("view %d fails as it begins: %s", view.number, failure)
            if isinstance(engine, AllReduceDispatcher):  # it may have failed itself: all the better
                engine.abort(f"view {view.number} fails as it begins")
        with self._changed:
            is_closed = self._is_closed
            if not is_closed:
                self._view = view
                self._engine = engine
                self._changed.notify_all()
        if is_closed:  # meanwhile, by the main thread
            engine.close(at_once=True)
            return
        if isinstance(engine, AllReduceDispatcher):
            engine.executor.watchdog.on_failure(
                lambda failure: self._end(view.number, self._failed_in(failure), grows=False)
            )
        if view.rank_of(self.replica) == 0:
            host.Thread(
                target=self._look, args=(view,), name="latecomer-applicants", daemon=True
            ).start()

    def _failed_in(self, failure: LatecomerError) -> tuple[int, ...]:
        return failure.ranks if isinstance(failure, RankFailure) else ()

    def _look(self, view: View) -> None:
        """Look for replicas that want to come in, as long as this rank is the view's first."""
        try:
            self._meeting.tell(view)
            while self._is_in_force(view):
                self._applicants = self._meeting.applicants(view)
                host.sleep(LOOK_S)
        except RankFailure as failure:  # of the store alone: the view goes on
            logger.warning("replica %d: the group can't grow any more: %s", self.replica, failure)

    def _is_in_force(self, view: View) -> bool:
        with self._changed:
            return self._view is view and not self._is_closed

    def _give_up(self, error: LatecomerError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()


@dataclass(frozen=True)
class _Ending:
    """A view that ends, and the attempt to agree on what comes next."""

    view: View
    engine: Engine
    attempt: int  # from 0 on; another one where the next view does not start
    electorate: frozenset[int]  # ranks that have a say
    suspects: frozenset[int]  # ranks that were lost


class _Connected(NamedTuple):
    """What a view has that may begin."""

    engine: Engine
    exchange: StoreExchange

    def give_up(self, reason: str) -> None:
        """It does not begin; whoever takes part in it already learns of it."""
        if isinstance(self.engine, AllReduceDispatcher):
            self.engine.abort(reason)
        self.engine.close(at_once=True)


def _staying(view: View, following: View) -> list[int]:
    """The replicas of a view that are in the next one, too."""
    return [replica for replica in view.replicas if replica in following.replicas]


class _Agreeing(ProtocolRunner[AgreementMessage, AgreementEvent]):
    """An agreement at work, over the control channel of the view that ends."""

    def __init__(self, ending: _Ending, topic: str, content: bytes, settle_s: float) -> None:
        assert isinstance(ending.engine, AllReduceDispatcher)
        datagrams = ending.engine.executor.datagrams
        self._events: Queue[AgreementEvent] = host.Queue()
        self._agreement = Agreement(
            datagrams.rank,
            ending.electorate,
            content,
            suspects=ending.suspects,
            settle_s=settle_s,
            now_s=host.monotonic(),
        )
        super().__init__(self._agreement, datagrams, topic, AgreementMessage)

    @property
    def silent(self) -> list[int]:
        """See :attr:`Agreement.silent`."""
        return self.run(lambda now_s: sorted(self._agreement.silent))

    @property
    def present(self) -> list[int]:
        """See :attr:`Agreement.present`."""
        return self.run(lambda now_s: sorted(self._agreement.present))

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

    def wait_until_told(self) -> None:
        """Until all know the outcome, or were told often enough."""
        while not self.run(lambda now_s: self._agreement.has_told):
            host.sleep(PROBE_S)

    def handle_event(self, event: AgreementEvent) -> None:
        """Hand it to the thread that goes from one view to the next."""
        self._events.put(event)
