"""How long an all-reduce takes on GPUs, predicted before any was run: a range for each way.

Legend: S bytes of the buffer, n ranks, each on a GPU of one NVLink domain; seconds from the last
rank's arrival to the end. No number here was measured by us: each stands with the public page that
it was taken from, and what was fitted to a page says so.

    ours      start + messages * alpha + share * S * (1 / link [+ 3 / memory])

in the cost model of ``latecomer.synth.cost``, from the rounds of the schedule that runs. A range
has two ends, since the pages leave that much open. The *kernel*: alpha is the hop of one of NCCL's
protocols, at best that in which flags travel beside data (LL128), at worst that which fences as we
do (Simple); it starts in what is left of a one-shot kernel without its two flags, at worst in all
of it; what a chunk is read and written in the own memory (twice and once) is hidden, or it is not.
*Transfers* over NCCL: alpha is a group of one send and one receive as nccl-tests measures it in a
CUDA graph, at worst NCCL's own figure for starting and one hop of Simple; what the host needs to
enqueue it is not in it.

    NCCL      the least over its protocols of what its own tuner computes, with measured bandwidths
    one-shot  start + (n - 1) * S / link           each rank reads the buffers of all
    two-shot, multimem   fitted lines, a + share * S / bandwidth

Each of these is one number, and a range around it in which all published times lie. They can do
nothing before the last arrival, so a late rank changes nothing for them.

On several machines ours goes in *stages*: two kernels inside, and transfers between them. Of p
pieces of a tensor the kernels of one run beside the transfers of another: at best the longer of the
two, and a p-th of the other; at worst one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from latecomer.synth.cost import (
    Cost,
    Latency,
    Link,
    best_chunks,
    completion_cost,
    rhd_cost,
    straggler_cost,
    waiting_cost,
)
from latecomer.synth.straggler.generate import generate
from latecomer.synth.twolevel.cost import level_costs
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.ring import hierarchical_ring
from latecomer.synth.twolevel.staged import staged
from latecomer.verify.core.schedule import Schedule

SOURCES = {
    "tuner": "github.com/NVIDIA/nccl src/graph/tuning.cc (June 2026): microseconds to start and "
    "for a hop over NVLink, by protocol",
    "ring": "github.com/NVIDIA/nccl/issues/1455: 8 H100, ring 365 to 370 GB/s busbw for 2 to 8 "
    "GPUs; with NVLink SHARP 370 for 2 to 4, then 420, 440, 460, 480",
    "link": "github.com/NVIDIA/nccl-tests/issues/212 and /149: of NVLink's line rate, kernels get "
    "370 GB/s on H100 and 230 on A100",
    "memory": "github.com/NVIDIA/nccl/issues/1264 and nccl-tests/issues/100: copies within a GPU, "
    "2.5 TB/s on H100 and 1.6 on A100",
    "group": "github.com/NVIDIA/nccl/issues/1984: sendrecv_perf of 1 KiB, 4 H800, 3.7 us",
    "one_shot": "github.com/vllm-project/vllm/pull/24111 and /24532: one-shot kernels on 2, 4, 6 "
    "GPUs, 0.5 MB: 7, 10, 13 us; less their reading, 5.7 us each time",
    "symmetric": "github.com/vllm-project/vllm/pull/42324: PyTorch's symmetric memory, 0.5 to 128 "
    "MiB, and NCCL",
    "network": "github.com/NVIDIA/nccl-tests/issues/290: 46 to 48 GB/s for each NIC of 400 Gbit/s",
}
"""Where the numbers are from."""

HOPS_US = {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}  # tuner: one hop of a ring over NVLink
STARTS_US = {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}  # tuner: before the first hop
SHARES = {"LL": 0.38, "LL128": 0.92, "Simple": 1.0}  # tuner: of the link (LL: 141 of 370 GB/s)
NVLS_US = 25.0  # tuner: NVLink SHARP, in all
GROUP_US = 3.7  # group
ONE_SHOT_US = 5.7  # one_shot: with its two flags
TWO_SHOT = 13.0, 0.69  # symmetric, fitted: microseconds, share of the link's bandwidth
MULTIMEM = 9.0, 213e9  # symmetric, fitted: microseconds, bytes of the buffer per second
SPREAD = {
    "nccl": (0.8, 1.5),
    "one_shot": (0.9, 1.2),
    "two_shot": (0.8, 1.1),
    "multimem": (0.9, 1.2),
}
"""The range around the number, for each: published times are in it."""

NETWORK_HOPS_US = {"LL": 2.7, "Simple": 14.0}  # tuner: one hop of a ring over the network
NETWORK = 46e9, 48e9  # network: bytes per second of a GPU that has a NIC of its own
HALF_STAGING = 2**25  # bytes: of what a kernel receives, so much fits into one of the two sets

TOUCHES = 3  # of the own memory for each byte that comes: read it, read the own, write the sum


@dataclass(frozen=True)
class GpuMachine:
    """GPUs behind one NVSwitch; bytes per second.

    Attributes:
        link: what a kernel gets of one direction of a GPU's NVLink.
        memory: reads and writes of a GPU's own memory, together.
        sharp: bus bandwidth of NCCL with NVLink SHARP, by ranks; none where there is no SHARP.
    """

    name: str
    link: float
    memory: float
    sharp: Mapping[int, float]


H100 = GpuMachine("H100", 370e9, 2.5e12, {5: 420e9, 6: 440e9, 7: 460e9, 8: 480e9})
A100 = GpuMachine("A100", 230e9, 1.6e12, {})
MACHINES = {"H100": H100, "H200": H100, "A100": A100}
"""By what a GPU's name contains; an H200 has the links of an H100."""


