"""How simulated ranks meet: the store, and the library's own all-reduce."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.simulation.network import Network
from latecomer.runtime.simulation.threads import Waiters
from latecomer.runtime.simulation.world import World

ANSWER_S = 5e-4  # a question to the store, there and back
UNLIMITED = timedelta(days=1)  # longer than any job
SUM = "sum"
MAXIMUM = "maximum"
SCATTER = "reduce-scatter"
GATHER = "all-gather"
CLOSED = "Connection closed by peer [simulated]"


class Store:
    """A store of torch's, under a prefix; all of a job share what is in it."""

    def __init__(self, world: World, prefix: str = "", shared: Shared | None = None) -> None:
        self._world = world
        self._prefix = prefix
        self._shared = shared or Shared(Waiters(world))

    @property
    def shared(self) -> Shared:
        """What all have in common."""
        return self._shared

    @property
    def prefix(self) -> str:
        """Of its keys."""
        return self._prefix

    def under(self, prefix: str) -> Store:
        """The same with keys that begin with ``prefix``."""
        return Store(self._world, f"{self._prefix}{prefix}/", self._shared)

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._ask()
        self._shared.values[self._prefix + key] = value.encode()
        self._shared.waiters.wake()

    def get(self, key: str) -> bytes:
        """The value of a key, when there is one."""
        self.wait([key])
        return self._shared.values[self._prefix + key]

    def multi_get(self, keys: Collection[str]) -> list[bytes]:
        """The values of keys, when all are there: one request."""
        self.wait(keys)
        return [self._shared.values[self._prefix + key] for key in keys]

    def check(self, keys: Collection[str]) -> bool:
        """Whether all are set."""
        self._ask()
        return self._has(keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key if it has the expected value (empty: none); what it has then."""
        self._ask()
        values = self._shared.values
        if values.get(self._prefix + key, b"") == expected.encode():
            values[self._prefix + key] = desired.encode()
            self._shared.waiters.wake()
        return values[self._prefix + key]

    def wait(self, keys: Collection[str], limit: timedelta = UNLIMITED) -> None:
        """Wait until all are set; RuntimeError after so long."""
        self._ask()

        def are_there() -> bool:
            self._require()
            return self._has(keys)

        waits_for = f"keys of the store: {list(keys)[:2]}"
        if not self._shared.waiters.wait_until(are_there, limit.total_seconds(), waits_for):
            raise RuntimeError("wait timeout of the store")

    def _has(self, keys: Collection[str]) -> bool:
        return all(self._prefix + key in self._shared.values for key in keys)

    def _ask(self) -> None:
        self._require()
        self._world.park(self._world.now_s + ANSWER_S, "the store")
        self._require()

    def _require(self) -> None:
        while self._shared.is_stopped:
            self._world.park(self._world.now_s + 1.0, "the store, which is stopped")
        if self._shared.is_gone:
            raise RuntimeError("Connection to the store was reset")


class Stores:
    """The stores that ranks serve; one is gone when its rank is killed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._served: dict[str, tuple[int, Store]] = {}

    def serve(self, address: str, timeout: timedelta) -> tuple[Store, str]:
        """A store on the current rank, and where it is."""
        where = f"{address}:{self._world.number()}"
        store = Store(self._world)
        self._served[where] = self._world.rank, store
        return store, where

    def open(self, where: str, timeout: timedelta) -> Store:
        """The store that another rank serves there."""
        _, store = self._served[where]
        store._ask()
        return store

    def lose(self, rank: int) -> None:
        """A rank's process is gone, and its stores with it."""
        for owner, store in self._served.values():
            if owner == rank:
                store.shared.is_gone = True
                store.shared.waiters.wake()


@dataclass
class Shared:
    """What is in a store, and how it is."""

    waiters: Waiters
    values: dict[str, bytes] = field(default_factory=dict)
    is_gone: bool = False
    is_stopped: bool = False


@dataclass
class _Operation:
    """One collective of the library's, of all ranks of a group; tensors by rank."""

    given: dict[int, torch.Tensor] = field(default_factory=dict)
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    kind: str = SUM
    is_done: bool = False


class Gloo:
    """All groups of the library's collectives: a model of Gloo's rings.

    An operation is done when all ranks have come to it, all that have begun before are done, and a
    ring would have taken its time. Nothing of it moves through the simulated network. When a rank
    closes its connections or is killed, every operation of the group that is not done fails, on all
    ranks, as Gloo's do.
    """

    def __init__(self, world: World, network: Network) -> None:
        self._world = world
        self._network = network
        self._groups: dict[tuple[int, str], _Group] = {}

    def __call__(self, store: Store, rank: int, size: int, timeout: timedelta) -> GlooRank:
        """The group that meets in this store under its prefix."""
        where = id(store.shared), store.prefix
        group = self._groups.setdefault(where, _Group(self._world, self._network, size))
        return GlooRank(group, rank, timeout.total_seconds())

    def lose(self, rank: int) -> None:
        """A rank of the job has lost its process: all groups end of which that was a member."""
        for group in self._groups.values():
            if rank in group.processes:
                group.end()


class _Group:
    def __init__(self, world: World, network: Network, size: int) -> None:
        self.world = world
        self.network = network
        self.size = size
        self.processes: set[int] = set()  # by rank of the job, which may be another in the group
        self.operations: dict[int, _Operation] = {}
        self.waiters = Waiters(world)
        self.is_ended = False
        self._free_s = 0.0

    def enter(
        self, number: int, rank: int, kind: str, given: torch.Tensor, result: torch.Tensor
    ) -> _Operation:
        """A rank comes to its operation of this number."""
        operation = self.operations.setdefault(number, _Operation(kind=kind))
        assert operation.kind == kind
        operation.given[rank] = given
        operation.results[rank] = result
        if len(operation.given) == self.size and not self.is_ended:
            begun_s = max(self.world.now_s, self._free_s)
            self._free_s = begun_s + self._ring_s(operation)
            self.world.at(self._free_s, self._complete, operation)
        return operation

    def end(self) -> None:
        """Every connection is closed."""
        self.world.after(self.network.weather.latency_s, self._end)

    def _end(self) -> None:
        self.is_ended = True
        self.waiters.wake()

    def _ring_s(self, operation: _Operation) -> float:
        weather = self.network.weather
        hops = self.size - 1
        nbytes = operation.results[0].nbytes
        if operation.kind != GATHER:  # Gloo's reduce-scatter is an all-reduce, too
            hops *= 2
            nbytes = operation.given[0].nbytes
        return hops * weather.latency_s + hops / self.size * nbytes / weather.rate

    def _complete(self, operation: _Operation) -> None:
        if self.is_ended:
            return
        given = [operation.given[rank] for rank in sorted(operation.given)]
        if operation.kind == GATHER:
            made = torch.cat([each.flatten() for each in given])
        else:
            made = given[0].clone()
            for each in given[1:]:
                if operation.kind == MAXIMUM:
                    torch.maximum(made, each, out=made)
                else:
                    made += each
        for rank, result in operation.results.items():
            of_rank = made.view(self.size, -1)[rank] if operation.kind == SCATTER else made
            result.copy_(of_rank.view(result.shape))
        operation.is_done = True
        self.waiters.wake()


class GlooRank:
    """One rank's end of a group; as ``dist.ProcessGroupGloo``."""

    def __init__(self, group: _Group, rank: int, timeout_s: float) -> None:
        self._group = group
        self._rank = rank
        self._timeout_s = timeout_s
        self._number = 0
        group.processes.add(group.world.rank)

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> GlooWork:
        """Start the sum of a tensor over all ranks, or its maximum."""
        is_maximum = options is not None and options.reduceOp == dist.ReduceOp.MAX
        return self._enter(MAXIMUM if is_maximum else SUM, tensors[0], tensors[0])

    def _reduce_scatter_base(self, result: torch.Tensor, given: torch.Tensor) -> GlooWork:
        """Start the sum of each rank's part."""
        return self._enter(SCATTER, given, result)

    def _allgather_base(self, result: torch.Tensor, given: torch.Tensor) -> GlooWork:
        """Start the collection of all ranks' parts."""
        return self._enter(GATHER, given, result)

    def _enter(self, kind: str, given: torch.Tensor, result: torch.Tensor) -> GlooWork:
        group = self._group
        group.world.perhaps_switch()
        if group.is_ended:
            raise RuntimeError(CLOSED)
        operation = group.enter(self._number, self._rank, kind, given, result)
        self._number += 1
        return GlooWork(group, operation, self._timeout_s)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> GlooWork:
        """Nothing is ever sent: a wait that times out closes the group's connections."""
        return GlooWork(self._group, _Operation(), self._timeout_s)

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()


class GlooWork:
    """As the work of ``dist.ProcessGroupGloo``."""

    def __init__(self, group: _Group, operation: _Operation, timeout_s: float) -> None:
        self._group = group
        self._operation = operation
        self._timeout_s = timeout_s

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; RuntimeError when the group has ended, or after its time."""
        group = self._group
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        is_settled = group.waiters.wait_until(
            lambda: self._operation.is_done or group.is_ended, limit_s, "the library's all-reduce"
        )
        if self._operation.is_done:
            return True
        if is_settled:
            raise RuntimeError(CLOSED)
        group.end()
        raise RuntimeError("Timed out waiting for the collective [simulated]")
