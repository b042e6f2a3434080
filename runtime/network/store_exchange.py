"""What ranks send each other through the store, each once, with a deadline.

A store has a time-out of its own, and heeds it only while its host answers: where that process is
stopped, a torch store waits for ever. So it is used on a thread that nobody has to wait for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from latecomer.runtime.host import host
from latecomer.runtime.torch_versions import HashStore, Store
from latecomer.verify.errors import RankFailure

LOOK_S = 0.05  # between two looks whether a rank that is waited for is proved gone
# Between two looks whether all have come: a share of what has been waited so far, within limits.
PAUSE_SHARE = 0.25
LEAST_PAUSE_S = 0.0005
MOST_PAUSE_S = 0.01
ANSWER_S = 5.0
"""How long the store may take at least: in place of the time that ranks have where none is waited
for, else on top of it."""

IsGone = Callable[[int], bool]
"""Whether a rank's own host says that its process has ended: no silence proves that."""

T = TypeVar("T")


@dataclass(frozen=True)
class StoreExchange:
    """One rank's place in a group, and its end of what the ranks send each other through the store.

    Every method raises RankFailure, which names no rank, when the store is gone.
    """

    store: Store  # every rank of the group, and nothing else, uses it under the same prefix
    rank: int
    world_size: int
    timeout_s: float  # how long ranks are waited for
    is_gone: IsGone | None = None  # nobody waits any longer once a rank is

    def under(self, prefix: str) -> StoreExchange:
        """The same group, with keys of its own."""
        return replace(self, store=host.prefixed(prefix, self.store))

    def without_store(self) -> StoreExchange:
        """The same place in the group, which nobody hears of any more."""
        return replace(self, store=HashStore())

    def send(self, key: str, value: str = "") -> None:
        """Set ``key``."""
        self._within(lambda: self.store.set(key, value), self._answer_s)

    def peek(self, keys: Mapping[int, str]) -> dict[int, str]:
        """By rank, what it has set under its key by now."""
        return self._within(lambda: self._present(keys), self._answer_s)

    def receive(self, keys: Mapping[int, str]) -> dict[int, str]:
        """By rank, what it has set under its key; ranks that have not in time are missing.

        So are those that still can, as soon as one of the others is proved gone.
        """
        ask = self._wait_for if self.is_gone is None else self._wait_unless_gone
        return self._within(lambda: ask(keys, self.timeout_s), self.timeout_s + ANSWER_S)

    def receive_from(self, rank: int, key: str) -> str:
        """What ``rank`` has set under ``key``; a RankFailure names it if it has not in time."""
        return self._require(self.receive({rank: key}), [rank])[rank]

    def gather(self, key: str, value: str = "") -> dict[int, str]:
        """Send ``value``; what each rank has sent under the same key, absent ranks missing."""
        self.send(f"{key}/{self.rank}", value)
        return self.receive({rank: f"{key}/{rank}" for rank in range(self.world_size)})

    def all_gather(
        self, key: str, value: str = "", *, of: Collection[int] | None = None
    ) -> dict[int, str]:
        """As :meth:`gather`; a RankFailure names absent ranks (``of``: which must be there)."""
        required = range(self.world_size) if of is None else of
        return self._require(self.gather(key, value), required)

    def differing(self, key: str, value: str) -> dict[int, str]:
        """What ranks that did not send ``value`` under ``key`` sent there; empty: all are alike.

        As :meth:`all_gather`.
        """
        received = self.all_gather(key, value)
        return {rank: theirs for rank, theirs in received.items() if theirs != value}

    def first(self, key: str, value: str) -> str:
        """What the rank that came first has set under ``key`` so; nobody waits for another."""
        return self._within(lambda: self.store.compare_set(key, "", value).decode(), self._answer_s)

    def gone(self, ranks: Iterable[int]) -> list[int]:
        """Those of these ranks that are proved gone."""
        return [] if self.is_gone is None else sorted(filter(self.is_gone, ranks))

    def _wait_for(self, keys: Mapping[int, str], limit_s: float) -> dict[int, str]:
        with contextlib.suppress(RuntimeError):  # who is missing is seen below
            limit = timedelta(seconds=max(0.01, limit_s))
            self.store.wait(list(keys.values()), limit)
        return self._present(keys)

    def _wait_unless_gone(self, keys: Mapping[int, str], limit_s: float) -> dict[int, str]:
        """As :meth:`_wait_for`, looking again and again: torch warns of every wait that is cut."""
        began_s = host.monotonic()
        give_up_s = began_s + limit_s
        look_s = began_s + LOOK_S  # when to see who is gone
        while True:
            if self._has(keys):
                return self._values(keys)
            now_s = host.monotonic()
            if now_s > give_up_s:
                return self._present(keys)
            if now_s > look_s:
                present = self._present(keys)
                if self.gone(keys.keys() - present.keys()):
                    return present
                look_s = host.monotonic() + LOOK_S
            pause_s = PAUSE_SHARE * (now_s - began_s)
            host.sleep(min(max(pause_s, LEAST_PAUSE_S), MOST_PAUSE_S))

    def _has(self, keys: Mapping[int, str]) -> bool:
        """Whether all are set: one request, however many there are."""
        return self.store.check(list(keys.values()))

    def _values(self, keys: Mapping[int, str]) -> dict[int, str]:
        """By rank, where all are set: one request, however many there are."""
        values = self.store.multi_get(list(keys.values()))
        return {rank: value.decode() for rank, value in zip(keys, values, strict=True)}

    def _present(self, keys: Mapping[int, str]) -> dict[int, str]:
        """Those that are set."""
        if self._has(keys):
            return self._values(keys)
        store = self.store
        return {rank: store.get(key).decode() for rank, key in keys.items() if store.check([key])}

    def _require(self, received: dict[int, str], ranks: Collection[int]) -> dict[int, str]:
        if absent := sorted(set(ranks) - set(received)):
            self.require_alive(absent)
            names = ", ".join(map(str, absent))
            text = f"rank(s) {names}: did not join within {self.timeout_s:g} s"
            raise RankFailure(absent, text)
        return received

    @property
    def _answer_s(self) -> float:
        return max(self.timeout_s, ANSWER_S)

    def require_alive(self, ranks: Iterable[int]) -> None:
        """RankFailure if one of these ranks is proved gone."""
        if gone := self.gone(ranks):
            names = ", ".join(map(str, gone))
            raise RankFailure(gone, f"rank(s) {names}: ended before all had joined")

    def _within(self, ask: Callable[[], T], limit_s: float) -> T:
        """What ``ask`` returns of the store, which has so long for it."""
        answers: list[T] = []  # one, unless the store fails
        problem = f"no answer within {limit_s:g} s"

        def run() -> None:
            nonlocal problem
            try:
                answers.append(ask())
            except RuntimeError as error:
                problem = str(error).split("\n", 1)[0]

        asking = host.Thread(target=run, name="latecomer-store", daemon=True)
        asking.start()
        asking.join(limit_s)
        if answers:
            return answers[0]
        raise RankFailure([], f"the store through which the ranks meet is gone: {problem}")
