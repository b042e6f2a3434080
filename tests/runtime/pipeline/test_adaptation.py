"""A link turns slow in mid-run: all ranks change the schedule at one step, gradients stay right."""

from __future__ import annotations

from typing import Any

import msgspec
import torch.distributed as dist

from runtime.pipeline import Adaptation, Faults, Pipeline, Sensitivity, both_ways
from tests.runtime.pipeline.models import loss_fn, model
from tests.runtime.pipeline.test_gradients import (
    MICROBATCHES,
    RANKS,
    eager,
    matches,
    schedule,
    start,
)
from tests.runtime.spawning import spawn, values
from tests.verify.pipeline.documents import one_f_one_b, zero_bubble
from verify.pipeline import Instance, PipelineSchedule, timeline

SLOW_FROM, STEPS = 4, 14
FAULTS = Faults(both_ways(0, 1, latency_s=0.08, first_step=SLOW_FROM))
COARSE = Sensitivity(least_s=0.03)


def better_of_two(measured: Instance, current: PipelineSchedule) -> PipelineSchedule:
    """A planner that knows two orders."""
    plans = [
        msgspec.structs.replace(schedule(programs), instance=measured)
        for programs in (zero_bubble(RANKS, MICROBATCHES), eager())
    ]
    return min(plans, key=lambda plan: max(bar.end for bar in timeline(plan)))


def another_size(measured: Instance, current: PipelineSchedule) -> PipelineSchedule:
    """A planner that makes schedules which can't take the place of the one that runs."""
    return schedule(one_f_one_b(RANKS, 2 * MICROBATCHES), 2 * MICROBATCHES)


def _adapting(rank: int, size: int, store: dist.Store) -> list[dict[str, Any]]:
    start(rank, size, store)
    found = []
    for planner, steps in ((better_of_two, STEPS), (another_size, STEPS - 3)):
        blocks, plan = model(RANKS), schedule(zero_bubble(RANKS, MICROBATCHES))
        how = Adaptation(planner=planner, sensitivity=COARSE)
        pipeline = Pipeline(
            blocks[rank], plan, loss_fn, timeout_s=60, faults=FAULTS, adaptation=how
        )
        right, digests = [], []
        for step in range(steps):
            right.append(matches(pipeline, blocks, step))
            digests.append(pipeline.record.digest)
        pipeline.close()
        found.append({"right": right, "digests": digests, "events": pipeline.events})
    return found


def test_a_slow_link_in_mid_run() -> None:
    by_rank = values(spawn(_adapting, RANKS))
    adapted = [ranks[0] for ranks in by_rank]
    for found in adapted:
        assert found["right"] == [True] * STEPS
        assert found["digests"] == adapted[0]["digests"]
        assert len(set(found["digests"])) == 2
        changed = [e.step for e in found["events"] if e.kind == "switched"]
        assert len(changed) == 1
        assert found["digests"].index(found["digests"][-1]) == changed[0] > SLOW_FROM
    events = adapted[0]["events"]
    link, planned, proposed, switched = (
        next(e for e in events if e.kind == kind)
        for kind in ("link", "planned", "proposed", "switched")
    )
    assert "0-1 became slow" in link.text
    assert SLOW_FROM < link.step <= planned.step < proposed.step < switched.step
    # a schedule that can't take the other's place is not even proposed, and the run goes on
    refused = [ranks[1] for ranks in by_rank]
    for found in refused:
        assert found["right"] == [True] * (STEPS - 3)
        assert len(set(found["digests"])) == 1
    kept = [e.text for e in refused[0]["events"] if e.kind == "kept"]
    assert any("neither can change between steps" in text for text in kept), refused[0]["events"]
