"""A group of replicas that goes on without those that die, and takes in those that come back.

    view 0 ── a rank fails ──> agreement ──> view 1 ── a replica applies ──> agreement ──> view 2
      │                        of the survivors │                            of all          │
      └ engine 0, for 4 ranks                   └ engine 1, for 3 ranks                      └ ...

A view's engine runs its operations; when it fails, or all have seen that somebody wants to come in,
a thread of each member goes from it to the next (:mod:`latecomer.runtime.elastic.succession`), and
lets the main thread go on. No main thread takes part, so a rank that is late, and will be for a
minute, holds nobody up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import timedelta

import msgspec
import torch

from latecomer.runtime.elastic.connecting import Connected, Connector
from latecomer.runtime.elastic.meeting import Meeting
from latecomer.runtime.elastic.presence import Presence
from latecomer.runtime.elastic.succession import Succession
from latecomer.runtime.elastic.view import Member, Standing, View, next_view
from latecomer.runtime.host import Thread, host
from latecomer.runtime.network.addresses import own_address
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.candidates import make_ahead
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import LatecomerError, RankFailure

APPLICATIONS = 5  # of a replica that wants to come in, if the group changes meanwhile
LOOK_S = 0.2  # between two looks for replicas that want to come in
CLOSE_S = 5.0  # how long closing waits for a change that is under way
AHEAD_S = 1.0  # a view has been in force so long before the next one is prepared

logger = logging.getLogger("latecomer")


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
        begins: Callable[[View, ModeEngine, StoreExchange], None],
    ) -> None:
        self.replica = replica
        self._microbatches = microbatches
        self._options = options
        self._join_timeout_s = join_timeout_s
        self._standing = standing
        self._begins = begins
        self._connector = Connector(replica, options, device, timeout_s, silence_s, join_timeout_s)
        self._succession = Succession(
            replica,
            silence_s=silence_s,
            join_timeout_s=join_timeout_s,
            is_past=self._is_past,
            has_left=lambda: self._is_closed,
            choose=self._choose,
            connect=self._connect,
            begin=self._put_in_force,
        )
        self._changed = host.Condition()  # guards what follows
        self._view: View | None = None  # in force, or None while there is none
        self._engine: ModeEngine | None = None
        self._failure: LatecomerError | None = None  # why this replica does not go on
        self._is_closed = False
        self._change: Thread | None = None  # the last one's
        self._applicants: tuple[Member, ...] = ()
        self._store: Store | None = None  # of the view, if this replica serves it

        exchange = StoreExchange(store, replica, replicas, join_timeout_s)
        self._meeting = Meeting(exchange)
        self._meeting_store = store
        self.address = own_address(store)
        self._presence = Presence(self.address)

    def join(self) -> View:
        """Take part from the first view, or apply to the group that there is (blocks)."""
        if self._meeting.has_begun():
            return self.apply()
        first = self._meeting.first_view(self._presence.where, self._microbatches)
        store = host.prefixed("views/0", self._meeting_store)
        self._put_in_force(first, self._connector.connect(first, store))
        return first

    def apply(self) -> View:
        """Ask the group to take this replica in, and go on in the view that does (blocks).

        Again, where the view that was to does not start, or fails as it begins.
        """
        with self._changed:
            self._failure = None
        for attempt in range(1, APPLICATIONS + 1):
            view = self._meeting.apply(self._presence.where)
            try:
                self._put_in_force(view, self._connect(view))
            except RankFailure as failure:
                if attempt == APPLICATIONS:
                    raise
                logger.warning("view %d does not start: %s", view.number, failure)
                self._renew_presence()
            else:
                break
        return view

    def _renew_presence(self) -> None:
        """Whoever still waits for this replica, in a view that it has given up, shall not."""
        self._presence.close()
        self._presence = Presence(self.address)

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

    def abort(self, reason: str) -> None:
        """End what is under way, here and on all members; they learn that it is this one's doing.

        To be closed afterwards.
        """
        with self._changed:
            self._is_closed = True
            engine = self._engine
        if isinstance(engine, AllReduceDispatcher):
            engine.abort(reason)

    def close(self, *, at_once: bool = False) -> None:
        """Leave for good; ``at_once``: what is under way is not waited for."""
        with self._changed:
            self._is_closed = True
            engine = self._engine
            change = self._change
        if engine is not None:
            engine.close(at_once=at_once)
        if change is not None:
            change.join(CLOSE_S)
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
        change = host.Thread(
            target=self._go_over,
            args=(view, engine, standing, suspects),
            name="latecomer-elastic",
            daemon=True,
        )
        with self._changed:
            if not self._is_closed:  # else closing waits for it no more
                self._change = change
                change.start()

    def _go_over(
        self, view: View, engine: ModeEngine, standing: Standing, suspects: Collection[int]
    ) -> None:
        """From a view to the next one that starts."""
        try:
            self._succession.run(view, engine, standing, suspects)
        except LatecomerError as error:
            self._give_up(error)
        except Exception as error:
            logger.exception("replica %d does not go on after view %d", self.replica, view.number)
            self._give_up(LatecomerError(f"replica {self.replica} does not go on: {error!r}"))
        finally:
            engine.close(at_once=True)

    def _is_past(self, view: View) -> bool:
        """Whether a later view is in force, as far as the store can tell."""
        try:
            last = self._meeting.last_view()
        except RankFailure:
            return False
        return last is not None and last.number > view.number

    def _connect(self, view: View) -> Connected:
        """Connect to the members of a view, to which newcomers are welcome."""
        if view.newcomers and view.members[0].replica == self.replica:
            self._meeting.welcome(view)
        return self._connector.connect(view, self._connector.open(view))

    def _choose(self, view: View, number: int, standings: dict[int, Standing]) -> View:
        """The next view, as this rank would have it; it serves the store for it."""
        store, where = host.serve_store(self.address, timedelta(seconds=self._join_timeout_s))
        self._store = store
        return next_view(view, standings, self._applicants, where, number=number)

    def _put_in_force(self, view: View, connected: Connected) -> None:
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
                self._applicants = ()  # those of the view before are in this one, or apply anew
                self._changed.notify_all()
        if is_closed:  # meanwhile, by the main thread
            engine.close(at_once=True)
            return
        if isinstance(engine, AllReduceDispatcher):
            engine.executor.watchdog.on_failure(
                lambda failure: self._end(view.number, self._failed_in(failure), grows=False)
            )
        rank = view.rank_of(self.replica)
        if rank == 0:
            self._beside(self._look, view, "latecomer-applicants")
        if rank < 2 < view.size:
            self._beside(self._prepare, view, "latecomer-ahead")

    def _beside(self, run: Callable[[View], None], view: View, name: str) -> None:
        host.Thread(target=run, args=(view,), name=name, daemon=True).start()

    def _prepare(self, view: View) -> None:
        """Make what the first rank has to make if one is lost; one of the first two is that then.

        Not at once: the first step of a view is waited for.
        """
        host.sleep(AHEAD_S)
        if self._is_in_force(view):
            make_ahead(view.size - 1, self._options)

    def _failed_in(self, failure: LatecomerError) -> tuple[int, ...]:
        return failure.ranks if isinstance(failure, RankFailure) else ()

    def _look(self, view: View) -> None:
        """Look for replicas that want to come in, as long as this rank is the view's first."""
        try:
            self._meeting.tell(view)
            while self._is_in_force(view):
                found = self._meeting.applicants(view)
                with self._changed:
                    if self._view is view:
                        self._applicants = found
                host.sleep(LOOK_S)
        except RankFailure as failure:  # of the store alone: the view goes on
            self._applicants = ()  # none of them could be welcomed
            logger.warning("replica %d: the group can't grow any more: %s", self.replica, failure)

    def _is_in_force(self, view: View) -> bool:
        with self._changed:
            return self._view is view and not self._is_closed

    def _give_up(self, error: LatecomerError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
