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

from runtime.pipeline import Adaptation, Faults, LinkFault, Pipeline, both_ways
from runtime.pipeline.demo import Block
from runtime.pipeline.demo import loss_fn as next_token
from synth.pipeline.plan import plan
from synth.pipeline.problem import make
from verify.pipeline import Instance, Link, PipelineSchedule, check, uniform
from verify.pipeline.measured_picture import observed

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


def instance(stages: int, microseconds: int, delay: float) -> Instance:
    """All durations alike; ``delay`` forwards on the link."""
    even = uniform(stages, microseconds, microseconds, microseconds)
    link = Link(link_of(stages), round(delay * microseconds))
    return msgspec.structs.replace(even, links=(link,))


def link_of(stages: int) -> tuple[int, int]:
    return LINK if stages > max(LINK) else (0, 1)


def schedules(stages: int, microseconds: int, delay: float) -> dict[str, PipelineSchedule]:
    """The three that take turns."""
    here = instance(stages, microseconds, delay)
    problem = make(MICROBATCHES, here, range(stages))
    return {
        "1F1B": plan(problem, "1f1b").schedule,
        "zero-bubble": plan(problem, "zero-bubble").schedule,
        "adapted": plan(problem, "heuristic").schedule,
    }


def makespan_ms(schedule: PipelineSchedule, here: Instance) -> float:
    found = check(msgspec.structs.replace(schedule, instance=here, meta={})).measures
    assert found is not None
    return found.makespan / 1e3


def in_line(here: Instance) -> Instance:
    """What in-line sends make of an instance: who sends over the link is held up as long."""
    (link,) = here.links
    low, high = link.between
    forward = list(here.forward)
    backward = list(here.backward)
    forward[low] += link.latency
    backward[high] += link.latency
    fused = tuple(
        i + w + (link.latency if s == high else 0)
        for s, (i, w) in enumerate(zip(here.backward, here.weight, strict=True))
    )
    return msgspec.structs.replace(
        here, forward=tuple(forward), backward=tuple(backward), fused=fused, links=()
    )


def _delayed(stages: int, order: list[tuple[int, str]], microseconds: int) -> list[LinkFault]:
    found: list[LinkFault] = []
    for step, (delay, _) in enumerate(order):
        latency_s = delay * microseconds / 1e6
        found += both_ways(*link_of(stages), latency_s=latency_s, first_step=step, last_step=step)
    return found


def _turns(rank: int, stages: int, real: bool, blocking: bool, microseconds: int) -> list[Any]:
    """Steps by all schedules and delays in turn: (delay, name, record)."""
    plans = {delay: schedules(stages, microseconds, delay) for delay in DELAYS}
    order = [(0, "1F1B")] + [(d, n) for _ in range(REPEATS) for d in DELAYS for n in plans[d]]
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
    inputs = torch.zeros(rows, LENGTH, dtype=torch.long) if real else torch.zeros(rows, 256)
    target = torch.zeros(rows, LENGTH, dtype=torch.long) if real else torch.zeros(rows)
    found = []
    for number, (delay, name) in enumerate(order):
        pipeline.switch(plans[delay][name])
        first = rank == 0
        last = rank == stages - 1
        pipeline.step(*([inputs] if first else []), target=target if last else None)
        if number:  # the first step warms up
            found.append((delay, name, pipeline.record))
    pipeline.close()
    return found


def _adapting(rank: int) -> list[Any]:
    """A link turns slow in step 4 and recovers in step 14: this rank's events and step times."""
    delays = both_ways(*LINK, latency_s=4 * MS / 1e3, first_step=4, last_step=13)
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
        first = rank == 0
        last = rank == STAGES - 1
        inputs = [torch.zeros(rows, 256)] if first else []
        pipeline.step(*inputs, target=torch.zeros(rows) if last else None)
        times.append((pipeline.record.began_s, pipeline.record.ended_s))
    pipeline.close()
    return [times, pipeline.events]


def _rank(rank: int, size: int, port: int, job: str, out: Any) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", port, None, False, limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    if job == "adapting":
        out.put((rank, _adapting(rank)))
    elif job == "real":
        out.put((rank, _turns(rank, size, True, False, REAL_US)))
    else:
        out.put((rank, _turns(rank, size, False, job == "in line", 1000 * MS)))
    dist.destroy_process_group()


REAL_US = 5_000
"""The delay unit with real compute, about a forward."""


