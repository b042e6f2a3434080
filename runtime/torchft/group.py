"""The replicas of one quorum, connected: it lasts until torchft reconfigures.

    ProcessGroup ── quorum 1 ──> Group of replica_0, replica_1, replica_2
         │  └ Known                  └ Gloo, and a dispatcher
         └─────── quorum 2 ──> Group of replica_0, replica_2        (replica_1 has died)

The first rank of a group makes its schedules, which takes up to a second for eight ranks. So while
a group is at work, its first two make those for one rank less: one of them is the first then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.health.native_work import NativeWaits
from latecomer.runtime.host import Thread, host
from latecomer.runtime.policy.alone import GroupOfOne
from latecomer.runtime.policy.candidates import make_ahead
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine, make_engine
from latecomer.runtime.policy.known import (
    Known,
    adopted,
    arrivals_of,
    having_seen,
    shared_names,
)
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.torchft.future_work import FutureWork
from latecomer.runtime.torchft.settings import Settings
from latecomer.verify.errors import LatecomerError, RankFailure

CPU = torch.device("cpu")
CLOSE_S = 10.0  # how long the end of a program waits for a group that is being closed
AHEAD_S = 1.0  # a group has been at work so long before the next one is prepared
LINGER_S = 0.5
"""How long a closed group refers to the one over Gloo. Whoever lets go of that last waits 20 ms for
its threads, and torchft does so at the end of the call in which the next group is configured."""

logger = logging.getLogger("latecomer")


class Group:
    """One replica's end of it (collective).

    Args:
        store: all replicas of the group use it under the same prefix, nothing else.
        rank: of this replica.
        members: what each of them knows, by rank.
        native: their process group over Gloo, for other collectives.
        settings: the same on all.

    Raises:
        ArgumentError: replicas with different settings.
        RankFailure: replicas that did not join in time, or died meanwhile.
    """

    def __init__(
        self, store: Store, rank: int, members: Sequence[Known], native: Any, settings: Settings
    ) -> None:
        self.rank = rank
        self.replicas = tuple(member.replica for member in members)
        self._unclear = shared_names(members)
        self._known = adopted(members, rank)
        self._settings = settings
        self._options = settings.options(self.replicas, self._unclear)
        self._native = native
        self._gloo: Any = native._get_backend(CPU)
        self.waits = NativeWaits(self._gloo, rank, len(members))
        self._closing: Thread | None = None
        self._ahead: Thread | None = None
        self._is_over = host.Event()
        self._may_let_go = host.Event()
        self.engine = self._connect(store)
        close_at_exit(self)
        if isinstance(self.engine, AllReduceDispatcher):
            self.engine.executor.watchdog.on_failure(self._failed)
        if rank < 2 < len(members):
            self._ahead = host.Thread(target=self._prepare, name="latecomer-ahead", daemon=True)
            self._ahead.start()

    def _connect(self, store: Store) -> ModeEngine:
        """What runs the all-reduces (collective)."""
        settings = self._settings
        size = len(self.replicas)
        profile = self._known.profile
        engine = make_engine(
            store,
            self.rank,
            size,
            options=self._options,
            device=CPU,
            timeout_s=settings.timeout_s,
            profile=None if profile is None else profile.for_some(size),
            arrivals=arrivals_of(self._known, self.replicas),
            silence_s=settings.silence_s,
            join_timeout_s=settings.join_timeout_s,
            native_waits=self.waits,
        )
        if isinstance(engine, AllReduceDispatcher):
            self.waits.detector = engine
        return engine

    @property
    def known(self) -> Known:
        """What this replica knows by now."""
        engine = self.engine
        if isinstance(engine, GroupOfOne):
            return self._known
        known = msgspec.structs.replace(self._known, profile=engine.profile)
        return having_seen(known, self.replicas, engine.arrivals(), self._unclear)

    @property
    def failure(self) -> LatecomerError | None:
        """Why all-reduces fail, if they do."""
        error = self.engine.failure
        return None if error is None else self._named(error)

    def submit(self, tensor: torch.Tensor, *, average: bool) -> FutureWork:
        """Start the sum (or average) of ``tensor``, in place; an error stands in the future.

        TensorError is raised for a tensor that can't be carried.
        """
        work = FutureWork(tensor, self._named)
        try:
            work.follow(self.engine.submit(tensor, average=average))
        except RankFailure as failure:
            work.settle(failure)
        return work

    def set_timeout(self, timeout_s: float) -> None:
        """Change how late a replica may be, from now on."""
        self.engine.timeout_s = timeout_s
        self._gloo._set_default_timeout(timedelta(seconds=timeout_s))

    def abort(self, reason: str) -> None:
        """End all operations on all replicas, with a RankFailure that names this one; at once.

        What has failed already stays as it is.
        """
        if isinstance(self.engine, AllReduceDispatcher) and self.engine.failure is None:
            self.engine.abort(reason)

    def start_closing(self) -> None:
        """Release threads and connections, on a thread of its own: nobody has to wait for it.

        Where a replica is dead, goodbyes to it take their time.
        """
        self._is_over.set()
        self._closing = host.Thread(target=self._close, name="latecomer-closing", daemon=True)
        self._closing.start()

    def let_go(self) -> None:
        """Let go of the group over Gloo as soon as all else is closed."""
        self._may_let_go.set()

    def close(self, *, at_once: bool = False) -> None:
        """Wait until it is closed (at the end of the program; :mod:`latecomer.runtime.at_exit`)."""
        if self._closing is None:
            self.start_closing()
        assert self._closing is not None
        self.let_go()
        self._closing.join(CLOSE_S)
        if self._ahead is not None:
            self._ahead.join(CLOSE_S)

    def _close(self) -> None:
        self.engine.close(at_once=self.engine.failure is not None)
        self.waits.close()
        self._gloo = None
        self._may_let_go.wait(LINGER_S)
        self._native = None
        has_closed(self)

    def _named(self, error: LatecomerError) -> LatecomerError:
        """The same error, with the names of replicas, since ranks are those of one quorum only."""
        if not isinstance(error, RankFailure):
            return error
        names = [f"rank {rank} is replica {self.replicas[rank]}" for rank in error.ranks]
        named = RankFailure(error.ranks, str(error), names)
        named.__cause__ = error
        return named

    def _failed(self, failure: LatecomerError) -> None:
        logger.warning("the group has failed on rank %d: %s", self.rank, self._named(failure))

    def _prepare(self) -> None:
        """Make what this replica would as the first of a group without one that is on time."""
        if self._is_over.wait(AHEAD_S):
            return
        late = [self.replicas[rank] for rank in self._options.late]
        on_time = [name for name in self.replicas if name not in late]
        make_ahead(
            len(self.replicas) - 1, self._settings.options([*on_time[1:], *late], self._unclear)
        )
