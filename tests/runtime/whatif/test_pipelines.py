"""Pipelines from recordings: their times are found, and plans are proved to take what is said."""

from __future__ import annotations

import json
import random

import pytest
import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from latecomer.runtime.whatif.inputs import read_recorded
from latecomer.runtime.whatif.pipeline_plans import advise
from latecomer.runtime.whatif.pipeline_spans import FORMAT, read_spans
from latecomer.runtime.whatif.stage_times import stage_times
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from latecomer.verify.pipeline import check, read
from tests.docs.sessions import ROOT
from tests.runtime.spawning import default_group, on_ranks, together

ST = ROOT / "examples/pipelines/ST.json"
STAGES = 3
MICROBATCHES = 5
FORWARD_S = (0.010, 0.020, 0.015)
BACKWARD_S = (0.030, 0.040, 0.020)
MESSAGE_S = (0.004, 0.002)


def one_f_one_b():
    """By stage its actions in order: an order of the test's own."""
    for stage in range(STAGES):
        ahead = STAGES - stage
        order = [("F", microbatch) for microbatch in range(ahead)]
        for microbatch in range(MICROBATCHES):
            order.append(("B", microbatch))
            if microbatch + ahead < MICROBATCHES:
                order.append(("F", microbatch + ahead))
        yield order


def simulated(dice, jitter=0.0):
    """The spans of a step, each action as soon as its message and its rank allow it."""
    orders = [list(order) for order in one_f_one_b()]
    end_s = {}
    free_s = [0.0] * STAGES
    spans = []
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, microbatch = order[0]
                needs = [(stage - 1, "F")] if kind == "F" else [(stage + 1, "B"), (stage, "F")]
                ready_s = free_s[stage]
                known = True
                for other, what in needs:
                    if not 0 <= other < STAGES:
                        continue
                    if (other, what, microbatch) not in end_s:
                        known = False
                        break
                    message_s = 0.0 if other == stage else MESSAGE_S[min(other, stage)]
                    ready_s = max(ready_s, end_s[other, what, microbatch] + message_s)
                if not known:
                    break
                took_s = (FORWARD_S if kind == "F" else BACKWARD_S)[stage]
                took_s *= 1 + dice.uniform(0, jitter)
                spans.append([stage, kind, microbatch, ready_s, took_s])
                free_s[stage] = end_s[stage, kind, microbatch] = ready_s + took_s
                order.pop(0)
    return spans, max(free_s)


def document(steps):
    return {
        "format": FORMAT,
        "version": 1,
        "source": "a model",
        "license": "",
        "rank_of": list(range(STAGES)),
        "microbatches": MICROBATCHES,
        "unit": "s",
        "steps": [{"spans": spans} for spans in steps],
    }


def written(tmp_path, steps):
    path = tmp_path / "pipeline.json"
    path.write_text(json.dumps(document(steps)))
    return path


@pytest.mark.parametrize("seed", range(5))
def test_times_messages_and_the_step_are_found(tmp_path, seed):
    dice = random.Random(seed)
    made = [simulated(dice, jitter=0.02) for _ in range(9)]
    recorded = read_spans(written(tmp_path, [spans for spans, _ in made]))
    times = stage_times(recorded)
    assert times.forward_s == pytest.approx(FORWARD_S, rel=0.02)
    assert times.backward_s == pytest.approx(BACKWARD_S, rel=0.02)
    assert times.message_s == pytest.approx(MESSAGE_S, rel=0.02)
    advice = advise(recorded)
    assert advice.model_s == pytest.approx(times.traced_s, rel=0.02)
    assert advice.memory == (3, 2, 1)
    assert advice.share_is_assumed


def test_the_planned_schedule_is_written_and_takes_what_is_said(tmp_path):
    schedule = tmp_path / "planned.json"
    advice = advise(read_spans(ST), schedule=schedule)
    within, beyond, alike, _ = advice.plans
    report = check(read(schedule))
    assert report.verdict is Verdict.PROVED
    assert report.measures.makespan * 1e-6 == pytest.approx(within.step_s, abs=2e-6)
    assert all(
        peak <= limit
        for peak, limit in zip(report.measures.peak_memory, advice.memory, strict=True)
    )
    # the study: 2,017 ms by the model, 1,771 within the memory of 1F1B, 1,584 to 1,649 without
    assert advice.model_s == pytest.approx(2.017, rel=0.005)
    assert within.step_s == pytest.approx(1.771, rel=0.005)
    assert 1.58 < beyond.step_s < 1.65
    assert alike.less == pytest.approx(0.15, abs=0.01)


