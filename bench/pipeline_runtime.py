"""Pipelines over a slow link: time per step by schedule and transport, planned against measured.

Emulated compute: every F, I and W is a sleep of MS milliseconds, so four stages need no four cores;
all else (PyTorch's runtime, links, threads, store) is real. One link is delayed by 0, 1, 2 and 4
forwards, by injection. The schedules take turns step by step in the same processes. ``in line``:
the sender's compute waits until its message is there; ``own threads``: it goes on (the product).
Then the same with real compute on two stages, and how long it takes to adapt.
"""

from __future__ import annotations

import multiprocessing as mp
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from latecomer.runtime.pipeline import Adaptation, Faults, LinkFault, Pipeline, both_ways
from latecomer.runtime.pipeline.demo import Block
from latecomer.runtime.pipeline.demo import loss_fn as next_token
from latecomer.synth.pipeline.plan import plan
from latecomer.synth.pipeline.problem import make
from latecomer.verify.pipeline import Instance, Link, PipelineSchedule, check, uniform
from latecomer.verify.pipeline.measured_picture import observed

STAGES = 4
MICROBATCHES = 12
MS = 12
LINK = (1, 2)
DELAYS = (0, 1, 2, 4)
REPEATS = 3
TIMEOUT_S = 60.0
SEQUENCES = 48
LENGTH = 24


class Sleep(torch.autograd.Function):
    """Takes as long as F forward and as long as I backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """F."""
        time.sleep(MS / 1e3)
        return x + weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """I."""
        time.sleep(MS / 1e3)
        return gradient, gradient


class Sleeper(nn.Module):
    """A stage that sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep."""
        return Sleep.apply(x, self.weight)


def sleeping_weight() -> Callable[..., None]:
    return lambda: time.sleep(MS / 1e3)


def delayed_instance(stages: int, microseconds: int, delay: float) -> Instance:
    """All durations alike; ``delay`` forwards on the link."""
    even = uniform(stages, microseconds, microseconds, microseconds)
    link = Link(link_of(stages), round(delay * microseconds))
    return msgspec.structs.replace(even, links=(link,))


def link_of(stages: int) -> tuple[int, int]:
    return LINK if stages > max(LINK) else (0, 1)


def schedules(stages: int, microseconds: int, delay: float) -> dict[str, PipelineSchedule]:
    """The three that take turns."""
    instance = delayed_instance(stages, microseconds, delay)
    problem = make(MICROBATCHES, instance, range(stages))
    return {
        "1F1B": plan(problem, "1f1b").schedule,
        "zero-bubble": plan(problem, "zero-bubble").schedule,
        "adapted": plan(problem, "heuristic").schedule,
    }


def makespan_ms(schedule: PipelineSchedule, instance: Instance) -> float:
    measures = check(msgspec.structs.replace(schedule, instance=instance, meta={})).measures
    assert measures is not None
    return measures.makespan / 1e3


def in_line(instance: Instance) -> Instance:
    """What in-line sends make of an instance: who sends over the link is held up as long."""
    (link,) = instance.links
    low, high = link.between
    forward = list(instance.forward)
    backward = list(instance.backward)
    forward[low] += link.latency
    backward[high] += link.latency
    fused = [i + w for i, w in zip(instance.backward, instance.weight, strict=True)]
    fused[high] += link.latency
    return msgspec.structs.replace(
        instance, forward=tuple(forward), backward=tuple(backward), fused=tuple(fused), links=()
    )


def _delayed(stages: int, order: list[tuple[int, str]], microseconds: int) -> list[LinkFault]:
    """The faults of a run in which each step has a delay of its own."""
    low, high = link_of(stages)
    faults: list[LinkFault] = []
    for step, (delay, _) in enumerate(order):
        latency_s = delay * microseconds / 1e6
        faults += both_ways(low, high, latency_s=latency_s, first_step=step, last_step=step)
    return faults


def _turns(rank: int, stages: int, real: bool, blocking: bool, microseconds: int) -> list[Any]:
    """Steps by all schedules and delays in turn: (delay, name, record)."""
    plans = {delay: schedules(stages, microseconds, delay) for delay in DELAYS}
    order = [(0, "1F1B")]  # the first step warms up
    for _ in range(REPEATS):
        for delay in DELAYS:
            order += [(delay, name) for name in plans[delay]]

    torch.manual_seed(0)
    module: nn.Module = Block(rank == 0, rank == stages - 1) if real else Sleeper()
    pipeline = Pipeline(
        module,
        plans[0]["1F1B"],
        next_token if real else lambda output, target: output.mean(),
        timeout_s=TIMEOUT_S,
        faults=Faults(_delayed(stages, order, microseconds), blocking=blocking),
        dw_builder=None if real else sleeping_weight,
    )
    rows = SEQUENCES * MICROBATCHES
    if real:
        inputs = torch.zeros(rows, LENGTH, dtype=torch.long)
        target = torch.zeros(rows, LENGTH, dtype=torch.long)
    else:
        inputs = torch.zeros(rows, 256)
        target = torch.zeros(rows)
    records = []
    for delay, name in order:
        pipeline.switch(plans[delay][name])
        _step(pipeline, rank, stages, inputs, target)
        records.append((delay, name, pipeline.record))
    pipeline.close()
    return records[1:]


def _step(
    pipeline: Pipeline, rank: int, stages: int, inputs: torch.Tensor, target: torch.Tensor
) -> None:
    """One step: the first stage has the inputs, the last one the target."""
    own_inputs = [inputs] if rank == 0 else []
    own_target = target if rank == stages - 1 else None
    pipeline.step(*own_inputs, target=own_target)


def _adapting(rank: int) -> list[Any]:
    """A link turns slow in step 4 and recovers in step 14: this rank's events and step times."""
    low, high = LINK
    delays = both_ways(low, high, latency_s=4 * MS / 1e3, first_step=4, last_step=13)
    pipeline = Pipeline(
        Sleeper(),
        schedules(STAGES, 1000 * MS, 0)["zero-bubble"],
        lambda output, target: output.mean(),
        timeout_s=TIMEOUT_S,
        faults=Faults(delays),
        adaptation=Adaptation(),
        dw_builder=sleeping_weight,
    )

    rows = SEQUENCES * MICROBATCHES
    times = []
    for _ in range(22):
        _step(pipeline, rank, STAGES, torch.zeros(rows, 256), torch.zeros(rows))
        times.append((pipeline.record.began_s, pipeline.record.ended_s))
    pipeline.close()
    return [times, pipeline.events]


