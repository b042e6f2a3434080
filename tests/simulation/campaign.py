"""Campaigns: kinds of executions, how one is drawn from a seed, executed, and made smaller."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.simulation import execution, plan, shrink
from tests.simulation.elastic import execution as elastic_execution
from tests.simulation.elastic import plan as elastic_plan
from tests.simulation.executed import Executed
from tests.simulation.plan import KINDS, Kind

MOST_TRIES = 200
"""Executions in which a failing plan is made smaller."""

ELASTIC = "elastic"


@dataclass(frozen=True)
class Campaign:
    """What a swarm needs to know; it travels to other processes."""

    draw: Callable[[int], Any]
    execute: Callable[[Any], Executed]
    smaller: Callable[[Any], Iterator[Any]]
    read: Callable[[str], Any]


def allreduces(kinds: tuple[Kind, ...] = KINDS) -> Campaign:
    """Executors, modes, OptiReduce and pipelines, of a group that ends with its first failure."""
    return Campaign(
        draw=functools.partial(plan.drawn, kinds=kinds),
        execute=execution.execute,
        smaller=shrink.smaller,
        read=plan.read,
    )


def elastic() -> Campaign:
    """Groups of replicas that go on without those that die, and take in those that come back."""
    return Campaign(
        draw=elastic_plan.drawn,
        execute=elastic_execution.execute,
        smaller=elastic_plan.smaller,
        read=elastic_plan.read,
    )


def shrunk(campaign: Campaign, failing: Any) -> Any:
    """A smaller plan that fails, too; tries each way of making it smaller until none works."""
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in campaign.smaller(failing):
            tries += 1
            if tries > MOST_TRIES:
                return failing
            if campaign.execute(candidate).problems:
                failing = candidate
                is_smaller = True
                break
    return failing