def test_halves_that_were_recorded_count_as_they_are(tmp_path):
    spans, _ = simulated(random.Random(1))
    halves = []
    for stage, kind, microbatch, start_s, took_s in spans:
        if kind == "B":
            halves.append([stage, "I", microbatch, start_s, 0.6 * took_s])
            halves.append([stage, "W", microbatch, start_s + 0.6 * took_s, 0.4 * took_s])
        else:
            halves.append([stage, kind, microbatch, start_s, took_s])
    advice = advise(read_spans(written(tmp_path, [halves])))
    assert advice.weight_share == pytest.approx(0.4)
    assert not advice.share_is_assumed


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda spans: spans.pop(), "must be FB or FIW"),
        (lambda spans: spans.append(spans[0]), "twice"),
        (lambda spans: spans.append([STAGES, "F", 0, 0.0, 1.0]), "a stage beyond"),
        (lambda spans: spans.__setitem__(0, [0, "X", 0, 0.0, 1.0]), "no spans of a pipeline"),
    ],
)
def test_what_is_not_whole_is_one_clear_line(tmp_path, change, problem):
    spans, _ = simulated(random.Random(1))
    change(spans)
    with pytest.raises(FormatError, match=problem):
        read_spans(written(tmp_path, [spans]))


class Busy(torch.nn.Module):
    """A layer that keeps the processor for a while."""

    def __init__(self, products):
        super().__init__()
        self.products = products
        self.weight = torch.nn.Parameter(torch.eye(64))

    def forward(self, rows):
        for _ in range(self.products):
            rows = rows @ self.weight
        return rows


@on_ranks(2)
def test_a_pipeline_of_torchs_own_is_found_in_its_traces(rank, size, store, tmp_path):
    torch.set_num_threads(1)
    default_group("gloo", rank, size, store)
    stage = PipelineStage(Busy(20 * (1 + rank)), rank, size, torch.device("cpu"))
    runs = _PipelineScheduleRuntime(
        [stage], 4, loss_fn=lambda output, target: (output - target).square().mean()
    )
    orders = tmp_path / f"{rank}.csv"
    orders.write_text("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n")
    runs._load_csv(str(orders))
    rows = torch.randn(256, 64)

    def step():
        if rank == 0:
            runs.step(rows)
        else:
            runs.step(target=rows, losses=[])

    step()
    with torch.profiler.profile() as profiler:
        for _ in range(3):
            step()
    profiler.export_chrome_trace(str(tmp_path / f"rank{rank}.json"))
    together(store, rank, size, "written")
    if rank == 0:
        recorded = read_recorded(sorted(tmp_path.glob("rank*.json")))
        pipeline = recorded.pipeline
        assert (pipeline.stages, pipeline.microbatches, len(pipeline.steps)) == (2, 4, 3)
        times = stage_times(pipeline)
        assert times.forward_s[1] > times.forward_s[0]
        order = [f"{kind}{microbatch}" for _, kind, microbatch in times.orders[0]]
        assert order == ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"]
        assert advise(pipeline).plans[0].step_s > 0
    together(store, rank, size, "read")


def test_on_one_host_collectives_that_do_not_match_keep_no_pipeline_from_being_found(tmp_path):
    """Its ranks have one clock, so nothing has to be aligned by them."""
    actions = {0: ["0F0", "0B0"], 1: ["1F0", "1B0"]}
    collectives = {0: ["gloo:all_reduce"], 1: ["gloo:all_reduce", "gloo:all_gather"]}
    for rank in (0, 1):
        names = [f"PP:{action}" for action in actions[rank]] + collectives[rank]
        events = [
            {"name": name, "cat": "user_annotation", "ph": "X", "ts": 1000.0 * at, "dur": 900.0}
            for at, name in enumerate(names)
        ]
        trace = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": rank, "world_size": 2},
            "host_name": "node7",
            "traceEvents": events,
        }
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    recorded = read_recorded([tmp_path])
    assert recorded.collectives is None
    assert (recorded.pipeline.stages, recorded.pipeline.microbatches) == (2, 1)
    assert recorded.pipeline.has_links
