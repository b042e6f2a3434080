"""The members of a view meet in its store, and connect: what it takes for a view to begin."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import msgspec
import torch

from latecomer.runtime.elastic.view import View, is_member_gone
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import IsGone, StoreExchange
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine, make_engine
from latecomer.runtime.policy.known import (
    Known,
    adopted,
    arrivals_of,
    exchange_known,
    having_seen,
)
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import RankFailure

logger = logging.getLogger("latecomer")


class Connected(NamedTuple):
    """What a view has that can begin."""

    engine: ModeEngine
    exchange: StoreExchange

    def give_up(self, reason: str) -> None:
        """It does not begin; whoever takes part in it already learns of it."""
        if isinstance(self.engine, AllReduceDispatcher):
            self.engine.abort(reason)
        self.engine.close(at_once=True)


@dataclass
class Connector:
    """Connects one replica to the others of a view, as often as views change.

    Args:
        replica: its number in the job.
        options: of the engines' mode.
        device: of the tensors.
        timeout_s, silence_s: see :class:`latecomer.Executor`.
        join_timeout_s: how long members wait for each other.
    """

    replica: int
    options: Options
    device: torch.device
    timeout_s: float
    silence_s: float
    join_timeout_s: float

    def __post_init__(self) -> None:
        self.known = Known(str(self.replica))  # of the links, and of who comes late
        self._last: tuple[AllReduceDispatcher, tuple[str, ...]] | None = None  # with its replicas

    def open(self, view: View) -> Store:
        """The store where a view's members meet; RankFailure: it is gone."""
        limit = timedelta(seconds=self.join_timeout_s)
        try:
            store: Store = host.open_store(view.store, limit)
        except RuntimeError as error:
            raise RankFailure([], f"the store of view {view.number} is gone: {error}") from None
        return store

    def connect(self, view: View, store: Store) -> Connected:
        """Make a view's engine, with all its members; RankFailure: it does not start."""
        began_s = host.monotonic()
        rank = view.rank_of(self.replica)
        is_gone = partial(is_member_gone, view)
        exchange = StoreExchange(store, rank, view.size, self.join_timeout_s, is_gone)
        self._learn_from_last()
        self.known = self._meet(exchange)
        engine = self._make(view, store, is_gone)
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
        return Connected(engine, exchange)

    def _learn_from_last(self) -> None:
        """Who came late in the last view, by replica, since ranks shift with each view."""
        if self._last is not None:
            engine, replicas = self._last
            self._last = None
            self.known = having_seen(self.known, replicas, engine.arrivals(), unclear=set())

    def _meet(self, exchange: StoreExchange) -> Known:
        """Wait until all members are there; what all of them know together.

        Before an engine is made: Gloo would wait for one that is proved gone for the whole time to
        join. Here it is a RankFailure as soon as one is.
        """
        return adopted(exchange_known(exchange, self.known), exchange.rank)

    def _make(self, view: View, store: Store, is_gone: IsGone) -> ModeEngine:
        """What runs the operations of a view (collective)."""
        store = host.prefixed("engine", store)
        rank = view.rank_of(self.replica)
        replicas = tuple(map(str, view.replicas))
        profile = self.known.profile
        engine = make_engine(
            store,
            rank,
            view.size,
            options=self.options,
            device=self.device,
            timeout_s=self.timeout_s,
            silence_s=self.silence_s,
            join_timeout_s=self.join_timeout_s,
            is_gone=is_gone,
            profile=None if profile is None else profile.for_some(view.size),
            arrivals=arrivals_of(self.known, replicas),
        )
        if isinstance(engine, AllReduceDispatcher):
            self.known = msgspec.structs.replace(self.known, profile=engine.profile)
            self._last = engine, replicas
        return engine