@dataclass(frozen=True)
class Range:
    """Seconds, at best and at worst."""

    low: float
    high: float

    def __str__(self) -> str:
        """Microseconds."""
        return f"{self.low * 1e6:.0f}-{self.high * 1e6:.0f}"


def machine_of(gpu: str) -> GpuMachine | None:
    """The machine whose numbers are public, by the name of a GPU; none for others."""
    return next((machine for name, machine in MACHINES.items() if name in gpu), None)


def ours(way: str, schedule: Schedule, nbytes: int, machine: GpuMachine, *, late: bool) -> Range:
    """The time of a schedule, run by ``kernel`` or ``transfers``; with its late rank, or with none.

    If the late rank is late, it is so late that all was done that can be done without it.
    """

    def cost(latency: Latency) -> Cost:
        completion = completion_cost(schedule, latency)
        return completion if late else completion + waiting_cost(schedule, latency)

    return priced(way, cost("round"), cost("message"), nbytes, machine)


def priced(way: str, least: Cost, most: Cost, nbytes: int, machine: GpuMachine) -> Range:
    """The time of ours: ``least`` counts a message for each round, ``most`` one for each peer."""

    def seconds(cost: Cost, start_us: float, alpha_us: float, beta: float) -> float:
        return (start_us + cost.messages * alpha_us) * 1e-6 + float(cost.share) * nbytes * beta

    start = STARTS_US["Simple"]
    end = HOPS_US["Simple"]
    low = GROUP_US
    low_start = 0.0
    high = start + end
    high_start = 0.0
    if way == "kernel":
        low = HOPS_US["LL128"]
        high = end
        high_start = ONE_SHOT_US
        low_start = ONE_SHOT_US - 2 * low
    beta = 1 / machine.link
    worst = seconds(most, high_start, high, beta + TOUCHES / machine.memory)
    return Range(seconds(least, low_start, low, beta), worst)


def in_stages(schedule: Schedule, ranks: Machine, nbytes: int, machine: GpuMachine) -> Range:
    """The time of a schedule by kernels inside machines, each GPU of which has a NIC of its own.

    Its late rank, if it has one, is late as for :func:`ours`.
    """
    network, inside = level_costs(schedule, ranks)
    second_start = priced("kernel", Cost(0, Fraction(0)), Cost(0, Fraction(0)), 0, machine)
    kernels = priced("kernel", inside, inside, nbytes, machine)
    kernels_low = kernels.low + second_start.low
    kernels_high = kernels.high + second_start.high

    bytes_between = float(network.share) * nbytes
    slowest, fastest = NETWORK
    low = network.messages * NETWORK_HOPS_US["LL"] * 1e-6 + bytes_between / fastest
    high_us = STARTS_US["Simple"] + NETWORK_HOPS_US["Simple"]
    high = network.messages * high_us * 1e-6 + bytes_between / slowest
    pieces = max(1, math.ceil(float(inside.share) / 2 * nbytes / HALF_STAGING))
    overlapped = max(kernels_low, low) + min(kernels_low, low) / pieces
    return Range(overlapped, kernels_high + high)


