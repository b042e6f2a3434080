"""A job on simulated hosts: what each rank runs, and what becomes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from latecomer.runtime.at_exit import forgotten_after
from latecomer.runtime.host import host
from latecomer.runtime.simulation.meeting import Gloo, Store, Stores
from latecomer.runtime.simulation.network import Network, Weather
from latecomer.runtime.simulation.threads import Thread, Threads
from latecomer.runtime.simulation.world import BEGIN_S, Stuck, Task, World
from latecomer.runtime.telemetry.recorder import LIVE

LINGER_S = 20.0  # what a rank that has returned may still do: more than any of its waits
UNIX_S = 1_700_000_000.0  # when worlds begin


@contextlib.contextmanager
def _no_recorders() -> Iterator[None]:
    """What is watched by default is what is there; after the block it is what was there before."""
    before = list(LIVE)
    LIVE.clear()
    try:
        yield
    finally:
        LIVE[:] = before


Body = Callable[[int, int, Store], Any]
"""What a rank runs: (rank, number of ranks, store of the job) -> its result."""


@dataclass(frozen=True)
class Outcome:
    """What became of a rank."""

    result: Any = None
    error: BaseException | None = None
    is_over: bool = False  # else it was killed, or waits


class Job:
    """Ranks that run ``body`` each on a host of its own, all of them in this thread.

    Args:
        ranks: their number.
        seed: decides everything that could be otherwise.
        weather: what the network does.
        drifts: seconds per second by which each rank's clock runs ahead; all run alike without.
        of_world: ``switch``, ``pause`` and so on, see :class:`World`.
    """

    def __init__(
        self,
        ranks: int,
        seed: int,
        weather: Weather | None = None,
        drifts: Sequence[float] = (),
        **of_world: Any,
    ) -> None:
        self.ranks = ranks
        self.world = World(seed, **of_world)
        self.network = Network(self.world, weather or Weather())
        self.gloo = Gloo(self.world, self.network)
        self.store = Store(self.world)
        self.stores = Stores(self.world)
        self.mains: dict[int, Task] = {}
        self.killed_s: dict[int, float] = {}  # by rank: when, in the world's time
        self._results: dict[int, Any] = {}
        # by rank, threads that had not ended when the job was over, and what they waited for
        self.unfinished: dict[int, list[str]] = {}
        clocks = self.world.dice("clocks")
        self.offsets_s = [clocks.between(0.0, 5000.0) for _ in range(ranks)]
        self.drifts = tuple(drifts) or (0.0,) * ranks

    def run(self, body: Body, *, longest_s: float = 3600.0) -> dict[int, Outcome]:
        """Run it on all ranks until all are over or dead, or for so long, once; then their threads.

        Raises:
            Stuck, TooLong: see :class:`World`.
        """
        with host.replaced(**self._attributes()), forgotten_after(), _no_recorders():
            for rank in range(self.ranks):
                self.mains[rank] = self._start(rank, body)
            try:
                self.world.run(self._are_mains_over, longest_s)
                with contextlib.suppress(Stuck):  # threads that wait for ever are unfinished, too
                    self.world.run(self._are_threads_over, LINGER_S)
            finally:
                for task in self.world.tasks:
                    if not task.is_over:
                        self.unfinished.setdefault(task.rank, []).append(repr(task))
                self.world.end()
        return {rank: self.outcome(rank) for rank in self.mains}

    def outcome(self, rank: int) -> Outcome:
        """What became of a rank so far."""
        main = self.mains[rank]
        is_over = (main.is_over and rank in self._results) or main.error is not None
        return Outcome(self._results.get(rank), main.error, is_over)

    def elapsed_s(self) -> float:
        """How long the job has run, in its world."""
        return self.world.now_s - BEGIN_S

    def clock_s(self, rank: int) -> float:
        """What the rank's clock shows: it began somewhere, and drifts."""
        return self.world.now_s * (1.0 + self.drifts[rank]) + self.offsets_s[rank]

    def kill(self, rank: int, *, resets: bool = False) -> None:
        """End a rank's process at once; its kernel closes what it had open, or resets it."""
        self.killed_s.setdefault(rank, self.world.now_s)
        self.world.kill(rank)
        self.network.lose_host(rank, resets=resets)
        self.gloo.lose(rank)
        self.stores.lose(rank)

    def stop(self, rank: int, for_s: float) -> None:
        """Stop a rank's process for a while; its kernel goes on."""
        self.world.stop(rank)
        self.world.after(for_s, self.world.go_on, rank)

    def _start(self, rank: int, body: Body) -> Task:
        def main() -> None:
            self._results[rank] = body(rank, self.ranks, self.store)

        return Thread(self.world, target=main, name="main").start_on(rank)

    def _are_mains_over(self) -> bool:
        return all(task.is_over or self.world.is_dead(rank) for rank, task in self.mains.items())

    def _are_threads_over(self) -> bool:
        return all(task.is_over or self.world.is_dead(task.rank) for task in self.world.tasks)

    def _attributes(self) -> dict[str, Any]:
        world = self.world
        dice = world.dice("tokens")

        def monotonic() -> float:
            task = world.current
            if task is None:
                return world.now_s
            world.perhaps_switch()
            return self.clock_s(task.rank)

        def sleep(seconds: float) -> None:
            world.park(world.now_s + seconds, "time to pass")

        def random_token(nbytes: int) -> str:
            return "".join(f"{dice.below(256):02x}" for _ in range(nbytes))

        return {
            **Threads(world).attributes(),
            **self.network.attributes(),
            "monotonic": monotonic,
            "monotonic_ns": lambda: int(monotonic() * 1e9),
            "perf_counter": monotonic,
            "thread_time": lambda: 0.0 if world.current is None else world.current.ran_s,
            "unix_time": lambda: UNIX_S + world.now_s,
            "sleep": sleep,
            "clock_name": lambda: "",
            "random_token": random_token,
            "prefixed": lambda prefix, store: store.under(prefix),
            "serve_store": self.stores.serve,
            "open_store": self.stores.open,
            "gloo": self.gloo,
        }
