"""The members of a view meet in its store, and connect: what it takes for a view to begin."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch

from latecomer.runtime.elastic.presence import is_gone
from latecomer.runtime.elastic.view import View
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.cost_model import Profile
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.engines import ModeEngine, make_engine
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import RankFailure

GLANCE_S = 0.05  # between two looks whether a member that has not come has died

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
    profile: Profile | None = None
    """What the network is like, once a view has measured it."""

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
        exchange = StoreExchange(store, rank, view.size, self.join_timeout_s)
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
        return Connected(engine, exchange)

    def _meet(self, view: View, exchange: StoreExchange) -> None:
        """Wait until all members are there; RankFailure as soon as one is proved gone.

        Connecting would wait for it for the whole time to join.
        """
        exchange.send(f"here/{exchange.rank}")
        keys = {rank: f"here/{rank}" for rank in range(view.size)}
        give_up_s = host.monotonic() + self.join_timeout_s
        glance = dataclasses.replace(exchange, timeout_s=GLANCE_S)
        while absent := sorted(keys.keys() - glance.receive(keys).keys()):
            gone = [rank for rank in absent if is_gone(view.members[rank].presence, GLANCE_S)]
            names = ", ".join(map(str, gone or absent))
            if gone:
                raise RankFailure(gone, f"rank(s) {names} died before view {view.number} began")
            if host.monotonic() > give_up_s:
                text = f"rank(s) {names}: did not join within {self.join_timeout_s:g} s"
                raise RankFailure(absent, text)

    def _make(self, view: View, store: Store) -> ModeEngine:
        """What runs the operations of a view (collective)."""
        store = host.prefixed("engine", store)
        rank = view.rank_of(self.replica)
        engine = make_engine(
            store,
            rank,
            view.size,
            options=self.options,
            device=self.device,
            timeout_s=self.timeout_s,
            silence_s=self.silence_s,
            join_timeout_s=self.join_timeout_s,
            profile=None if self.profile is None else self.profile.for_some(view.size),
        )
        if isinstance(engine, AllReduceDispatcher):
            self.profile = engine.profile
        return engine
