"""The machines of a job: which ranks are on one, and how fast links inside and between them are.

``torchrun`` tells each rank how many ranks its machine has (``LOCAL_WORLD_SIZE``) and which machine
it is (``GROUP_RANK``), and numbers ranks machine by machine. Two-level schedules are for machines
with equally many ranks; where that is not so, or cannot be known, there are none.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from latecomer.runtime.executor.native import NativeAllReduce
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.cost_model import AlphaBeta, MachinesProfile

Sum = Callable[[torch.Tensor], object]  # sums a tensor in place; returns when that is done
MeasureCost = Callable[[Sum | None, float, float], AlphaBeta]
"""Alpha and beta of something that takes so many messages, and moves that share of the buffer.

Without something (None) this rank looks on while others measure."""

ALONE = 1  # ranks per machine where there are no machines to tell apart


def ranks_per_machine(group: StoreExchange) -> int:
    """How many ranks each of the group's machines has; :data:`ALONE` without such machines.

    Collective: all ranks come to the same number. RankFailure names ranks that did not join.
    """
    local_world_size = max(ALONE, _number("LOCAL_WORLD_SIZE"))
    machine = _number("GROUP_RANK")
    is_whole_job = _number("WORLD_SIZE") == group.world_size
    text_of_rank = group.all_gather("machine", f"{local_world_size} {machine} {is_whole_job}")

    if group.world_size % local_world_size or group.world_size == local_world_size:
        return ALONE
    for rank, text in text_of_rank.items():
        if text != f"{local_world_size} {rank // local_world_size} True":
            return ALONE
    return local_world_size


def _number(variable: str) -> int:
    """A variable of ``torchrun``; 0 where it is not set, or is no number."""
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0


def measure_machines(
    group: StoreExchange,
    ranks_per_machine: int,
    schedules: Mapping[str, Sum],
    measure: MeasureCost,
) -> MachinesProfile:
    """The native all-reduce inside and between machines, and ``schedules`` by name (collective).

    Raises:
        RankFailure: ranks that did not join in time.
        RuntimeError: Gloo's, which names no rank.
    """
    machine, local_rank = divmod(group.rank, ranks_per_machine)
    machines = group.world_size // ranks_per_machine

    inside = _place(group, f"machine {machine}", local_rank, ranks_per_machine)
    with _native(inside) as all_reduce:
        inside_cost = measure(all_reduce, *_ring(ranks_per_machine))

    # one rank of each machine, so that they do not share its network port; the others look on
    if local_rank == 0:
        between = _place(group, "between machines", machine, machines)
        with _native(between) as all_reduce:
            between_cost = measure(all_reduce, *_ring(machines))
    else:
        between_cost = measure(None, *_ring(machines))

    on_time = {name: measure(run, 1, 1) for name, run in schedules.items()}
    return MachinesProfile(ranks_per_machine, inside_cost, between_cost, on_time)


def _ring(ranks: int) -> tuple[float, float]:
    """Messages, and the share of the buffer, of a ring all-reduce, as native ones are taken."""
    hops = 2 * (ranks - 1)
    return hops, hops / ranks


def _place(group: StoreExchange, name: str, rank: int, world_size: int) -> StoreExchange:
    """This rank's place in a part of the group."""
    return dataclasses.replace(group.under(name), rank=rank, world_size=world_size)


@contextmanager
def _native(part: StoreExchange) -> Iterator[Sum]:
    """The native all-reduce of a part of the group, for as long as it is measured."""
    native = NativeAllReduce(part, ended=lambda work: None, failed=lambda text: None)
    try:
        yield native.run
    finally:
        native.close(part.timeout_s)