def spawn(size: int, job: str) -> list[Any]:
    """What each rank found."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["runtime.pipeline"])
    limit = timedelta(seconds=TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    out = context.Queue()
    arguments = (size, store.port, job, out)
    processes = [
        context.Process(target=_rank, args=(r, *arguments), daemon=True) for r in range(size)
    ]
    for process in processes:
        process.start()
    found = dict(out.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(size)]


def _steps(told: list[Any]) -> dict[tuple[int, str], list[dict[int, Any]]]:
    """(delay, schedule) -> per repeat the records of all ranks."""
    found: dict[tuple[int, str], list[dict[int, Any]]] = {}
    for rows in zip(*told, strict=True):
        records = {rank: record for rank, (_, _, record) in enumerate(rows)}
        found.setdefault(rows[0][:2], []).append(records)
    return found


def _took_ms(records: dict[int, Any]) -> float:
    spans = [span for record in records.values() for span in record.spans]
    return 1e3 * (max(s.ended_s for s in spans) - min(s.began_s for s in spans))


def _report(
    found: dict[str, dict[tuple[int, str], list[dict[int, Any]]]],
    stages: int,
    microseconds: int,
    nominal_too: bool,
) -> dict[tuple[str, str, int], float]:
    """The table; medians in ms by (schedule, transport, delay)."""
    print(f"{'schedule':<12} {'transport':<12}" + "".join(f"{f'{d} units':>24}" for d in DELAYS))
    medians: dict[tuple[str, str, int], float] = {}
    off: dict[str, list[float]] = {"nominal": [], "measured": []}
    for name in ("1F1B", "zero-bubble", "adapted"):
        for way, steps in found.items():
            cells = []
            for delay in DELAYS:
                plan_of = schedules(stages, microseconds, delay)[name]
                here = instance(stages, microseconds, delay)
                took = statistics.median(map(_took_ms, steps[delay, name]))
                nominal = makespan_ms(plan_of, in_line(here) if way == "in line" else here)
                cell = f"{took:7.0f} ("
                if nominal_too:
                    off["nominal"].append(took / nominal - 1)
                    cell += f"{nominal:5.0f}, "
                if way == "own threads":
                    fitted = statistics.median(
                        makespan_ms(plan_of, observed(plan_of, records))
                        for records in steps[delay, name]
                    )
                    off["measured"].append(took / fitted - 1)
                    cell += f"{fitted:5.0f}"
                cells.append(cell.rstrip(", ") + ")")
                medians[name, way, delay] = took
            print(f"{name:<12} {way:<12}" + "".join(f"{cell:>24}" for cell in cells))
    for what, values in off.items():
        if not values:
            continue
        low = min(values)
        high = max(values)
        print(f"measured over predicted from {what} durations and links: {low:+.1%} to {high:+.1%}")
    return medians


def _circumstances(steps: dict[tuple[int, str], list[dict[int, Any]]], stages: int) -> None:
    """What the model does not know beforehand: durations and links as measured without delay."""
    plan_of = schedules(stages, 1000, 0)["zero-bubble"]
    (records, *_) = steps[0, "zero-bubble"]
    seen = observed(plan_of, records)
    links = [link.latency / 1e3 for link in seen.links]
    print(
        f"measured without delay: F {[f / 1e3 for f in seen.forward]}, "
        f"I {[i / 1e3 for i in seen.backward]}, W {[w / 1e3 for w in seen.weight]}, "
        f"links {links} ms"
    )


def emulated() -> None:
    """Four stages that sleep."""
    found = {way: _steps(spawn(STAGES, way)) for way in ("in line", "own threads")}
    print(
        f"{STAGES} stages, {MICROBATCHES} microbatches, F = I = W = {MS} ms (slept), link "
        f"{LINK[0]}-{LINK[1]} delayed by units of {MS} ms; ms per step, median of {REPEATS}, "
        "(predicted from nominal, from measured durations and links)"
    )
    medians = _report(found, STAGES, 1000 * MS, True)
    _circumstances(found["own threads"], STAGES)
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
    found = {"own threads": _steps(spawn(2, "real"))}
    print(
        f"\n2 stages, {MICROBATCHES} microbatches, real compute on one thread each, link 0-1 "
        f"delayed by units of {REAL_US / 1e3:g} ms; planned for F = I = W = one unit; "
        "ms per step (predicted from measured durations and links)"
    )
    _report(found, 2, REAL_US, False)
    _circumstances(found["own threads"], 2)


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
