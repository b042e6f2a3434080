"""Many seeds on all processors."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.campaign import Campaign

STRETCH = 50
"""Seeds that a process takes at a time."""

GARBAGE = 100_000
"""New objects until Python looks for cycles again: as many as a few executions leave."""


@dataclass
class Stretch:
    """What became of some seeds."""

    executions: int = 0
    steps: int = 0
    failing: list[tuple[Any, str]] = field(default_factory=list)


def swarm(campaign: Campaign, seeds: range, processes: int, end_s: float) -> Iterator[Stretch]:
    """Execute the seeds; begin no more after ``end_s`` (``time.monotonic()``)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare) as pool:
        running = [
            pool.submit(run_stretch, campaign, seeds[first : first + STRETCH], end_s)
            for first in range(0, len(seeds), STRETCH)
        ]
        for done in as_completed(running):
            yield done.result()


def _prepare() -> None:
    """A process of a swarm: what it has imported, torch most of all, is never looked through."""
    be_quiet()
    gc.freeze()
    gc.set_threshold(GARBAGE)


def be_quiet() -> None:
    """What jobs log of their faults is not to be shown; in this whole process."""
    logging.disable(logging.CRITICAL)


def run_stretch(campaign: Campaign, seeds: range, end_s: float) -> Stretch:
    """Execute some seeds in this process."""
    stretch = Stretch()
    for seed in seeds:
        if time.monotonic() > end_s:
            break
        execution = campaign.execute(campaign.draw(seed))
        stretch.executions += 1
        stretch.steps += execution.steps
        if execution.problems:
            stretch.failing.append((execution.plan, execution.summary[:600]))
    return stretch