def _rank(rank: int, stages: int, port: int, job: str, out: Any) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", port, None, False, limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=stages)
    if job == "adapting":
        result = _adapting(rank)
    elif job == "real":
        result = _turns(rank, stages, real=True, blocking=False, microseconds=REAL_US)
    else:
        in_line_sends = job == "in line"
        result = _turns(rank, stages, real=False, blocking=in_line_sends, microseconds=1000 * MS)
    out.put((rank, result))
    dist.destroy_process_group()


REAL_US = 5_000
"""The delay unit with real compute, about a forward."""


def spawn(stages: int, job: str) -> list[Any]:
    """The result of each rank."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["latecomer.runtime.pipeline"])
    limit = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    out = context.Queue()
    processes = []
    for rank in range(stages):
        arguments = (rank, stages, store.port, job, out)
        processes.append(context.Process(target=_rank, args=arguments, daemon=True))
    for process in processes:
        process.start()
    by_rank = dict(out.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    return [by_rank[rank] for rank in range(stages)]


Records = dict[int, Any]
"""Of one step, by rank."""
Steps = dict[tuple[int, str], list[Records]]
"""By delay and schedule, the records of each repeat."""


def _steps(of_ranks: list[Any]) -> Steps:
    """What the ranks recorded, each on its own, put together."""
    steps: Steps = {}
    for of_step in zip(*of_ranks, strict=True):
        delay, name, _ = of_step[0]
        records = {rank: record for rank, (_, _, record) in enumerate(of_step)}
        steps.setdefault((delay, name), []).append(records)
    return steps


def _step_ms(records: Records) -> float:
    """From the first span's begin to the last one's end on any rank."""
    spans = [span for record in records.values() for span in record.spans]
    began_s = min(span.began_s for span in spans)
    ended_s = max(span.ended_s for span in spans)
    return 1e3 * (ended_s - began_s)


def _report(
    steps_of: dict[str, Steps],
    stages: int,
    microseconds: int,
    nominal_too: bool,
) -> dict[tuple[str, str, int], float]:
    """The table; medians in ms by (schedule, transport, delay)."""
    print(f"{'schedule':<12} {'transport':<12}" + "".join(f"{f'{d} units':>24}" for d in DELAYS))
    medians: dict[tuple[str, str, int], float] = {}
    errors: dict[str, list[float]] = {"nominal": [], "measured": []}
    for name in ("1F1B", "zero-bubble", "adapted"):
        for way, steps in steps_of.items():
            cells = []
            for delay in DELAYS:
                schedule = schedules(stages, microseconds, delay)[name]
                instance = delayed_instance(stages, microseconds, delay)
                measured_ms = statistics.median(map(_step_ms, steps[delay, name]))
                medians[name, way, delay] = measured_ms

                predictions = []
                if nominal_too:
                    nominal_ms = makespan_ms(
                        schedule, in_line(instance) if way == "in line" else instance
                    )
                    errors["nominal"].append(measured_ms / nominal_ms - 1)
                    predictions.append(f"{nominal_ms:5.0f}")
                if way == "own threads":
                    fitted_ms = _fitted_ms(schedule, steps[delay, name])
                    errors["measured"].append(measured_ms / fitted_ms - 1)
                    predictions.append(f"{fitted_ms:5.0f}")
                cells.append(f"{measured_ms:7.0f} ({', '.join(predictions)})")
            print(f"{name:<12} {way:<12}" + "".join(f"{cell:>24}" for cell in cells))

    for basis, of_basis in errors.items():
        if of_basis:
            print(f"measured over predicted from {basis} durations and links: "
                  f"{min(of_basis):+.1%} to {max(of_basis):+.1%}")  # fmt: skip
    return medians


def _fitted_ms(schedule: PipelineSchedule, steps: list[Records]) -> float:
    """The makespan by the durations and links that were measured in each repeat; the median."""
    return statistics.median(
        makespan_ms(schedule, observed(schedule, records)) for records in steps
    )


def _circumstances(steps: Steps, stages: int) -> None:
    """What the model does not know beforehand: durations and links as measured without delay."""
    schedule = schedules(stages, 1000, 0)["zero-bubble"]
    first_repeat = steps[0, "zero-bubble"][0]
    measured = observed(schedule, first_repeat)
    links = [link.latency / 1e3 for link in measured.links]
    print(
        f"measured without delay: F {[f / 1e3 for f in measured.forward]}, "
        f"I {[i / 1e3 for i in measured.backward]}, W {[w / 1e3 for w in measured.weight]}, "
        f"links {links} ms"
    )


def emulated() -> None:
    """Four stages that sleep."""
    steps_of = {way: _steps(spawn(STAGES, way)) for way in ("in line", "own threads")}
    print(
        f"{STAGES} stages, {MICROBATCHES} microbatches, F = I = W = {MS} ms (slept), link "
        f"{LINK[0]}-{LINK[1]} delayed by units of {MS} ms; ms per step, median of {REPEATS}, "
        "(predicted from nominal, from measured durations and links)"
    )
    medians = _report(steps_of, STAGES, 1000 * MS, nominal_too=True)
    _circumstances(steps_of["own threads"], STAGES)
    best = "adapted", "own threads"
    for name, way in medians_of(medians):
        if (name, way) != best:
            ratios = [medians[name, way, d] / medians[*best, d] for d in DELAYS]
            text = "  ".join(f"{d}: {ratio:.2f}" for d, ratio in zip(DELAYS, ratios, strict=True))
            print(f"{name}, {way}, over {', '.join(best)}:  {text}")


def medians_of(medians: dict[tuple[str, str, int], float]) -> list[tuple[str, str]]:
    """Schedules and transports, each once."""
    return list(dict.fromkeys((name, way) for name, way, _ in medians))


def real() -> None:
    """Two stages that compute."""
    steps = _steps(spawn(2, "real"))
    print(
        f"\n2 stages, {MICROBATCHES} microbatches, real compute on one thread each, link 0-1 "
        f"delayed by units of {REAL_US / 1e3:g} ms; planned for F = I = W = one unit; "
        "ms per step (predicted from measured durations and links)"
    )
    _report({"own threads": steps}, 2, REAL_US, nominal_too=False)
    _circumstances(steps, 2)


def adapting() -> None:
    """How long a change takes."""
    (times, events), *_ = spawn(STAGES, "adapting")
    print("\nadapting: the link is slow (4 F) in steps 4 to 13; ms per step on rank 0")
    print(" ".join(f"{1e3 * (end - begin):.0f}" for begin, end in times))
    for event in events:
        print(f"  step {event.step}: {event.kind}: {event.text}")
    changed = next(event for event in events if event.kind == "switched")
    noticed = next(event for event in events if event.kind == "link")
    print(
        f"from the first slow step to the new schedule: {changed.step - 4} steps, "
        f"{1e3 * (changed.at_s - times[4][0]):.0f} ms; of these, from noticing it: "
        f"{1e3 * (changed.at_s - noticed.at_s):.0f} ms"
    )


if __name__ == "__main__":
    parts = {"emulated": emulated, "real": real, "adapting": adapting}
    for part in sys.argv[1:] or parts:
        parts[part]()
