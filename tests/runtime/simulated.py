"""Tests on simulated hosts: what each rank does, for some seeds, with faults at named places.

A failure says its seed, and the same seed is the same execution.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from latecomer.runtime.host import host
from latecomer.runtime.simulation.job import Body, Job, Outcome
from latecomer.runtime.simulation.network import Weather
from latecomer.runtime.work import Observer
from latecomer.verify.errors import RankFailure

SEEDS = range(int(os.environ.get("LATECOMER_SEEDS", "5")))
LONGEST_S = 600.0  # of a job, in its own time
NEVER_S = 1e5  # from which nothing comes back


def on_hosts(
    ranks: int,
    body: Callable[[Job], Body],
    *,
    victims: Iterable[int] = (),
    seeds: Iterable[int] = SEEDS,
    weather: Callable[[], Weather] = Weather,
) -> list[dict[int, Outcome]]:
    """Run what ``body`` makes for a job on all ranks, a job for each seed; what became of them.

    AssertionError, with the seed, if a rank that is no victim is ended by an exception or not over.
    """
    results = []
    for seed in seeds:
        job = Job(ranks, seed, weather(), pause=0.002)
        with known_to_torch(job):
            outcomes = job.run(body(job), longest_s=LONGEST_S)
        for rank in set(range(ranks)) - set(victims):
            outcome = outcomes[rank]
            if outcome.error is not None:
                raise AssertionError(f"seed {seed}, rank {rank}") from outcome.error
            assert outcome.is_over, f"seed {seed}: rank {rank} waits: {job.unfinished.get(rank)}"
        results.append(outcomes)
    return results


@contextlib.contextmanager
def known_to_torch(job: Job) -> Iterator[None]:
    """Within the block, each rank of a job is the one of its number to torch.distributed, too.

    And torch computes on one thread: on a busy machine tiny tensors wait long for a second one.
    """

    def rank(group: object = None) -> int:
        return job.world.rank

    with (
        mock.patch.object(dist, "get_rank", rank),
        mock.patch.object(dist, "get_world_size", return_value=job.ranks),
        _one_thread(),
    ):
        yield


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def die(job: Job, rank: int) -> None:
    """The current thread's rank dies here."""
    job.kill(rank)
    host.sleep(NEVER_S)


def stop(job: Job, rank: int, for_s: float) -> None:
    """The current thread's rank stops here for a while, with all its threads."""
    job.stop(rank, for_s)
    host.sleep(1e-6)


def blamed_by(engine: Any, elements: int, operations: int) -> tuple[int, ...]:
    """Whom the failure names that ends one of so many operations; the engine is closed."""

    def go_on() -> None:
        for _ in range(operations):
            engine.submit(torch.ones(elements)).wait()

    with pytest.raises(RankFailure) as failed:
        go_on()
    engine.close()
    return tuple(failed.value.ranks)


class Fault(Observer):
    """Does something drastic at a step: (operation, phase, round)."""

    def __init__(self, act: Callable[[], Any], step: tuple[int, str, int]) -> None:
        self._act = act
        self._step = step

    def step_begins(self, operation: int, phase: str, round: int) -> None:
        if (operation, phase, round) == self._step:
            self._act()
