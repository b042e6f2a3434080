"""Jobs on simulated clusters: against the lab, coarse against fine, and at up to 1,024 ranks.

    python -m bench.scale completion    8 simulated hosts: from a late rank's arrival to the end
    python -m bench.scale modes         the modes' steps there
    python -m bench.scale coarse        the coarse model beside whole executors, on 16 hosts
    python -m bench.scale traces [--ranks 64 256 1024] [--steps 25]
                                        three traces and a Pareto tail, all modes

``completion`` runs whole executors: every byte goes through the simulated ports, which are token
buckets as the lab's are, and a turn of a thread takes its time of the two processors that all
hosts of the lab share. That time is the one figure that is fitted, to all rows together. ``modes``
runs the coarse model, on ports of the rate that the lab's calibration found.

The lab's figures are those of docs/measurements/lab.md and auto.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from bench.lab import Network
from bench.lab.plan import burst_bytes
from latecomer import synth
from latecomer.runtime.executor.executor import Executor
from latecomer.runtime.executor.load import Verified, load
from latecomer.runtime.host import host
from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
from latecomer.runtime.policy.options import MODES, Mode
from latecomer.runtime.simulation.arrivals import (
    Arrivals,
    OfTrace,
    OneLate,
    Tails,
    read,
)
from latecomer.runtime.simulation.cluster import StepWork
from latecomer.runtime.simulation.comparison import (
    ModeResult,
    Setting,
    compare,
    run_mode,
)
from latecomer.runtime.simulation.job import Job
from latecomer.runtime.simulation.meeting import Store
from latecomer.runtime.simulation.network import Weather
from latecomer.synth.straggler.generate import generate
from latecomer.synth.units import format_bytes
from tests.simulation.execution import made_once

ARRIVALS = Path(__file__).parents[1] / "examples" / "arrivals"
HOSTS = 8
LATE = HOSTS - 1

# the lab: bench/lab/README.md, docs/measurements/lab.md
LAB_MBIT = 200.0
TCP_SHARE = 1448 / 1514  # of the bytes on the wire
LAB_SHARE = 0.939  # of a port's rate that its calibration found
LAB_LATENCY_S = 130e-6  # half of an idle round trip
LAB_PROCESSORS = 2
TURN_S = 3e-4  # of a processor: fitted to the lab's completions
PACKET = 1448

LAB_COMPLETION_MS = {  # by size: ring, tree, chosen k; and k
    2**12: (7.1, 4.0, 3.7, 2),
    2**14: (7.1, 4.7, 4.7, 3),
    2**16: (7.4, 8.4, 5.4, 7),
    2**18: (19.3, 33.4, 13.8, 14),
    2**20: (78.3, 132.7, 50.0, 28),
    2**24: (1246.4, 2119.1, 738.8, 56),
}
LAB_STEP_S: dict[str, dict[Mode, float]] = {  # docs/measurements/auto.md; native is plain DDP
    "persistent": {"native": 5.20, "static": 3.92, "predict": 3.95, "eager": 4.03, "auto": 3.93},
    "random": {"native": 5.17, "static": 5.70, "predict": 5.18, "eager": 4.00, "auto": 3.92},
    "tails": {"native": 3.42, "static": 4.01, "predict": 3.67, "eager": 3.54, "auto": 3.69},
    "none": {"native": 3.24, "static": 3.84, "predict": 3.25, "eager": 3.26, "auto": 3.26},
}
LAB_BUCKET = 14_000_000
LAB_BUCKETS = 3
LAB_COMPUTE_S = 0.1  # forward, backward, optimizer: fitted to plain DDP with no late rank


def completion_s(schedule: Verified, nbytes: int, weather: Weather, repeats: int = 3) -> float:
    """Whole executors: seconds from the late rank's arrival to the last result; the median."""
    job = Job(
        HOSTS,
        seed=1,
        weather=weather,
        switch=0.0,
        step_s=TURN_S,
        processors=LAB_PROCESSORS,
        most_steps=10**9,
    )
    arrived_s = [0.0] * repeats
    ended_s = [0.0] * repeats

    def body(rank: int, size: int, store: Store) -> None:
        executor = Executor([schedule], store, rank, size, timeout_s=600.0)  # type: ignore[arg-type]
        for number in range(repeats):
            if rank == LATE:  # all others have done what they can by then
                host.sleep(0.05 + 3 * nbytes / weather.rate)
            tensor = torch.full((nbytes // 4,), float(rank))
            arrived_s[number] = max(arrived_s[number], job.world.now_s)
            result = executor.submit(tensor).wait()
            ended_s[number] = max(ended_s[number], job.world.now_s)
            assert bool((result == sum(range(size))).all())
            host.sleep(0.01)
        executor.close()

    raise_errors(job, body)
    return statistics.median(
        end_s - begin_s for begin_s, end_s in zip(arrived_s, ended_s, strict=True)
    )


def raise_errors(job: Job, body: Callable[[int, int, Store], None]) -> None:
    """Run a job; what ended a rank is raised."""
    for outcome in job.run(body, longest_s=1e7).values():
        if outcome.error is not None:
            raise outcome.error
        assert outcome.is_over


def lab_weather() -> Weather:
    """The lab's ports and packets."""
    rate = LAB_MBIT * 1e6 / 8
    return Weather(
        rate=rate * TCP_SHARE,
        latency_s=LAB_LATENCY_S,
        burst=burst_bytes(Network(hosts=HOSTS, rate_mbit=LAB_MBIT), LAB_MBIT),
        pieces=(PACKET,),
        buffer=512 * 1024,
        short=0.0,
    )


def completion_table(sizes: Sequence[int]) -> None:
    """Completion by size beside the lab's."""
    print("| size | | ring | tree | chosen k |\n|--:|:--|--:|--:|--:|")
    for nbytes in sizes:
        *lab_ms, chunks = LAB_COMPLETION_MS[nbytes]
        schedules = [
            synth.ring(HOSTS),
            synth.tree(HOSTS),
            generate(HOSTS, chunks=chunks, owners="free"),
        ]
        cells = []
        for schedule, measured_ms in zip(schedules, lab_ms, strict=True):
            simulated_ms = completion_s(load(schedule), nbytes, lab_weather()) * 1e3
            ratio = simulated_ms / measured_ms
            cells.append(f"{simulated_ms:.1f} / {measured_ms:.1f} ms = {ratio:.2f}")
        print(f"| {format_bytes(nbytes)} | k = {chunks} | {' | '.join(cells)} |", flush=True)


def lab_arrivals(scenario: str) -> Callable[[], Arrivals]:
    """The scenarios of ``bench.auto``."""
    late_s = 1.2 * 42e6 * 8e-6 / LAB_MBIT
    makers: dict[str, Callable[[], Arrivals]] = {
        "persistent": lambda: OneLate(HOSTS, 1, late_s),
        "random": lambda: OneLate(HOSTS, 1, late_s, is_random=True),
        "tails": lambda: Tails(HOSTS, 1, 1.2, 0.02),
        "none": lambda: OneLate(HOSTS, 1, 0.0),
    }
    return makers[scenario]


def modes_table(steps: int) -> None:
    """The modes' steps beside the lab's, as times and as ratios to native."""
    print("| late | mode | simulated | lab | ratio | of native: simulated, lab |")
    print("|:--|:--|--:|--:|--:|--:|")
    for scenario, measured_s in LAB_STEP_S.items():
        setting = Setting(
            arrivals=lab_arrivals(scenario),
            latency_s=LAB_LATENCY_S,
            bandwidth=LAB_SHARE * LAB_MBIT * 1e6 / 8,
            work=StepWork(LAB_BUCKET, LAB_BUCKETS),
            steps=steps,
        )
        comparison = compare(setting, list(measured_s))
        native_s = comparison.native.median_s + LAB_COMPUTE_S
        for result in comparison.results:
            step_s = result.median_s + LAB_COMPUTE_S
            lab_s = measured_s[result.mode]
            of_native = f"{step_s / native_s:.2f}, {lab_s / measured_s['native']:.2f}"
            cells = f"{step_s:.2f} s | {lab_s:.2f} s | {step_s / lab_s:.2f} | {of_native}"
            print(f"| {scenario} | {result.mode} | {cells} |", flush=True)


def fine_steps_s(setting: Setting, mode: Mode) -> list[float]:
    """The steps of a setting (one bucket) with whole executors on simulated hosts."""
    arrivals = setting.arrivals()
    options = setting.options(mode)
    weather = Weather(
        rate=setting.bandwidth,
        latency_s=setting.latency_s,
        pieces=(4096,),
        buffer=512 * 1024,
        short=0.0,
    )
    job = Job(setting.ranks, setting.seed, weather, most_steps=10**9)
    steps = [arrivals.step(number) for number in range(setting.steps)]
    begun_s = [float("inf")] * len(steps)
    ended_s = [0.0] * len(steps)

    def body(rank: int, size: int, store: Store) -> None:
        dispatcher = AllReduceDispatcher(
            store,  # type: ignore[arg-type]
            rank,
            size,
            options=options,
            timeout_s=60.0,
        )
        dispatcher.submit(torch.ones(1)).wait()  # all begin together
        for number, step in enumerate(steps):
            begun_s[number] = min(begun_s[number], job.world.now_s)
            host.sleep(step.compute_s + step.offsets_s[rank])
            dispatcher.submit(torch.ones(setting.work.nbytes // 4)).wait()
            ended_s[number] = max(ended_s[number], job.world.now_s)
        dispatcher.close()

    with made_once():
        raise_errors(job, body)
    return [end_s - begin_s for begin_s, end_s in zip(begun_s, ended_s, strict=True)]


def small_setting(arrivals: Callable[[], Arrivals], steps: int) -> Setting:
    """A job that whole executors run in seconds: 400 kB over 200 Mbit/s."""
    return Setting(arrivals, latency_s=250e-6, bandwidth=25e6, work=StepWork(400_000), steps=steps)


def small_arrivals(ranks: int) -> dict[str, Callable[[], Arrivals]]:
    """By name, arrivals for such a job."""
    return {
        "one late": lambda: OneLate(ranks, 1, 0.1),
        "another in each step": lambda: OneLate(ranks, 1, 0.1, is_random=True),
        "tails": lambda: Tails(ranks, 1, 1.2, 0.01),
        "none late": lambda: OneLate(ranks, 1, 0.0),
    }


def coarse_table(ranks: int, steps: int) -> None:
    """The coarse model beside whole executors."""
    print("| late | mode | whole executors | coarse | ratio |\n|:--|:--|--:|--:|--:|")
    for name, arrivals in small_arrivals(ranks).items():
        setting = small_setting(arrivals, steps)
        comparison = compare(setting, MODES)
        for result in comparison.results:
            fine_s = statistics.fmean(fine_steps_s(setting, result.mode))
            ratio = result.step_s / fine_s
            cells = f"{fine_s * 1e3:.1f} ms | {result.step_s * 1e3:.1f} ms | {ratio:.2f}"
            print(f"| {name} | {result.mode} | {cells} |", flush=True)


def traces_table(all_ranks: Sequence[int], steps: int) -> None:
    """Traces and tails at scale: 1 GiB in 8 buckets over 25 Gbit/s."""
    print(
        "| arrivals | ranks | mode | s a step | of native | early | messages | ms of CPU | wall |"
    )
    print("|:--|--:|:--|--:|--:|--:|--:|--:|--:|")
    for ranks in all_ranks:
        for name, arrivals in traced_arrivals(ranks).items():
            setting = Setting(
                arrivals,
                latency_s=20e-6,
                bandwidth=25e9 / 8,
                work=StepWork(2**30 // 8, 8, overlap_s=0.3),
                steps=steps,
            )
            native_s = 0.0
            for mode in MODES:  # native is the first
                began_s = time.monotonic()
                result = run_mode(setting, mode, is_metered=True)
                wall_s = time.monotonic() - began_s
                native_s = native_s or result.step_s
                print_trace_row(name, ranks, result, native_s, wall_s)


def traced_arrivals(ranks: int) -> dict[str, Callable[[], Arrivals]]:
    """By name, the three traces and a tail, for so many ranks."""
    makers: dict[str, Callable[[], Arrivals]] = {}
    for name in ("AR", "SE", "ST"):
        trace = read(ARRIVALS / f"{name}.json")
        makers[name] = partial(OfTrace, trace, ranks, 1)
    makers["Pareto"] = partial(Tails, ranks, 1, 1.2, 0.02)
    return makers


def print_trace_row(
    name: str, ranks: int, result: ModeResult, native_s: float, wall_s: float
) -> None:
    """What one mode did with so many ranks."""
    figures = result.figures
    cells = [
        f"{result.step_s:.3f}",
        f"{result.step_s / native_s:.3f}",
        f"{figures.early / figures.operations:.0%}",
        f"{figures.messages / figures.operations:.1f}",
        f"{max(figures.cpu_s) / figures.operations * 1e3:.2f}",
        f"{wall_s:.0f} s",
    ]
    print(f"| {name} | {ranks} | {result.mode} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("completion", "modes", "coarse", "traces"))
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(LAB_COMPLETION_MS))
    options = parser.parse_args()
    if options.table == "completion":
        completion_table(options.sizes)
    elif options.table == "modes":
        modes_table(options.steps or 40)
    elif options.table == "coarse":
        coarse_table((options.ranks or [16])[0], options.steps or 12)
    else:
        traces_table(options.ranks or [64, 256, 1024], options.steps or 25)


if __name__ == "__main__":
    main()