def others(way: str, n: int, nbytes: int, machine: GpuMachine) -> Range | None:
    """The time of an all-reduce of :data:`SPREAD`; nothing where the machine can't do it."""
    steps = 2 * (n - 1)
    if way == "nccl":
        us = min(
            STARTS_US[protocol]
            + steps * HOPS_US[protocol]
            + steps / n * nbytes / (SHARES[protocol] * machine.link) * 1e6
            for protocol in HOPS_US
        )
        if n in machine.sharp:
            us = min(us, NVLS_US + steps / n * nbytes / machine.sharp[n] * 1e6)
    elif way == "one_shot":
        us = ONE_SHOT_US + (n - 1) * nbytes / machine.link * 1e6
    elif way == "two_shot":
        us = TWO_SHOT[0] + steps / n * nbytes / (TWO_SHOT[1] * machine.link) * 1e6
    elif n in machine.sharp:
        us = MULTIMEM[0] + nbytes / MULTIMEM[1] * 1e6
    else:
        return None
    low, high = SPREAD[way]
    return Range(us * low * 1e-6, us * high * 1e-6)


def chunks(way: str, n: int, nbytes: int, machine: GpuMachine, most: int = 64) -> int:
    """The number of chunks that is best for the middle of the range, with one late rank."""
    worst = STARTS_US["Simple"] + HOPS_US["Simple"]
    ends = (HOPS_US["LL128"], HOPS_US["Simple"]) if way == "kernel" else (GROUP_US, worst)
    return best_chunks(n, nbytes, Link(sum(ends) / 2 * 1e-6, machine.link), most)


def table(n: int, machine: GpuMachine) -> str:
    """The page's table for ``n`` ranks, in Markdown: microseconds, 64 KiB to 1 GiB."""
    ways = [way for way in SPREAD if others(way, n, 1, machine)]
    heads = [*ways, "k", "kernel, late", "kernel", "k", "transfers, late", "transfers"]
    lines = [f"| {n} {machine.name} | " + " | ".join(heads) + " |", "|--:" * (len(heads) + 1) + "|"]
    on_time = rhd_cost(n)
    for power in range(8):
        nbytes = 2**16 << 2 * power
        cells = [str(others(way, n, nbytes, machine)) for way in ways]
        for way in ("kernel", "transfers"):
            k = chunks(way, n, nbytes, machine)
            late = straggler_cost(n, k)
            times = (priced(way, cost, cost, nbytes, machine) for cost in (late, on_time))
            cells += [str(k), *map(str, times)]
        size = f"{nbytes >> 10} KiB" if nbytes < 2**20 else f"{nbytes >> 20} MiB"
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table_of_stages(machines: int, per_machine: int, machine: GpuMachine) -> str:
    """The page's table for several machines, in Markdown: microseconds, 64 KiB to 1 GiB."""
    link = Link(alpha_s=0.0, bandwidth=1.0)  # what is made does not depend on it
    ranks = Machine(machines, per_machine, per_machine, inner=link, outer=link)
    late = staged(ranks, ranks.ranks - 1, generate(machines))
    on_time = hierarchical_ring(ranks)
    lines = [f"| {machines} x {per_machine} {machine.name} | late | nobody late |", "|--:|--:|--:|"]
    for power in range(8):
        nbytes = 2**16 << 2 * power
        times = [str(in_stages(each, ranks, nbytes, machine)) for each in (late, on_time)]
        size = f"{nbytes >> 10} KiB" if nbytes < 2**20 else f"{nbytes >> 20} MiB"
        lines.append(f"| {size} | " + " | ".join(times) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    for ranks, kind in ((8, H100), (4, H100), (2, H100), (8, A100)):
        print(table(ranks, kind), end="\n\n")
    print(table_of_stages(2, 8, H100))
